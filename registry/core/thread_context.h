#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "absl/base/optimization.h"
#include "registry/core/name_table.h"
#include "registry/core/optimizer_phase.h"
#include "registry/core/stack_table.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// What the calling thread is doing: the birthplace of the next storage it makes.
//
// Trivially constructible and destructible, so that a free in a static or thread destructor can use
// it.
struct ThreadContext {
  struct Frame {
    NameId op;
    NameId autograd_node;
    NameId forward_op;
    NameId forward_label;
    uint64_t forward_parameter;
    StackId forward_stack;
    uint32_t op_depth;
    uint32_t function_depth;
    uint32_t op_sequence;
    Phase operator_phase;
    bool records;
    bool recomputes;
    bool node_grad_mode;
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
  uint64_t forward_parameter;    // of the operator that made the running node
  StackId forward_stack;         // of that operator; 0 unless stacks of operators are taken
  StackId op_stack;              // of the running outermost operator, as far as it was taken
  uint64_t parameter;            // of the running outermost operator: see Birthplace
  uint64_t inherited_parameter;  // that of what it reads first, if it has none of its own
  NameId inherited_label;        // and no label: the compiled region that made what it reads first
  uint32_t script_depth;         // methods of TorchScript running one inside another
  uintptr_t source;  // what the running outermost operator reads first, if no layer is known of it
  // The last parameter consumed and its address: views of it (weight.t()) are no leaves.
  uint64_t last_parameter;
  uintptr_t last_parameter_address;
  uint32_t op_depth;  // operators running one inside another
  // So many of the outermost are Python's custom Functions: what runs right within is of its own
  // layer.
  uint32_t function_depth;
  bool reads_parameter;    // the last operator right within them does itself
  uint32_t op_sequence;    // numbers runs of the outermost one; 0 outside
  bool may_make_external;  // the outermost one: see OperatorTraits
  bool records;            // the outermost one reads what requires grad, in the forward pass
  bool recomputes;         // the outermost one is of a forward pass within backward
  uint32_t last_sequence;
  uint32_t node_depth;  // autograd nodes running one inside another
  bool has_run_nodes;
  bool node_grad_mode;  // grad mode when the running node began
  // Numbers of autograd nodes plus 1, 0: unknown. The next one, when an operator with grad mode on
  // had ended, or one in a custom Function in C++ had begun. The one that the running operator was
  // noted for. And that of such a Function whose forward runs, for which LibTorch switches grad
  // mode off.
  uint64_t next_node;
  uint64_t noted_node;
  uint64_t custom_node;
  uint64_t backward_pass;  // Ledger::last_backward_pass(), when next_node was read
  int graph_task;          // LibTorch's number of the pass whose node ran last
  BornEntry last_born;     // the last storage made by this thread
  IdBlock ids;             // for the storages that it makes
  uint32_t births;         // storages made by this thread, modulo 2^32
  uint32_t births_at_op;   // `births` when the outermost operator began
  uint32_t births_within;  // when the last one right within a Function of Python's began
  uint32_t births_seen;    // when an operator's results were last looked at
  // Above 0 inside the wrapped allocator: wrappers below pass through.
  std::array<uint8_t, kWatchedTypes> wrapper_depth;
  uint64_t sampling_state;  // of the stack sampler, as the next two
  int64_t sampling_mean;    // 0 until first used
  double bytes_to_sample;
  OptimizerPhase phase;
  // What StepMarks knows of the thread's step: an operator has run since the last mark, or none.
  enum class Step : uint8_t { kNone, kRan, kMarked };
  Step step;
  uint64_t step_began_at_id;
  std::array<Frame, kMaxFrames> frames;
  std::array<CachedName, kNameCache> names;

  // Whether it runs operators of backward, and none that compute a forward pass again.
  bool in_backward() const noexcept { return node_depth > 0 && !recomputes; }
  uint64_t nearest() const noexcept { return parameter != 0 ? parameter : inherited_parameter; }

