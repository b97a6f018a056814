// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "registry/hooks/operator_observer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/attributes.h"
#include "registry/core/lock.h"
#include "registry/core/optimizer_phase.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/hooks/external_storages.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/hooks/training_notes.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/libtorch/tensors_of.h"
#include "registry/live_storages.h"
#include "registry/state.h"

namespace memledger {
namespace {

using core::OperatorKind;
using core::OperatorTraits;
using core::OptimizerPhase;
using core::ThreadContext;

std::atomic<bool> adopts_inputs{true};
core::TraitsById traits_by_id;  // of RegistryState::names

// The engine brackets each node's work, gradient accumulation included, in an operator-like scope
// of this name.
constexpr std::string_view kEngineScope = "autograd::engine::evaluate_function: ";
// The node that sets or adds to a leaf's gradient.
constexpr const char* kAccumulateGrad = "torch::autograd::AccumulateGrad";
bool is_engine_scope(const char* name) {
  // Operators' names begin with "aten".
  return name[0] == 'a' && name[1] == 'u' &&
         std::strncmp(name, kEngineScope.data(), kEngineScope.size()) == 0;
}

// torch.compile brackets what it has compiled in an operator-like scope of this name. A scope to
// us, too: the operators within, if there are any, have their own names and parameters.
constexpr std::string_view kCompiledRegion = "Torch-Compiled Region: ";
std::atomic<bool> any_compiled_region{false};
bool is_compiled_region(const char* name) {
  return name[0] == 'T' && std::strncmp(name, kCompiledRegion.data(), kCompiledRegion.size()) == 0;
}

uintptr_t address_of(c10::StorageImpl& storage) {
  return reinterpret_cast<uintptr_t>(storage._mutable_data_ptr_no_checks().get());
}

void note_backward_pass(ThreadContext& thread) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (thread.has_run_nodes && task == thread.graph_task) return;
  thread.graph_task = task;
  RegistryState::get().ledger.note_backward_pass();
}

// The engine makes nodes, too.
void forget_next_node(ThreadContext& thread) { thread.next_node = thread.custom_node = 0; }

void push_node(ThreadContext& thread, const char* name) {
  note_backward_pass(thread);
  thread.has_run_nodes = true;
  if (thread.node_depth < ThreadContext::kMaxFrames) {
    thread.frames[thread.node_depth] = {thread.op,
                                        thread.autograd_node,
                                        thread.forward_op,
                                        thread.forward_label,
                                        thread.forward_parameter,
                                        thread.forward_stack,
                                        thread.op_depth,
                                        thread.function_depth,
                                        thread.op_sequence,
                                        thread.phase.operator_phase(),
                                        thread.records,
                                        thread.recomputes,
                                        thread.node_grad_mode};
    thread.op = 0;
    thread.op_depth = 0;
    thread.function_depth = 0;
    thread.op_sequence = 0;
    thread.forward_op = 0;
    thread.forward_label = 0;
    thread.forward_parameter = 0;
    thread.forward_stack = 0;
    thread.recomputes = false;
    thread.node_grad_mode = at::GradMode::is_enabled();
    thread.autograd_node = core::intern_cached(thread, RegistryState::get().names, name);
  }
  ++thread.node_depth;
  forget_next_node(thread);
}

void pop_node(ThreadContext& thread) {
  forget_next_node(thread);
  if (thread.node_depth == 0) return;
  --thread.node_depth;
  if (thread.node_depth < ThreadContext::kMaxFrames) {
    const ThreadContext::Frame& frame = thread.frames[thread.node_depth];
    thread.op = frame.op;
    thread.autograd_node = frame.autograd_node;
    thread.forward_op = frame.forward_op;
    thread.forward_label = frame.forward_label;
    thread.forward_parameter = frame.forward_parameter;
    thread.forward_stack = frame.forward_stack;
    thread.op_depth = frame.op_depth;
    thread.function_depth = frame.function_depth;
    thread.op_sequence = frame.op_sequence;
    thread.records = frame.records;
    thread.recomputes = frame.recomputes;
    thread.node_grad_mode = frame.node_grad_mode;
    thread.phase.resume_operator(frame.operator_phase);
    RegistryState::get().running.set(thread.thread, thread.op_sequence);
  }
}

// Returns the layer of what a node's gradients are for: of the leaves among it, else of the latest
// maker.
uint64_t layer_read_by(const torch::autograd::Node& node) {
  constexpr size_t kMostInputs = 8;
  const RegistryState& state = RegistryState::get();
  uint64_t made_of = 0;
  uint64_t leaf_id = 0;
  uint64_t leaf_made_of = 0;
  size_t inputs = 0;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (edge.function == nullptr || ++inputs > kMostInputs) continue;
    if (const auto* const leaf =
            dynamic_cast<const torch::autograd::AccumulateGrad*>(&*edge.function)) {
      c10::StorageImpl* const storage = storage_impl_of(leaf->variable);
      if (storage == nullptr) continue;
      const uintptr_t address = address_of(*storage);
      if (const uint64_t told = state.ledger.told_parameter_at(address); told != 0) return told;
      if (leaf_id == 0) leaf_id = state.ledger.id_at(address);
      if (leaf_made_of == 0) leaf_made_of = state.ledger.made_at(address).parameter;
    } else if (const uint64_t parameter =
                   state.forward_operators
                       .find(edge.function->thread_id(), edge.function->sequence_nr())
                       .parameter;
               parameter != 0 && (made_of == 0 || (made_of & core::kLookedUp) != 0)) {
      made_of = parameter;
    }
  }
  if (made_of == 0) made_of = leaf_made_of;
  // If modules have registered their parameters, another leaf is an input whose gradient is wanted.
  const bool is_told = state.ledger.is_told_parameter(made_of & ~core::kLookedUp);
  return leaf_id != 0 && !is_told ? leaf_id : made_of;
}

