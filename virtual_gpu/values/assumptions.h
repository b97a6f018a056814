#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memledger::virtual_gpu {

// What a run assumes of a value that only the device knows, where the program reads it.
enum class Assumed : uint8_t {
  kLikely,  // what it most often is: likely.h
  kOther,   // of a truth: the other one, now and then and for longer and longer
  kSmall,
  kOne,
  kLarge,
  kHuge,
  kMillion,  // for programs that take no huge one
};

// What `memledger dry-run` passed to this process in kAssumptionsVariable. Read once; thread-safe.
class Assumptions {
 public:
  static const Assumptions& get();
  explicit Assumptions(std::string_view text);

  // `site`: the read's, by site_of().
  Assumed of(std::string_view site, bool is_truth) const;
  // Whether the user has said something of a line.
  bool has_lines() const { return !lines_.empty(); }
  // Returns what the user has said of the line, as "moe.py:84 forward" or "train.cc:42 main()".
  std::optional<double> at(std::string_view place) const;
  // Whether sizes of some sites are capped, or were found to drive no loop.
  bool has_sizes() const { return !capped_.empty() || !no_drivers_.empty(); }
  // Returns the line of the loop that the size at the site drives; nullptr where it is not capped.
  const std::string* loop_of(std::string_view site) const;
  bool drives_nothing(std::string_view site) const;

 private:
  struct Line {
    std::string place;  // train.py:12
    double value = 0;
  };
  struct Capped {
    std::string site, loop;
  };
  struct Site {
    std::string site;
    Assumed assumed = Assumed::kLikely;
  };

  std::vector<Line> lines_;
  std::vector<Capped> capped_;
  std::vector<std::string> no_drivers_;
  std::vector<Site> sites_;
};

// Returns 16 digits that are the same in each run of a program.
std::string site_of(std::string_view what, std::string_view op, std::string_view place);

// Whether the n-th read, from 0, gets the other truth: once, once not, twice, twice not and so on.
// So a program that counts failures comes to its end, and one that waits for success to its.
bool is_other_truth(uint64_t read);

// The number for a type, of which there is one element or several. Large ones rise from one read of
// a site to the next and huge ones fall, as a program may stop once a loss no longer does. Integers
// of 32 bits and less have no huge number that falls: they stay at their largest.
// `read`: how often the site was read before.
double assumed_number(Assumed assumed, c10::ScalarType type, bool is_alone, double likely,
                      uint64_t read);

// The bytes of one element of a type, with the value nearest to `value`; zeros for types that
// LibTorch cannot fill. May throw. Needs a PlainCpu.
std::vector<unsigned char> element_bytes(c10::ScalarType type, double value);

}  // namespace memledger::virtual_gpu
