// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "registry/hooks/training_notes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/core/other_threads.h"
#include "registry/hooks/step_observer.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/second_copy/copies.h"
#include "registry/state.h"
#include "registry/training_paused.h"

namespace memledger {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradMeta;
using torch::autograd::Node;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Note {
  WeakTensor leaf;  // keeps its address, the key, from being used again
  WeakTensor gradient;
};

struct Notes {
  core::Lock lock;
  std::unordered_map<const c10::TensorImpl*, Note> by_leaf;
  size_t prune_at = 1024;  // doubles, so pruning costs little on average
};

// Never destroyed: programs train after main, too.
Notes& notes() {
  static auto* const notes = new Notes;
  return *notes;
}

// The engine holds a node's mutex while it runs the node.
struct NodeLock : Node {
  static std::mutex& of(const Node& node) { return const_cast<Node&>(node).*(&NodeLock::mutex_); }
};

const AutogradMeta* meta_of(const at::Tensor& tensor) {
  return static_cast<const AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
}

// Reads the address in the leaf's slot and nothing behind it, as another thread may be about to
// change it.
#if defined(__clang__)
__attribute__((noinline, no_sanitize("thread")))
#else
__attribute__((noinline, no_sanitize_thread))
#endif
const void*
address_in_slot(const at::Tensor& slot) {
  static_assert(sizeof(at::Tensor) == sizeof(void*));
  return *reinterpret_cast<void* const volatile*>(&slot);
}

// Notes go to `dropped` when they are no longer needed: ending them may end tensor objects, which
// must not happen under the lock.
void note_locked(Notes& all, const at::Tensor& leaf, const at::Tensor& gradient,
                 std::vector<Note>& dropped) {
  const c10::TensorImpl* const key = leaf.unsafeGetTensorImpl();
  const auto former = all.by_leaf.find(key);
  if (former != all.by_leaf.end()) {
    if (former->second.gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl()) return;
    dropped.reserve(1);
    dropped.push_back(std::move(former->second));
    all.by_leaf.erase(former);
  }
  if (!gradient.defined()) return;
  if (all.by_leaf.size() >= all.prune_at) {
    dropped.reserve(all.by_leaf.size() + 1);
    for (auto note = all.by_leaf.begin(); note != all.by_leaf.end();) {
      if (!note->second.leaf.expired()) {
        ++note;
        continue;
      }
      dropped.push_back(std::move(note->second));
      all.by_leaf.erase(note++);
    }
    all.prune_at = std::max<size_t>(1024, 2 * all.by_leaf.size());
  }
  all.by_leaf.emplace(
      key, Note{WeakTensor(leaf.getIntrusivePtr()), WeakTensor(gradient.getIntrusivePtr())});
}

uintptr_t address_of(c10::StorageImpl& storage) {
  return reinterpret_cast<uintptr_t>(storage._mutable_data_ptr_no_checks().get());
}

// Writes into the storage's record whose gradient it is: at a peak the gradient is known by that
// alone. Not for a bucket that holds gradients of several leaves.
void mark_gradient(const at::Tensor& leaf) {
  const at::Tensor& gradient = meta_of(leaf)->grad_;
  if (!gradient.defined()) return;
  c10::StorageImpl* const of_gradient = storage_impl_of(gradient);
  c10::StorageImpl* const of_leaf = storage_impl_of(leaf);
  if (of_gradient == nullptr || of_leaf == nullptr || of_gradient == of_leaf) return;
  if (gradient.layout() != c10::kStrided || of_gradient->sym_nbytes().is_symbolic() ||
      gradient.nbytes() != of_gradient->nbytes())
    return;
  core::Ledger& ledger = RegistryState::get().ledger;
  if (!ledger.mark_gradient(address_of(*of_gradient), address_of(*of_leaf))) return;
  // Compiled code has shown nobody the tensor. No run of an operator has these numbers, so what one
  // has described meanwhile stays.
  if (gradient.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
  const at::IntArrayRef sizes = gradient.sizes();
  ledger.describe(address_of(*of_gradient), /*thread=*/0, /*op_sequence=*/0, sizes.data(),
                  sizes.size(), static_cast<int8_t>(gradient.scalar_type()));
}

}  // namespace

core::Lock& training_notes_lock() { return notes().lock; }

namespace {

// What the outermost LiveRead of the thread has found.
struct LiveAnswer {
  int depth = 0;
  bool may = false;
};
thread_local LiveAnswer live_answer;

bool may_read_now() noexcept {
  if (ScopedTrainingPaused::is_promised()) return true;
  switch (core::OtherThreads::look()) {
    case core::OtherThreads::Kind::kNone:
      return true;
    case core::OtherThreads::Kind::kEngine:  // they add to gradients alongside the caller's hook
      return torch::autograd::get_current_graph_task_id() == -1;
    case core::OtherThreads::Kind::kProgram:
      break;
  }
  return false;
}

}  // namespace

LiveRead::LiveRead() noexcept {
  if (live_answer.depth++ == 0) live_answer.may = may_read_now();
  may_ = live_answer.may || ScopedTrainingPaused::is_promised();
}
LiveRead::~LiveRead() { --live_answer.depth; }

void add_step_observer(StepObserver observer) noexcept {
  copy_services().add_step_observer(observer);
}
void remove_step_observer(StepObserver observer) noexcept {
  copy_services().remove_step_observer(observer);
}

GradientNotes::Wanted::Wanted() { copy_services().want_gradients(true); }
GradientNotes::Wanted::~Wanted() { copy_services().want_gradients(false); }
void GradientNotes::note(const at::Tensor& leaf) { copy_services().note_gradient(leaf); }
at::Tensor GradientNotes::find(const at::Tensor& leaf) {
  return copy_services().noted_gradient(leaf);
}

void want_gradients_here(bool wanted) noexcept {
  std::atomic<int>& count = RegistryState::get().gradients_wanted;
  Notes& all = notes();
  std::unordered_map<const c10::TensorImpl*, Note> dropped;
  const core::LockHolder hold(all.lock);
  if (wanted) {
    count.fetch_add(1);
  } else if (count.fetch_sub(1) == 1) {
    all.by_leaf.swap(dropped);
  }
}

void note_gradient_here(const at::Tensor& leaf) {
  const AutogradMeta* const meta = meta_of(leaf);
  if (meta == nullptr) return;
  std::vector<Note> dropped;
  const core::LockHolder hold(notes().lock);
  note_locked(notes(), leaf, meta->grad_, dropped);
}

void GradientNotes::note_running_node() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return;
  const torch::autograd::Node& running = *node;
  if (typeid(running) != typeid(AccumulateGrad)) return;
  const at::Tensor& leaf = static_cast<const AccumulateGrad&>(running).variable;
  if (!leaf.defined()) return;
  // If another backward() is adding to it, that one will note it.
  const std::unique_lock<std::mutex> node_lock(NodeLock::of(*node), std::try_to_lock);
  if (!node_lock.owns_lock()) return;
  note_gradient_here(leaf);
  mark_gradient(leaf);
}