// A custom Function in C++ opens no scope of an operator's, and is known by its node's name.
core::ForwardOperators::Made maker_of(ThreadContext& thread, const torch::autograd::Node& node) {
  RegistryState& state = RegistryState::get();
  core::ForwardOperators::Made made =
      state.forward_operators.find(node.thread_id(), node.sequence_nr());
  const std::string_view name = state.names.name(thread.autograd_node);
  // An interned name ends with 0.
  const bool is_custom = traits_by_id.of(thread.autograd_node, name.data()).is_custom_node;
  // With names only nobody has looked whether the operator that was noted has made it.
  if (!is_custom || (made.op != 0 && !state.names_only.load(std::memory_order_relaxed)))
    return made;
  made.op = state.names.intern(core::function_of_node(name));
  if (made.parameter == 0) made.parameter = layer_read_by(node);
  return made;
}

// Looks up which operator of the forward pass made the node that now runs: none in hooks around it.
// LibTorch would report each node by itself (RecordScope::BACKWARD_FUNCTION), at the price of a
// name and of a scope in addition to the engine's.
void note_forward_operator(ThreadContext& thread) {
  core::ForwardOperators::Made made;
  // A shared_ptr, from LibTorch 2.15 on an intrusive_ptr.
  if (const auto node = torch::autograd::get_current_node();
      node != nullptr && static_cast<int64_t>(node->sequence_nr()) >= 0) {
    made = maker_of(thread, *node);
  }
  thread.forward_op = made.op;
  thread.forward_label = made.label;
  thread.forward_parameter = made.parameter;
  thread.forward_stack = made.stack;
}

// Whether inputs that need no gradient are looked at: those of frozen layers, or under no_grad, and
// what no layer has made. They are if the program has registered its parameters; not in backward,
// and not in an optimizer's step.
bool looks_for_layers(const ThreadContext& thread) {
  if (!RegistryState::get().ledger.any_told_parameter() || thread.in_backward()) return false;
  const Phase now = thread.phase.phase(/*in_operator=*/true, /*in_autograd_node=*/false);
  return now != Phase::kBackward && now != Phase::kOptimizer;
}

// Returns what the later of two layers has made: of an embedding's and another the other, else the
// newer storage. So a residual sum is not the embedding's, nor of a module whose own parameters
// were moved after its children's. Without a parameter: none.
core::Ledger::Made of_later_layer(const core::Ledger::Made& first,
                                  const core::Ledger::Made& second) {
  if (first.parameter == 0 || second.parameter == 0) return first.parameter == 0 ? second : first;
  const bool first_looked_up = (first.parameter & core::kLookedUp) != 0;
  const bool second_looked_up = (second.parameter & core::kLookedUp) != 0;
  if (first_looked_up != second_looked_up) return first_looked_up ? second : first;
  return second.id > first.id ? second : first;
}

// An operator's inputs that need no gradient.
class LayerInputs {
 public:
  // Not `is_layer`: under no_grad, an operator that may as well average parameters.
  explicit LayerInputs(bool is_layer) : is_layer_(is_layer) {}

