#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "registry/core/name_table.h"
#include "registry/phase.h"

namespace memledger::core {

// The two numbers of a c10::Device, without its header.
struct DeviceKey {
  int8_t type = 0;
  int8_t index = -1;

  friend bool operator==(DeviceKey a, DeviceKey b) {
    return a.type == b.type && a.index == b.index;
  }
  friend bool operator!=(DeviceKey a, DeviceKey b) { return !(a == b); }
};

// Added to the id of a parameter that an embedding's look-up has read. A record that inherits the
// parameter inherits it as well.
constexpr uint64_t kLookedUp = uint64_t{1} << 63;

// Where a storage was made, and by what. Names are ids in the registry's NameTables.
struct Birthplace {
  // The id of the storage of a parameter, with kLookedUp; see memledger::Birthplace.
  uint64_t parameter = 0;
  NameId op = 0;             // outermost operator running on the thread
  NameId autograd_node = 0;  // backward node running on the thread
  NameId label = 0;          // path of ScopedLabels and user scopes
  NameId forward_op = 0;     // outermost operator that made autograd_node
  NameId forward_label = 0;  // the label it ran under
  uint32_t thread = 0;       // numbered by first use, from 1
  uint32_t op_sequence = 0;  // which run of an operator on that thread; 0: outside operators
  Phase phase = Phase::kOther;
  bool phase_inferred = false;
  bool parameter_inferred = false;
  bool read_parameter = false;  // the operator did: its results are outputs of the layer
  bool recorded = false;        // of the forward pass, made of what requires grad
  bool recomputed = false;      // see memledger::Birthplace
};

// A bit for each label whose peaks are kept.
constexpr size_t kMaxPeakLabels = 16;
using LabelSet = uint32_t;
// In addition to the bits of labels: the path is not known.
constexpr LabelSet kUnknownPath = LabelSet{1} << kMaxPeakLabels;

constexpr int8_t kUnknownDtype = -1;

using Shape = absl::InlinedVector<int64_t, 4>;

// Sizes in 20 bytes: nearly all tensors have at most four, and small ones.
class PackedShape {
 public:
  PackedShape() = default;
  ~PackedShape() { clear(); }
  PackedShape(const PackedShape&) = delete;
  PackedShape& operator=(const PackedShape&) = delete;

  void clear() noexcept {
    if (is_large_) delete[] large();
    is_large_ = false;
    dims_ = 0;
  }
  // Throws std::bad_alloc, and then nothing has changed.
  void assign(const int64_t* sizes, size_t dims) {
    if (!assign_small(sizes, dims)) assign_large(sizes, dims);
  }
  // Does not allocate; returns false, and has done nothing, where assign() might.
  bool assign_small(const int64_t* sizes, size_t dims) noexcept {
    if (is_large_ || !is_small(sizes, dims)) return false;
    set_small(sizes, dims);
    return true;
  }
  size_t size() const noexcept { return dims_; }
  int64_t operator[](size_t i) const noexcept { return is_large_ ? large()[i] : small_[i]; }
  bool equals(const int64_t* sizes, size_t dims) const noexcept {
    if (dims != dims_) return false;
    for (size_t i = 0; i < dims; ++i) {
      if ((*this)[i] != sizes[i]) return false;
    }
    return true;
  }

 private:
  static bool is_small(const int64_t* sizes, size_t dims) noexcept {
    return dims <= 4 && std::all_of(sizes, sizes + dims, [](int64_t size) {
             return static_cast<uint64_t>(size) <= std::numeric_limits<uint32_t>::max();
           });
  }
  void set_small(const int64_t* sizes, size_t dims) noexcept {
    for (size_t i = 0; i < dims; ++i) small_[i] = static_cast<uint32_t>(sizes[i]);
    dims_ = static_cast<uint16_t>(dims);
  }
  void assign_large(const int64_t* sizes, size_t dims);
  int64_t* large() const noexcept {
    int64_t* sizes = nullptr;
    std::memcpy(&sizes, small_.data(), sizeof(sizes));
    return sizes;
  }