at::Tensor noted_gradient_here(const at::Tensor& leaf) {
  std::optional<WeakTensor> noted;
  {
    const core::LockHolder hold(notes().lock);
    const auto note = notes().by_leaf.find(leaf.unsafeGetTensorImpl());
    if (note == notes().by_leaf.end()) return {};
    noted = note->second.gradient;
  }
  if (address_in_slot(meta_of(leaf)->grad_) != noted->_unsafe_get_target()) return {};
  auto held = noted->lock();
  return held ? at::Tensor(std::move(held)) : at::Tensor();
}

at::Tensor gradient_of(const at::Tensor& leaf) {
  const LiveRead live;
  if (!live) return GradientNotes::find(leaf);
  const AutogradMeta* const meta = meta_of(leaf);
  return meta == nullptr ? at::Tensor() : meta->grad_;
}

bool seems_to_have_gradient(const at::Tensor& leaf) noexcept {
  const AutogradMeta* const meta = meta_of(leaf);
  return meta != nullptr && address_in_slot(meta->grad_) != c10::UndefinedTensorImpl::singleton();
}

at::Tensor NotesAwaited::find(const at::Tensor& leaf) {
  constexpr int64_t kInAllNs = 2'000'000;
  const auto now_ns = [] {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  };
  if (deadline_ns_ == 0) deadline_ns_ = now_ns() + kInAllNs;
  while (seems_to_have_gradient(leaf)) {
    if (at::Tensor gradient = GradientNotes::find(leaf); gradient.defined()) return gradient;
    if (now_ns() >= deadline_ns_) break;
    std::this_thread::yield();
  }
  return {};
}

}  // namespace memledger