  void add(const core::Ledger& ledger, uintptr_t address) {
    if (const uint64_t told = ledger.told_parameter_at(address); told != 0) {
      if (is_layer_) told_parameter_ = told;
    } else if (address != 0 && count_ < others_.size()) {
      others_[count_++] = address;
    }
  }
  // The last parameter that a module of the program has registered, and the first that is none. 0:
  // none.
  uint64_t told_parameter() const { return told_parameter_; }
  uintptr_t first() const { return others_[0]; }
  // The one that the latest layer has made. Without a parameter: no layer has made any.
  core::Ledger::Made latest(const core::Ledger& ledger) const {
    core::Ledger::Made latest;
    for (size_t i = 0; i < count_; ++i) {
      if (others_[i] != 0) latest = of_later_layer(latest, ledger.made_at(others_[i]));
    }
    return latest;
  }
  void note_consumer(core::Ledger& ledger, uint64_t parameter) const {
    for (size_t i = 0; is_layer_ && i < count_; ++i) ledger.note_consumer(others_[i], parameter);
  }

 private:
  const bool is_layer_;
  uint64_t told_parameter_ = 0;
  std::array<uintptr_t, 4> others_{};
  size_t count_ = 0;
};

// A replica's copies of parameters are no leaves.
uint64_t told_parameter_among(const at::RecordFunction& fn, const core::Ledger& ledger) {
  uint64_t told = 0;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = told == 0 ? storage_impl_of(tensor) : nullptr;
      if (storage != nullptr) told = ledger.told_parameter_at(address_of(*storage));
    });
  }
  return told;
}

// TorchScript differentiates whole graphs, of which one node is seen: it shows no layer. The last
// input of an operator within is one that the forward pass has kept.
bool reads_nodes_of_script(const ThreadContext& thread) {
  return thread.in_backward() && thread.script_depth > 0 && thread.forward_parameter == 0;
}
uint64_t layer_in_script(const at::RecordFunction& fn) {
  const core::Ledger& ledger = RegistryState::get().ledger;
  uint64_t told = 0;
  uint64_t made_of = 0;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = storage_impl_of(tensor);
      if (storage == nullptr) return;
      const uintptr_t address = address_of(*storage);
      if (const uint64_t parameter = ledger.told_parameter_at(address); parameter != 0)
        told = parameter;
      if (const uint64_t parameter = ledger.made_at(address).parameter; parameter != 0)
        made_of = parameter;
    });
  }
  return told != 0 ? told : made_of;
}

// What eager code makes of a compiled graph's result, a loss say, belongs to that graph.
void inherit_label(ThreadContext& thread, uintptr_t address) {
  if (address == 0 || !any_compiled_region.load(std::memory_order_relaxed)) return;
  RegistryState& state = RegistryState::get();
  const auto [label, inherited] = state.ledger.labels_at(address);
  for (const core::NameId one : {label, inherited}) {
    if (one == 0 || state.labels.name(one).find(kCompiledRegion) == std::string_view::npos)
      continue;
    thread.inherited_label = one;
    return;
  }
}

void take_notice_of(ThreadContext& thread, const at::Tensor& tensor, c10::StorageImpl& storage) {
  switch (origin_of(storage)) {
    case BlockOrigin::kWatched:
      return;
    case BlockOrigin::kAdoptable:
      adopt(storage);
      return;
    case BlockOrigin::kForeign:
      ExternalStorages::note(thread, tensor, /*made=*/false);
  }
}

// What is left where nothing is asked of inputs: a look at each one's deleter.
void adopt_inputs_of(ThreadContext& thread, const at::RecordFunction& fn) {
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = storage_impl_of(tensor);
      if (storage != nullptr && !is_followed(*storage)) take_notice_of(thread, tensor, *storage);
    });
  }
}

// Returns what the later layer has made of the first and the last that an operator reads.
core::Ledger::Made made_later(uintptr_t first, uintptr_t last) {
  const core::Ledger& ledger = RegistryState::get().ledger;
  const core::Ledger::Made made = ledger.made_at(first);
  return last == first ? made : of_later_layer(made, ledger.made_at(last));
}

// Whether inputs show something: in training, or if a module has registered its parameters.
bool asks_of_inputs(const ThreadContext& thread, const RegistryState& state) {
  return thread.phase.operator_phase() == Phase::kForward || state.ledger.any_parameter_like() ||
         state.ledger.any_told_parameter() || state.step_observers.any() ||
         reads_nodes_of_script(thread);
}