  Birthplace birthplace() const noexcept {
    Birthplace place;
    tell(place, place.parameter, place);
    return place;
  }
  // Writes the birthplace where it is kept: a Birthplace, or an entry of the table.
  template <typename Place, typename Flags>
  void tell(Place& place, uint64_t& its_parameter, Flags& flags) const noexcept {
    const bool in_operator = op_depth > 0, is_recomputed = in_operator && recomputes;
    const bool in_node = node_depth > 0 && !is_recomputed;
    const auto set = [](auto& name, NameId id) {
      name = static_cast<std::remove_reference_t<decltype(name)>>(id);
    };
    set(place.op, op);
    set(place.autograd_node, is_recomputed ? 0 : autograd_node);
    set(place.label, label);
    set(place.forward_op, is_recomputed ? 0 : forward_op);
    set(place.forward_label, in_node ? forward_label : in_operator ? inherited_label : 0);
    const bool is_told_by_node = in_node && (forward_parameter != 0 || !in_operator);
    its_parameter = is_told_by_node ? forward_parameter : in_operator ? nearest() : 0;
    flags.parameter_inferred = its_parameter != 0 && (in_node || parameter == 0);
    flags.read_parameter = its_parameter != 0 && !flags.parameter_inferred;
    place.thread = thread;
    place.op_sequence = op_sequence;
    place.phase = phase.phase(in_operator, in_node);
    flags.phase_inferred = phase.is_inferred(in_operator);
    flags.recorded = records && in_operator && !is_recomputed && place.phase == Phase::kForward;
    flags.recomputed = is_recomputed && place.phase == Phase::kForward;
  }
};

// The calling thread's; __thread, as it needs no constructor and so no check for one.
extern __thread ThreadContext thread_context;
void number_thread(ThreadContext& mine) noexcept;

// Returns the calling thread's context; the first call gives the thread its number. Never throws.
inline ThreadContext& this_thread() noexcept {
  ThreadContext* mine = &thread_context;
  // Else compilers take the address for a constant, and compute it again at each use: in a shared
  // library by a call.
  __asm__("" : "+r"(mine));
  if (ABSL_PREDICT_FALSE(mine->thread == 0)) number_thread(*mine);
  return *mine;
}

// Shows readers on other threads which outermost operator each thread is running: a storage made by
// a run that has not ended is a temporary. Threads beyond kThreads share entries, which can only
// mistake a temporary for a finished storage or the reverse.
class RunningOperators {
 public:
  static constexpr size_t kThreads = 4096;
  void set(uint32_t thread, uint32_t op_sequence) noexcept {
    running_[index(thread)].store(op_sequence, std::memory_order_relaxed);
  }
  bool is_running(uint32_t thread, uint32_t op_sequence) const noexcept {
    return op_sequence != 0 &&
           running_[index(thread)].load(std::memory_order_relaxed) == op_sequence;
  }

 private:
  // Puts neighbouring threads on different cache lines.
  static size_t index(uint32_t thread) noexcept {
    return (thread * 16 + thread / (kThreads / 16)) % kThreads;
  }
  std::array<std::atomic<uint32_t>, kThreads> running_{};
};

// Finds the outermost operator that made an autograd node, by the node's sequence number and the
// thread that made it. Keeps the last kEntries of all threads. A reader on another thread never
// takes one operator for another.
class ForwardOperators {
 public:
  static constexpr size_t kEntries = size_t{1} << 16;
  struct Made {
    NameId op = 0;
    NameId label = 0;
    uint64_t parameter = 0;
    StackId stack = 0;
    // The registry's number of the thread, and which run of an operator on it.
    uint32_t on_thread = 0;
    uint32_t op_sequence = 0;
  };
  static_assert(NameTable::kMaxNames <= 1 << 16);
  void note(uint64_t thread, uint64_t sequence, Made made) noexcept {
    Entry& entry = entries_[index(thread, sequence)];
    entry.key.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.made.store(uint64_t{made.op} << 48 | uint64_t{made.label} << 32 | made.on_thread,
                     std::memory_order_relaxed);
    entry.parameter.store(made.parameter, std::memory_order_relaxed);
    entry.stack.store(made.stack, std::memory_order_relaxed);
    entry.op_sequence.store(made.op_sequence, std::memory_order_relaxed);
    entry.key.store(key(thread, sequence), std::memory_order_release);
  }
  // For an operator that has made no node, though the next one has that number: keeps its run,
  // which shows what was made before the node (registry/operator_runs.h).
  void note_run(uint64_t thread, uint64_t sequence, uint32_t on_thread,
                uint32_t op_sequence) noexcept {
    note(thread, sequence, {0, 0, 0, 0, on_thread, op_sequence});
  }
  Made find(uint64_t thread, uint64_t sequence) const noexcept {
    const Entry& entry = entries_[index(thread, sequence)];
    if (entry.key.load(std::memory_order_acquire) != key(thread, sequence)) return {};
    const uint64_t made = entry.made.load(std::memory_order_relaxed);
    const uint64_t parameter = entry.parameter.load(std::memory_order_relaxed);
    const StackId stack = entry.stack.load(std::memory_order_relaxed);
    const uint32_t op_sequence = entry.op_sequence.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry.key.load(std::memory_order_relaxed) != key(thread, sequence)) return {};
    return {static_cast<NameId>(made >> 48),
            static_cast<NameId>(made >> 32 & 0xFFFF),
            parameter,
            stack,
            static_cast<uint32_t>(made),
            op_sequence};
  }

 private:
  struct Entry {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> made{0};
    std::atomic<uint64_t> parameter{0};
    std::atomic<StackId> stack{0};
    std::atomic<uint32_t> op_sequence{0};
  };
  // Never 0: LibTorch numbers threads from 1. Two nodes share a key only after 2^40 nodes or 2^24
  // threads.
  static uint64_t key(uint64_t thread, uint64_t sequence) noexcept {
    return thread << 40 | (sequence & ((uint64_t{1} << 40) - 1));
  }
  static size_t index(uint64_t thread, uint64_t sequence) noexcept {
    return (sequence + thread * 40503) % kEntries;
  }
  std::array<Entry, kEntries> entries_{};
};

// Interns a C string through the thread's cache, which compares the text, not only the pointer: a
// name's memory can be reused.
NameId intern_cached(ThreadContext& context, NameTable& names, const char* text) noexcept;

}  // namespace memledger::core
