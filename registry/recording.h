#pragma once

// When storages were born and freed, between two points.
//
//   memledger::Recorder recorder;
//   output = model->forward(input);
//   const memledger::Recording recording = recorder.read();
//   for (const memledger::Lifetime& life : recording.lifetimes) std::cout << life << '\n';
//
// Times are nanoseconds of the steady clock, bytes as requested.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "registry/snapshot.h"

namespace memledger {

struct Lifetime {
  StorageInfo storage;             // as known at its death, or at the end
  std::optional<int64_t> born_ns;  // nothing: before the recording began
  std::optional<int64_t> died_ns;  // nothing: alive at the end
  bool used_as_parameter = false;  // an operator read it as a leaf that requires grad
};

// A thread's label from one moment on.
struct LabelChange {
  int64_t time_ns = 0;
  uint32_t thread = 0;
  std::string_view label;  // a path with '/' between; empty: none
};

struct Recording {
  int64_t begin_ns = 0;  // later than asked for if events were dropped: the first that is kept
  int64_t end_ns = 0;
  int64_t dropped_events = 0;
  // Upper bound of the label changes of this time that are missing: the last 65 536 of the process
  // are kept.
  int64_t dropped_label_changes = 0;
  std::chrono::system_clock::time_point end_time;
  std::vector<Lifetime> lifetimes;         // by id
  std::vector<LabelChange> label_changes;  // by time
  std::vector<DeviceInfo> devices;         // at the end; empty from take()
};

// Records births and deaths while it lives: an event of some 140 bytes each, in memory of fixed
// size, and 0.6 MB. The oldest are dropped when there is no room. Holds no tensor. For one thread
// at a time; whatever threads allocate is recorded. Events of two threads within a microsecond may
// come in either order. Cost: about 0.1 µs per allocation and per free; reading by the number of
// events and, for read(), of live storages.
class Recorder {
 public:
  // Begins. Keeps the last `max_events` births and deaths, whatever their addresses; the largest
  // number that was asked for since there has been a Recorder applies to all. Throws c10::Error
  // when there is no memory for them.
  explicit Recorder(size_t max_events = size_t{1} << 18);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Returns everything from the beginning (or the last take()) to now, and everything alive now.
  // Throws std::bad_alloc.
  Recording read() const;
  // Returns what was born or freed since the beginning or the last take(), and begins again. Leaves
  // out what was alive all the time. Throws std::bad_alloc, and has not begun again then.
  Recording take();

 private:
  struct Mark;
  std::unique_ptr<Mark> mark_;
};

// Returns the time of the clock that recordings use.
int64_t recording_clock_ns() noexcept;
// Returns the number that Birthplace::thread has for the calling thread.
uint32_t this_thread_number() noexcept;

}  // namespace memledger