ABSL_ATTRIBUTE_NOINLINE void look_at_inputs_closely(ThreadContext& thread,
                                                    const at::RecordFunction& fn,
                                                    OperatorTraits traits) {
  RegistryState& state = RegistryState::get();
  const bool adopting = adopts_inputs.load(std::memory_order_relaxed);
  OptimizerPhase& phase = thread.phase;
  const bool grad_on = phase.operator_phase() == Phase::kForward;
  const bool may_step = phase.may_step() && !phase.is_set() && state.ledger.any_parameter_like();
  const bool steps_are_observed = phase.may_step() && state.step_observers.any();
  const bool reads_layers = looks_for_layers(thread);
  const bool reads_script = reads_nodes_of_script(thread);
  if (!grad_on && !may_step && !steps_are_observed && !reads_layers && !reads_script) {
    if (adopting) adopt_inputs_of(thread, fn);
    return;
  }
  if (reads_script) thread.inherited_parameter = layer_in_script(fn);
  const OperatorKind kind = may_step || steps_are_observed || (reads_layers && !grad_on)
                                ? traits.kind
                                : OperatorKind::kOther;
  LayerInputs inputs(reads_layers && kind == OperatorKind::kOther);
  bool first = true;
  bool read_told = false;  // a parameter that a module has registered
  // Within a custom Function results require no grad until it has returned.
  const bool in_function = thread.custom_node != 0 || thread.function_depth > 0;
  const bool inherits = reads_layers || in_function;
  uint64_t untold_leaf = 0;  // if modules registered their parameters, no sign of a layer
  uintptr_t untold_address = 0;
  uintptr_t first_graded = 0;
  uintptr_t last_graded = 0;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = storage_impl_of(tensor);
      if (storage == nullptr) return;
      if (adopting && !is_followed(*storage)) take_notice_of(thread, tensor, *storage);
      if (grad_on && tensor.unsafeGetTensorImpl()->requires_grad()) {
        const uintptr_t address = address_of(*storage);
        if (tensor.is_leaf()) {
          bool is_told = false;
          const uint64_t id = state.ledger.mark_parameter_like(address, &is_told);
          // An input whose gradient is wanted is a leaf as well, and what a checkpoint detaches.
          if (!is_told && reads_layers) {
            untold_leaf = id;
            untold_address = address;
          } else if (is_told || !read_told) {
            thread.parameter = thread.last_parameter = id;
            thread.last_parameter_address = address;
            read_told = is_told;
          }
        } else if (address == thread.last_parameter_address &&
                   state.ledger.id_at(address) == thread.last_parameter) {
          // Not where another storage has taken the place of one that ended, as FSDP2's do.
          thread.parameter = thread.last_parameter;
        } else if (thread.parameter == 0 && reads_layers && tensor.is_view()) {
          // DataParallel's replica on the parameters' own device reads them so.
          thread.parameter = state.ledger.told_parameter_at(address);
        }
        if (first_graded == 0) first_graded = address;
        last_graded = address;
      } else if (inherits) {
        inputs.add(state.ledger, address_of(*storage));
      }
      if (first && steps_are_observed && kind == OperatorKind::kStep)
        state.step_observers.tell(tensor);
      if (may_step && phase.depends_on(kind, first) &&
          state.ledger.is_parameter_like(address_of(*storage))) {
        phase.note_parameter(kind, state.ledger);
      }
    });
    first = false;
    if (!adopting && !grad_on && !may_step) break;
  }
  if (thread.in_backward()) return;
  thread.records = first_graded != 0 || thread.custom_node != 0;
  const uint64_t looked_up = traits.looks_up ? core::kLookedUp : 0;
  if (thread.parameter != 0) {
    thread.parameter |= looked_up;
  } else {
    core::Ledger::Made made;
    if (first_graded != 0) made = made_later(first_graded, last_graded);
    if (first_graded == 0 || in_function) made = of_later_layer(made, inputs.latest(state.ledger));
    thread.inherited_parameter =
        inputs.told_parameter() != 0 ? inputs.told_parameter() | looked_up : made.parameter;
    // A parameter that was moved after it was registered is the copy of one that has ended.
    if (untold_leaf != 0 && inputs.told_parameter() == 0 &&
        !state.ledger.is_told_parameter(made.parameter & ~core::kLookedUp)) {
      thread.parameter = untold_leaf | looked_up;
      thread.last_parameter = untold_leaf;
      thread.last_parameter_address = untold_address;
    }
  }
  if (thread.nearest() == 0 && first_graded != 0 && reads_layers)
    thread.inherited_parameter = told_parameter_among(fn, state.ledger);
  if (thread.nearest() != 0) {
    inputs.note_consumer(state.ledger, thread.nearest() & ~core::kLookedUp);
  } else {
    thread.source = inputs.first();
    inherit_label(thread, first_graded != 0 ? first_graded : inputs.first());
  }
}

