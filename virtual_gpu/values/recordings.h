#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "virtual_gpu/values/computation.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/random.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {

// A place whose storage is distinguished from later ones at the same address. Keeps it not alive.
class OwnedPlace {
 public:
  explicit OwnedPlace(Place place);
  const Place& place() const { return place_; }
  bool has_ended() const { return owner_.expired(); }

 private:
  Place place_;
  c10::weak_intrusive_ptr<c10::StorageImpl> owner_;
};

// Where the numbers of a captured operator come from at each launch.
struct RecordedNumbers {
  uintptr_t seed = 0;  // addresses on the device
  uintptr_t offset = 0;
  uint64_t added_offset = 0;

  // Returns what they are on the device now; nothing where that is not known.
  std::optional<RandomNumbers> now() const;
};

// What an operator that was captured into a graph does at each launch. As many as kMost are kept in
// a process.
class Recording {
 public:
  // nullptr where there are too many.
  static std::shared_ptr<Recording> make();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Computes the results of what is known now, or forgets all that it writes to. Returns the places
  // of which something is known.
  std::vector<Place> launch() const;

  const OperatorInfo* info = nullptr;
  std::optional<RecordedArguments> arguments;  // nothing: it is not computed
  std::optional<RecordedNumbers> numbers;
  std::vector<OwnedPlace> results;  // as Computation::run() returns them
  std::vector<OwnedPlace> written;  // all that it may write to

 private:
  static constexpr int64_t kMost = 65536;
  Recording() = default;
  std::vector<Value> compute() const;
};

// What is known of a node of a graph. Thread-safe.
class NodeRecord {
 public:
  enum class Kind {
    kAnything,  // it may write anywhere
    kNothing,   // it writes nothing, or a later node of the same operator stands for it
    kRecording,
  };

  void set(Kind kind, std::shared_ptr<const Recording> recording = nullptr);
  // To be forgotten before: what was written in front of it, by work that is no node.
  void set_unseen(std::vector<OwnedPlace> places);
  // Returns the places of which something is known.
  std::vector<Place> launch() const;

 private:
  mutable std::mutex mutex_;
  Kind kind_ = Kind::kAnything;
  std::shared_ptr<const Recording> recording_;
  std::vector<OwnedPlace> unseen_;
};

// Work of NVIDIA's libraries is no node of a graph here. What it may have written to while a stream
// captured is forgotten by the node that is captured next, and at the end of each launch.
// Thread-safe.
class UnseenWork {
 public:
  static UnseenWork& get();
  void add(const std::vector<OwnedPlace>& places);
  // For the node that is captured next.
  std::vector<OwnedPlace> take();
  void forget_all_of_it();

 private:
  static constexpr size_t kMost = 4096;
  std::mutex mutex_;
  std::vector<OwnedPlace> pending_, all_;
  bool is_too_much_ = false;
};

}  // namespace memledger::virtual_gpu
