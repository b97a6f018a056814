#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace memledger::virtual_gpu {

// One read of what only the device knows.
struct SiteRead {
  std::string site;    // which read of the program it is: site_of()
  uint64_t value = 0;  // of an assumed size; 0: it is none, and drives no loop
  bool is_capped = false;
};

// A loop that an assumed size drives: `for label in labels.unique()`, with as many labels as there
// can be.
struct SizeLoop {
  std::string driver;    // the site of the size
  std::string place;     // of what is read in the loop; the caller sets it
  bool is_same = false;  // the size was capped, and the loop goes on all the same
};

// Finds such loops from the order of reads. A read that comes again ends what was read after it. So
// a size that was read once, before another was read again and again, drives the loop of that one.
// Not thread-safe.
class SizeLoops {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns a loop that would take more than kMaxLoop.
  std::optional<SizeLoop> note(const SiteRead& read, Clock::time_point now);
  // Whether a read that is no size can be one of a loop.
  bool has_driver() const;
  // An optimizer has stepped: its loop is the program's own.
  void forget() { open_.clear(); }

 private:
  struct Open {
    SiteRead last;
    uint64_t reads = 1;
    Clock::time_point since;
  };

  const Open* driver_of(size_t reader) const;

  std::vector<Open> open_;  // each was read after the one before it
};

// Loops of fewer rounds are left alone, and so are those that end in time.
inline constexpr uint64_t kMinLoop = 1024;
inline constexpr std::chrono::seconds kMaxLoop(30);
// What a size becomes that drives a longer one: more than most programs have classes or experts.
inline constexpr uint64_t kCappedSize = 128;

}  // namespace memledger::virtual_gpu