void look_at_inputs(ThreadContext& thread, const at::RecordFunction& fn, OperatorTraits traits) {
  if (asks_of_inputs(thread, RegistryState::get())) {
    look_at_inputs_closely(thread, fn, traits);
  } else if (adopts_inputs.load(std::memory_order_relaxed)) {
    adopt_inputs_of(thread, fn);
  }
}

bool requires_grad(const at::RecordFunction& fn) {
  bool any = false;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      any = any || (tensor.defined() && tensor.unsafeGetTensorImpl()->requires_grad());
    });
  }
  return any;
}

void note_node(ThreadContext& thread, uint64_t forward_thread, uint64_t sequence, core::NameId op) {
  if (thread.op_stack == 0) thread.op_stack = StackSampler::take_of_operator();
  RegistryState::get().forward_operators.note(
      forward_thread, sequence,
      {op, thread.inherited_label != 0 ? thread.inherited_label : thread.label, thread.nearest(),
       thread.op_stack, thread.thread, thread.op_sequence});
}

// The next node made on this thread has the number that the operator was given, the outermost one
// or one within. A result that requires no grad has none.
template <bool kNamesOnly>
void note_next_node(ThreadContext& thread, const at::RecordFunction& fn) {
  if (fn.seqNr() < 0 || thread.in_backward()) return;
  const auto sequence = static_cast<uint64_t>(fn.seqNr());
  if constexpr (!kNamesOnly) {
    thread.next_node = sequence + 1;
    thread.backward_pass = RegistryState::get().ledger.last_backward_pass();
    if (!thread.records && (thread.op_depth == 1 || !requires_grad(fn))) {
      RegistryState::get().forward_operators.note_run(fn.threadId(), sequence, thread.thread,
                                                      thread.op_sequence);
      return;
    }
    thread.noted_node = sequence + 1;
  }
  note_node(thread, fn.threadId(), sequence, thread.op);
}

// A number that no operator has made a node of may be that of a node which LibTorch makes outside
// operators.
void look_for_node(ThreadContext& thread, const at::RecordFunction& fn) {
  thread.next_node = at::sequence_number::peek() + 1;
  thread.backward_pass = RegistryState::get().ledger.last_backward_pass();
  if (thread.next_node == thread.noted_node)
    RegistryState::get().forward_operators.note_run(fn.threadId(), thread.noted_node - 1,
                                                    thread.thread, thread.op_sequence);
  thread.noted_node = 0;
}

// What an operator reads that requires grad.
struct GradedInputs {
  bool any = false;
  uint64_t last_node = 0;  // the number plus 1 of the last node of this thread that made any

  explicit GradedInputs(const at::RecordFunction& fn) {
    for (const c10::IValue& input : fn.inputs()) {
      for_each_tensor(input, [&](const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->requires_grad()) return;
        any = true;
        const torch::autograd::Node* const node = torch::autograd::impl::grad_fn_unsafe(tensor);
        if (node != nullptr && node->thread_id() == fn.threadId())
          last_node = std::max(last_node, static_cast<uint64_t>(node->sequence_nr()) + 1);
      });
    }
  }
};

// Whether the operator is within the forward of a custom Function in C++, whose node LibTorch makes
// first, and then switches grad mode off.
bool is_in_custom_function(ThreadContext& thread, const at::RecordFunction& fn) {
  if (at::GradMode::is_enabled()) {
    thread.custom_node = 0;
    return false;
  }
  if (thread.next_node == 0) return false;
  const uint64_t newest = at::sequence_number::peek();  // plus 1
  if (thread.backward_pass != RegistryState::get().ledger.last_backward_pass() ||
      (thread.custom_node == 0 && newest < thread.next_node)) {
    forget_next_node(thread);
    return false;
  }
  const GradedInputs inputs(fn);
  if (thread.custom_node == 0 && !inputs.any) return false;  // a buffer to begin with, say
  uint64_t node = thread.custom_node != 0 ? thread.custom_node : thread.next_node;
  if (inputs.last_node >= node) {
    // An operator that reads its result comes later, in the next Function's forward or in none.
    if (newest < thread.next_node || newest == inputs.last_node) {
      forget_next_node(thread);
      return false;
    }
    node = inputs.last_node + 1;
  }
  thread.custom_node = node;
  if (inputs.any) thread.next_node = newest + 1;
  return true;
}

