#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "registry/core/name_table.h"
#include "registry/core/optimizer_phase.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// What the calling thread is doing: the birthplace of the next storage it makes.
//
// Trivially constructible and destructible, so that a free in a static or thread destructor finds
// it whole.
struct ThreadContext {
  struct Frame {
    NameId op;
    NameId autograd_node;
    NameId forward_op;
    NameId forward_label;
    uint32_t op_depth;
    uint32_t op_sequence;
  };
  struct CachedName {
    const char* text;
    const char* interned;
    NameId id;
  };
  static constexpr size_t kMaxFrames = 16;
  static constexpr size_t kNameCache = 64;
  static constexpr size_t kWatchedTypes = 2;  // device types with allocator wrappers

  uint32_t thread;  // 0 until first used
  NameId op;
  NameId autograd_node;
  NameId label;
  NameId forward_op;
  NameId forward_label;
  uint64_t parameter;  // of the running outermost operator: see Birthplace
  // The last parameter consumed, and where it lies: views of it (weight.t()) are no leaves.
  uint64_t last_parameter;
  uintptr_t last_parameter_address;
  uint32_t op_depth;     // operators running one inside the other
  uint32_t op_sequence;  // run of the outermost one; 0 outside
  uint32_t last_sequence;
  uint32_t node_depth;    // autograd nodes running one inside the other
  uint32_t births;        // storages made by this thread, modulo 2^32
  uint32_t births_at_op;  // `births` when the outermost operator began
  uint32_t births_seen;   // `births` when an operator's results were last looked at
  // Inside the wrapped allocator: a wrapper below passes through.
  std::array<uint8_t, kWatchedTypes> wrapper_depth;
  uint32_t training_since;  // see TrainingThreads; 0: was not seen to train
  uint64_t sampling_state;  // of the stack sampler
  int64_t sampling_mean;    // 0 until first used
  double bytes_to_sample;
  OptimizerPhase phase;
  std::array<Frame, kMaxFrames> frames;
  std::array<CachedName, kNameCache> names;

  Birthplace birthplace() const noexcept {
    Birthplace place;
    place.op = op;
    place.autograd_node = autograd_node;
    place.label = label;
    place.forward_op = forward_op;
    place.forward_label = forward_label;
    place.parameter = op_depth > 0 && node_depth == 0 ? parameter : 0;
    place.thread = thread;
    place.op_sequence = op_sequence;
    place.phase = phase.phase(op_depth > 0, node_depth > 0);
    place.phase_inferred = phase.is_inferred(op_depth > 0);
    return place;
  }
};

// The calling thread's context; gives the thread its number at the first call. Never throws.
ThreadContext& this_thread() noexcept;

// Which outermost operator each thread is running, for readers on other threads: a storage made by
// a run that has not ended is a temporary. Threads beyond kThreads share places, which can only
// take a temporary for a finished one or the reverse.
class RunningOperators {
 public:
  static constexpr size_t kThreads = 4096;
  void set(uint32_t thread, uint32_t op_sequence) noexcept {
    running_[place(thread)].store(op_sequence, std::memory_order_relaxed);
  }
  bool is_running(uint32_t thread, uint32_t op_sequence) const noexcept {
    return op_sequence != 0 &&
           running_[place(thread)].load(std::memory_order_relaxed) == op_sequence;
  }

 private:
  // Neighbouring threads on different cache lines.
  static size_t place(uint32_t thread) noexcept {
    return (thread * 16 + thread / (kThreads / 16)) % kThreads;
  }
  std::array<std::atomic<uint32_t>, kThreads> running_{};
};

// Which outermost operator made an autograd node, by the node's sequence number and the thread that
// it was made on. The last kPlaces of all threads; an older one is forgotten. A reader on another
// thread never takes one operator for another.
class ForwardOperators {
 public:
  static constexpr size_t kPlaces = size_t{1} << 16;
  struct Made {
    NameId op = 0;
    NameId label = 0;
  };
  void note(uint64_t thread, uint64_t sequence, Made made) noexcept {
    Place& place = places_[index(thread, sequence)];
    place.key.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    place.made.store(uint64_t{made.op} << 32 | made.label, std::memory_order_relaxed);
    place.key.store(key(thread, sequence), std::memory_order_release);
  }
  Made find(uint64_t thread, uint64_t sequence) const noexcept {
    const Place& place = places_[index(thread, sequence)];
    if (place.key.load(std::memory_order_acquire) != key(thread, sequence)) return {};
    const uint64_t made = place.made.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (place.key.load(std::memory_order_relaxed) != key(thread, sequence)) return {};
    return {static_cast<NameId>(made >> 32), static_cast<NameId>(made)};
  }

 private:
  struct Place {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> made{0};
  };
  // Never 0: LibTorch numbers threads from 1. Both counts would have to pass their parts for two
  // nodes to share a key.
  static uint64_t key(uint64_t thread, uint64_t sequence) noexcept {
    return thread << 40 | (sequence & ((uint64_t{1} << 40) - 1));
  }
  static size_t index(uint64_t thread, uint64_t sequence) noexcept {
    return (sequence + thread * 40503) % kPlaces;
  }
  std::array<Place, kPlaces> places_{};
};

// Interns a C string through the thread's cache. The cache compares the text, not only the pointer:
// a name's memory can be reused.
NameId intern_cached(ThreadContext& context, NameTable& names, const char* text) noexcept;

}  // namespace memledger::core
