#pragma once

// When storages were born and freed, between two points.
//
//   memledger::Recorder recorder;                      // from now on
//   ...
//   memledger::Recording recording = recorder.read();  // from then to now
//   for (const memledger::Lifetime& life : recording.lifetimes) { ... life.storage.nbytes,
//   life.born_ns, life.died_ns ... }
//
// While a Recorder lives, each birth and each death leaves an event of some 140 bytes in rings of
// fixed size; the oldest are dropped when there is no room, and counted. Without one, an allocation
// asks for nothing but a null pointer.
//
// Units: bytes as requested; nanoseconds of the steady clock. Errors: the constructor throws
// c10::Error when there is no memory for the rings. Ownership: holds no tensor. Thread-safety:
// reading and recording from any thread; one thread at a time for one Recorder. Events of two
// threads within the same microsecond may come in either order. Cost: about 0.1 µs per allocation
// and per free; reading by the number of events, and by live storages where they are asked for.

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
  bool used_as_parameter = false;  // an operator consumed it as a leaf that requires grad
};

// From then on the thread's label was this one.
struct LabelChange {
  int64_t time_ns = 0;
  uint32_t thread = 0;
  std::string_view label;  // a path with '/' between; empty: none
};

struct Recording {
  int64_t begin_ns = 0;  // of what is here: later than asked for, if events were dropped
  int64_t end_ns = 0;
  int64_t dropped_events = 0;
  int64_t dropped_label_changes =
      0;  // of this time, at most: the last 65536 changes in the process are kept
  std::chrono::system_clock::time_point end_time;
  std::vector<Lifetime> lifetimes;         // by id: in order of birth
  std::vector<LabelChange> label_changes;  // by time
  std::vector<DeviceInfo> devices;         // at the end; only with everything that is alive
};

class Recorder {
 public:
  // At most so many births and deaths are kept; the largest number that any living Recorder asked
  // for holds for all.
  explicit Recorder(size_t max_events = size_t{1} << 18);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // From the beginning (or the last restart) to now, with everything that is alive at its end.
  Recording read() const;
  // What was born or freed since the beginning or the last restart, and begins anew. What lives
  // through is not in it.
  Recording take();

 private:
  struct Place;
  std::unique_ptr<Place> place_;
};

// The steady clock that all of it is by.
int64_t recording_clock_ns() noexcept;
// The number that StorageInfo::thread has for the calling thread.
uint32_t this_thread_number() noexcept;

}  // namespace memledger