// What runs right within a Function of Python's is of the layer whose parameter it reads, as if it
// ran outside; the Function keeps its name.
void look_into_function(ThreadContext& thread, const at::RecordFunction& fn, const char* name) {
  const OperatorTraits traits =
      traits_by_id.of(core::intern_cached(thread, RegistryState::get().names, name), name);
  if (traits.is_function) ++thread.function_depth;
  thread.reads_parameter = false;
  thread.births_within = thread.births;
  if (thread.in_backward()) return;
  const uint64_t parameter = std::exchange(thread.parameter, 0);
  const uint64_t inherited = std::exchange(thread.inherited_parameter, 0);
  const bool records = thread.records;
  const uintptr_t source = thread.source;
  look_at_inputs(thread, fn, traits);
  thread.records = records;
  thread.source = source;
  thread.reads_parameter = thread.parameter != 0;
  if (thread.nearest() != 0) return;
  thread.parameter = parameter;
  thread.inherited_parameter = inherited;
}

// Reports inferred steps. Those in a ScopedPhase or an optimizer's scope end with it.
void note_step(ThreadContext& thread) {
  if (thread.phase.in_bracketed_step()) return;
  const bool is_in_step =
      !thread.phase.is_set() && thread.phase.operator_phase() == Phase::kOptimizer;
  if (!is_in_step && thread.step == ThreadContext::Step::kNone) return;
  core::StepMarks* const marks = RegistryState::get().step_marks.load(std::memory_order_acquire);
  if (marks == nullptr) return;
  if (is_in_step) {
    marks->note_operator(thread);
  } else {
    marks->end(thread);
  }
}

template <bool kNamesOnly>
void start_operator(ThreadContext& thread, const at::RecordFunction& fn, const char* name) {
  if (thread.op_depth++ > 0) {
    if (!kNamesOnly && thread.op_depth - 1 == thread.function_depth)
      look_into_function(thread, fn, name);
    note_next_node<kNamesOnly>(thread, fn);
    return;
  }
  // A program may load its CUDA library long after activation (Python does), and the next operator
  // makes its first allocation.
  if (CudaAllocator::has_appeared()) CudaAllocator::put_in_front();
  RegistryState& state = RegistryState::get();
  thread.op = core::intern_cached(thread, state.names, name);
  const OperatorTraits traits = traits_by_id.of(thread.op, name);
  thread.may_make_external = traits.may_make_external;
  if (++thread.last_sequence == 0) ++thread.last_sequence;
  thread.op_sequence = thread.last_sequence;
  state.running.set(thread.thread, thread.op_sequence);
  thread.parameter = 0;
  thread.inherited_parameter = 0;
  thread.inherited_label = 0;
  thread.source = 0;
  thread.op_stack = 0;
  thread.records = false;
  thread.noted_node = 0;
  thread.function_depth = traits.is_function ? 1 : 0;
  thread.births_at_op = thread.births;
  thread.births_seen = thread.births;
  // Backward runs without grad mode, unless it is itself to be differentiated.
  const bool in_custom_function = !kNamesOnly && is_in_custom_function(thread, fn);
  const bool grad_mode = at::GradMode::is_enabled() || in_custom_function;
  thread.recomputes = thread.node_depth > 0 && !thread.node_grad_mode && grad_mode;
  if (thread.in_backward()) note_forward_operator(thread);

  // Around nodes, in callbacks at the end of a pass, the engine says that it runs.
  const bool backward =
      !thread.recomputes &&
      (thread.node_depth > 0 ||
       (thread.has_run_nodes && torch::autograd::get_current_graph_task_id() != -1));
  thread.phase.begin_operator(backward    ? OptimizerPhase::Mode::kBackward
                              : grad_mode ? OptimizerPhase::Mode::kForward
                                          : OptimizerPhase::Mode::kNoGrad);
  if constexpr (!kNamesOnly) look_at_inputs(thread, fn, traits);
  if (traits.reads_all_layers) thread.parameter = thread.inherited_parameter = 0;
  note_step(thread);
  if (!kNamesOnly && thread.custom_node != 0 && thread.nearest() != 0)
    note_node(thread, fn.threadId(), at::sequence_number::peek() - 1, /*op=*/0);
  note_next_node<kNamesOnly>(thread, fn);
}