  std::array<uint32_t, 4> small_{};  // or the address of all of them
  uint16_t dims_ = 0;
  bool is_large_ = false;
};

// One live storage. `id` is never reused; `address` is, by the next storage put there.
struct StorageRecord {
  uint64_t id = 0;
  uintptr_t address = 0;
  int64_t nbytes = 0;
  void* base_deleter = nullptr;  // how the wrapped allocator frees it; opaque here
  void* owner = nullptr;  // the object that holds the memory; opaque here, only of a live storage
  uint64_t birth_epoch = 0;
  uint64_t birth_order = 0;  // among births and deaths of its device; 0: before counting began
  Birthplace birthplace;
  uint64_t consumer = 0;  // see StorageInfo
  LabelSet peak_labels = 0;
  uint32_t stack = 0;      // StackId; 0: none was taken
  float stack_weight = 0;  // how many such storages it stands for
  DeviceKey device;
  int8_t dtype = kUnknownDtype;    // c10::ScalarType
  bool described = false;          // shape and dtype are known
  bool adopted = false;            // born before tracking, or while it was off
  bool raw_block = false;          // made by a raw allocation, not for a storage
  bool library_workspace = false;  // LibTorch keeps it for a library
  bool parameter_like = false;     // an operator consumed it as a leaf that requires grad
  bool told_parameter = false;     // a module of the program says that it is one
  bool gradient = false;           // of the leaf whose storage is birthplace.parameter
  bool names_only = false;         // operators' results were not looked at
  Shape shape;
};

// An atomic that reads and writes as a plain variable does.
template <typename T>
class Relaxed {
 public:
  constexpr Relaxed(T value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;
  Relaxed& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator T() const noexcept {  // NOLINT(google-explicit-constructor)
    return value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<T> value_;
};

// A StorageRecord in the table, in two cache lines: each birth writes them. The thread that has
// made the storage reads `id`, and writes `owner` and the description, without the shard's lock
// (Ledger::describe).
struct alignas(64) TableEntry {
  using Slot = uint32_t;
  static constexpr Slot kNone = ~Slot{0};

  Relaxed<uint64_t> id = 0;  // 0: the entry is free
  uintptr_t address = 0;
  int64_t nbytes = 0;
  uint64_t birth_epoch = 0;
  uint64_t birth_order = 0;
  // Birthplace::parameter, or the consumer of what has none.
  uint64_t parameter_or_consumer = 0;
  union {
    Relaxed<void*> owner = nullptr;  // of the living
    uint64_t death_epoch;            // of tombstones
  };
  union {
    void* base_deleter = nullptr;
    uint64_t death_order;
  };

  Slot older = kNone;  // doubly linked; `newer` also links the free entries
  Slot newer = kNone;
  uint32_t thread = 0;
  uint32_t op_sequence = 0;
  uint32_t stack = 0;
  float stack_weight = 0;
  PackedShape shape;  // if described, as `dtype`
  static_assert(NameTable::kMaxNames <= 1 << 16);
  uint16_t op = 0;
  uint16_t autograd_node = 0;
  uint16_t label = 0;
  uint16_t forward_op = 0;
  uint16_t forward_label = 0;
  static_assert(kMaxPeakLabels <= 16);
  uint16_t peak_labels = 0;
  DeviceKey device;
  int8_t dtype = kUnknownDtype;
  Phase phase = Phase::kOther;
  // All of a new entry are written at once.
  struct Flags {
    bool phase_inferred : 1;
    bool parameter_inferred : 1;
    bool read_parameter : 1;  // see Birthplace
    bool has_consumer : 1;
    bool adopted : 1;
    bool raw_block : 1;
    bool library_workspace : 1;
    bool parameter_like : 1;
    bool told_parameter : 1;
    bool gradient : 1;
    bool names_only : 1;
    bool recorded : 1;
    bool recomputed : 1;
    bool unknown_path : 1;  // see kUnknownPath
  };
  Flags flags = {};
  // Not among the flags, which others may write at the same time.
  static constexpr uint8_t kDescribed = 1;
  static constexpr uint8_t kDead = 2;
  static constexpr uint8_t kResult = 4;  // of the operator that has made it
  std::atomic<uint8_t> state = 0;

  // A thread that sees true may read shape and dtype.
  bool described() const noexcept {
    return (state.load(std::memory_order_acquire) & kDescribed) != 0;
  }
  bool is_result() const noexcept { return (state.load(std::memory_order_relaxed) & kResult) != 0; }
  bool is_alive() const noexcept { return (state.load(std::memory_order_relaxed) & kDead) == 0; }
  // With the shard's lock.
  void add_to_state(uint8_t bit) noexcept {
    state.store(state.load(std::memory_order_relaxed) | bit, std::memory_order_release);
  }
  uint64_t parameter() const noexcept { return flags.has_consumer ? 0 : parameter_or_consumer; }
  uint64_t consumer() const noexcept { return flags.has_consumer ? parameter_or_consumer : 0; }
  // Its flags are the caller's.
  void set_birthplace(const Birthplace& birthplace) noexcept {
    parameter_or_consumer = birthplace.parameter;
    thread = birthplace.thread;
    op_sequence = birthplace.op_sequence;
    op = static_cast<uint16_t>(birthplace.op);
    autograd_node = static_cast<uint16_t>(birthplace.autograd_node);
    label = static_cast<uint16_t>(birthplace.label);
    forward_op = static_cast<uint16_t>(birthplace.forward_op);
    forward_label = static_cast<uint16_t>(birthplace.forward_label);
    phase = birthplace.phase;
  }
  Birthplace birthplace() const noexcept {
    Birthplace value;
    value.parameter = parameter();
    value.op = op;
    value.autograd_node = autograd_node;
    value.label = label;
    value.forward_op = forward_op;
    value.forward_label = forward_label;
    value.thread = thread;
    value.op_sequence = op_sequence;
    value.phase = phase;
    value.phase_inferred = flags.phase_inferred;
    // What an operator keeps for itself (a copy of its input, say) is no output of its layer.
    value.parameter_inferred = flags.parameter_inferred || (flags.read_parameter && !is_result());
    value.recorded = flags.recorded;
    value.recomputed = flags.recomputed;
    return value;
  }
  // Throws std::bad_alloc if there is no memory for a long shape.
  StorageRecord record() const;
};
static_assert(sizeof(TableEntry) == 128);

// Ids that a thread may give to storages: see Ledger::take_id(). Zeros: it has none.
struct IdBlock {
  uint64_t ledger;  // the number of the ledger that they are of
  uint64_t next;
  uint64_t end;
  uint64_t number;  // so many blocks had been taken before
};

// A storage that a thread has made: its entry, as it was then.
struct BornEntry {
  TableEntry* entry;
  uint64_t id;
  uintptr_t address;
};

}  // namespace memledger::core