// Whether the operator is right within a Function of Python's, and reads a layer's parameter.
bool is_layer_in_function(const ThreadContext& thread) {
  return thread.reads_parameter && thread.function_depth > 0 &&
         thread.op_depth == thread.function_depth + 1;
}

void describe_outputs(ThreadContext& thread, const at::RecordFunction& fn) {
  RegistryState& state = RegistryState::get();
  const bool is_result =
      thread.parameter != 0 && (thread.op_depth == 1 || is_layer_in_function(thread));
  for (const c10::IValue& output : fn.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = storage_impl_of(tensor);
      if (storage == nullptr || tensor.layout() != at::kStrided || tensor.is_nested()) return;
      const uintptr_t address = address_of(*storage);
      if (address == 0 || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
      const at::IntArrayRef sizes = tensor.sizes();
      const bool owns = is_followed(*storage) || owns_watched_block_here(*storage);
      if (state.ledger.describe(address, thread.thread, thread.op_sequence, sizes.data(),
                                sizes.size(), static_cast<int8_t>(tensor.scalar_type()),
                                owns ? storage : nullptr, thread.last_born, is_result)) {
        c10::raw::weak_intrusive_ptr::incref(storage);
      }
      if (thread.source != 0 && thread.op_depth == 1 && address != thread.source) {
        state.ledger.note_consumer(thread.source, state.ledger.id_at(address));
        thread.source = 0;
      }
    });
  }
}

template <bool kNamesOnly>
void end_operator(ThreadContext& thread, const at::RecordFunction& fn) {
  if (thread.op_depth == 0) return;
  const bool outermost = thread.op_depth == 1;
  if (!kNamesOnly && thread.noted_node != 0 && outermost) {
    // The layer in which a Function has run is known by now.
    if (thread.function_depth > 0 && fn.seqNr() >= 0)
      note_node(thread, fn.threadId(), static_cast<uint64_t>(fn.seqNr()), thread.op);
    look_for_node(thread, fn);
  }
  // Most operators make nothing (views, in-place), or an operator inside them has already shown it.
  const uint32_t births_before = outermost                      ? thread.births_at_op
                                 : is_layer_in_function(thread) ? thread.births_within
                                                                : thread.births_seen;
  if (!kNamesOnly && thread.births != births_before) {
    try {
      describe_outputs(thread, fn);
    } catch (...) {  // a tensor that cannot be looked into
      RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (!kNamesOnly && outermost && thread.may_make_external &&
      adopts_inputs.load(std::memory_order_relaxed)) {
    for (const c10::IValue& output : fn.outputs()) {
      for_each_tensor(output, [&](const at::Tensor& tensor) {
        ExternalStorages::note(thread, tensor, /*made=*/true);
      });
    }
  }
  thread.births_seen = thread.births;
  --thread.op_depth;
  thread.function_depth = std::min(thread.function_depth, thread.op_depth);
  if (outermost) {
    thread.op = 0;
    thread.op_sequence = 0;
    thread.phase.end_operator();
    RegistryState::get().running.set(thread.thread, 0);
  }
}

// The user scope in which Python's optimizers step: Optimizer.step#AdamW.step.
constexpr std::string_view kStepScope = "Optimizer.step#";

// Restores the label that was there when a user scope or the method of a TorchScript module began.
struct LabelBefore : at::ObserverContext {
  uint32_t thread = 0;
  core::NameId before = 0;
  core::NameId inside = 0;
  bool is_step = false;
  bool is_script = false;
};

std::unique_ptr<at::ObserverContext> start_labelled_scope(ThreadContext& thread,
                                                          const at::RecordFunction& fn,
                                                          std::string_view kind = "") {
  if (fn.isAsync()) return nullptr;
  core::NameTable& names = RegistryState::get().labels;
  auto context = std::make_unique<LabelBefore>();
  context->thread = thread.thread;
  context->before = thread.label;
  std::string path(names.name(thread.label));
  if (!path.empty()) path += '/';
  path.append(kind).append(fn.name());
  thread.label = context->inside = names.intern(path);
  RegistryState::get().label_history.note(thread.thread, thread.label);
  context->is_script = !kind.empty();
  if (context->is_script) ++thread.script_depth;
  context->is_step = std::strncmp(fn.name(), kStepScope.data(), kStepScope.size()) == 0;
  if (context->is_step) thread.phase.begin_step();
  return context;
}

template <bool kNamesOnly>
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  core::calling_out();  // whoever called has called out, too
  ThreadContext& thread = core::this_thread();
  try {
    switch (fn.scope()) {
      case at::RecordScope::USER_SCOPE:
        return start_labelled_scope(thread, fn);
      case at::RecordScope::TORCHSCRIPT_FUNCTION:
        return start_labelled_scope(thread, fn, "TorchScript ");
      default: {
        const char* const name = fn.name();
        if (is_engine_scope(name)) {
          push_node(thread, name + kEngineScope.size());
        } else if (is_compiled_region(name)) {
          any_compiled_region.store(true, std::memory_order_relaxed);
          return start_labelled_scope(thread, fn);
        } else {
          start_operator<kNamesOnly>(thread, fn, name);
        }
      }
    }
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
  return nullptr;
}

void end_labelled_scope(ThreadContext& thread, const at::ObserverContext* context) {
  const auto* const label = static_cast<const LabelBefore*>(context);
  if (label == nullptr || label->thread != thread.thread) return;
  if (label->is_script && thread.script_depth > 0) --thread.script_depth;
  if (label->is_step) {
    thread.phase.end_step();
    core::StepMarks* const marks = RegistryState::get().step_marks.load(std::memory_order_acquire);
    if (marks != nullptr && !thread.phase.in_bracketed_step()) marks->end_scope(thread);
  }
  if (label->inside != thread.label) return;
  thread.label = label->before;
  RegistryState::get().label_history.note(thread.thread, thread.label);
}

template <bool kNamesOnly>
void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  core::calling_out();
  ThreadContext& thread = core::this_thread();
  try {
    switch (fn.scope()) {
      case at::RecordScope::USER_SCOPE:
      case at::RecordScope::TORCHSCRIPT_FUNCTION:
        end_labelled_scope(thread, context);
        break;
      default: {
        const char* const name = fn.name();
        if (is_engine_scope(name)) {
          pop_node(thread);
          // After the hooks, which may have put another tensor in the gradient's place.
          if (RegistryState::get().gradients_wanted.load(std::memory_order_relaxed) > 0 &&
              std::strcmp(name + kEngineScope.size(), kAccumulateGrad) == 0) {
            GradientNotes::note_running_node();
          }
        } else if (is_compiled_region(name)) {
          end_labelled_scope(thread, context);
        } else {
          end_operator<kNamesOnly>(thread, fn);
        }
      }
    }
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

at::CallbackHandle operators_handle = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle named_operators_handle = at::INVALID_CALLBACK_HANDLE;  // for Detail::kNames
// User scopes and TorchScript: apart from the operators, as LibTorch boxes what it passes on for
// all scopes of a callback.
at::CallbackHandle scopes_handle = at::INVALID_CALLBACK_HANDLE;

template <bool kNamesOnly>
at::RecordFunctionCallback callback() {
  return at::RecordFunctionCallback(&on_start<kNamesOnly>, &on_end<kNamesOnly>);
}

template <typename Add>
void enable(at::CallbackHandle& handle, const Add& add) {
  if (handle != at::INVALID_CALLBACK_HANDLE) {
    at::reenableCallback(handle);
  } else {
    handle = add();
  }
}

}  // namespace

void OperatorObserver::start(bool names_only) {
  core::calling_out();
  using at::RecordScope;
  enable(scopes_handle, [] {
    return at::addGlobalCallback(
        callback<true>().scopes({RecordScope::USER_SCOPE, RecordScope::TORCHSCRIPT_FUNCTION}));
  });
  if (names_only) {
    enable(named_operators_handle,
           [] { return at::addGlobalCallback(callback<true>().scopes({RecordScope::FUNCTION})); });
  } else {
    enable(operators_handle, [] {
      return at::addGlobalCallback(
          callback<false>().needsInputs(true).needsOutputs(true).scopes({RecordScope::FUNCTION}));
    });
  }
}

void OperatorObserver::adopt_inputs(bool adopt) noexcept {
  adopts_inputs.store(adopt, std::memory_order_relaxed);
}

void OperatorObserver::stop() {
  core::calling_out();
  for (const at::CallbackHandle handle :
       {operators_handle, named_operators_handle, scopes_handle}) {
    if (handle != at::INVALID_CALLBACK_HANDLE) at::disableCallback(handle);
  }
}

}  // namespace memledger
