// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/likely.h"

#include <ATen/Functions.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/values.h"

namespace memledger::virtual_gpu {
namespace {

// Where a tensor's elements lie in its storage.
struct Extent {
  int64_t offset = 0, numel = 0;
  int64_t end = 0;  // behind the last element

  bool is_same(const Extent& other) const { return offset == other.offset && numel == other.numel; }
  bool overlaps(const Extent& other) const { return offset < other.end && other.offset < end; }
};

Extent extent_of(const at::Tensor& tensor) {
  Extent extent{tensor.storage_offset(), tensor.numel(), tensor.storage_offset()};
  if (extent.numel == 0) return extent;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    extent.end += (tensor.size(dim) - 1) * tensor.stride(dim);
  ++extent.end;
  return extent;
}

// Keeps no tensor alive. While there is a weak reference to a storage, no other gets its address.
class Notes {
 public:
  static Notes& get() {
    static auto* const notes = new Notes;  // never destroyed: operators may run until the end
    return *notes;
  }

  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  std::optional<Likely> find(const c10::StorageImpl* storage, const Extent& extent) {
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto of_storage = notes_.find(storage);
    if (of_storage == notes_.end()) return {};
    for (const Note& note : of_storage->second.notes) {
      if (note.extent.is_same(extent)) return note.likely;
    }
    return {};
  }

  void set(c10::StorageImpl* storage, const Extent& extent, const Likely& likely) {
    std::vector<OfStorage> ended;  // end without the lock
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    if (notes_.size() >= sweep_at_) sweep(ended);
    const auto [of_storage, is_new] = notes_.try_emplace(storage);
    if (is_new) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      of_storage->second.owner = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
    }
    std::vector<Note>& notes = of_storage->second.notes;
    const auto same = std::find_if(notes.begin(), notes.end(),
                                   [&](const Note& note) { return note.extent.is_same(extent); });
    if (same != notes.end()) {
      same->likely = likely;
    } else {
      if (notes.size() == kMaxOfStorage) notes.clear();
      notes.push_back({extent, likely});
    }
    count_.store(notes_.size(), std::memory_order_relaxed);
  }

  // Something else is there now.
  void forget(const c10::StorageImpl* storage, const Extent& extent) {
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto of_storage = notes_.find(storage);
    if (of_storage == notes_.end()) return;
    std::vector<Note>& notes = of_storage->second.notes;
    notes.erase(std::remove_if(notes.begin(), notes.end(),
                               [&](const Note& note) { return note.extent.overlaps(extent); }),
                notes.end());
  }

 private:
  static constexpr size_t kMaxOfStorage = 64;
  struct Note {
    Extent extent;
    Likely likely;
  };
  struct OfStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> owner{c10::intrusive_ptr<c10::StorageImpl>()};
    std::vector<Note> notes;
  };

  void sweep(std::vector<OfStorage>& ended) {
    for (auto note = notes_.begin(); note != notes_.end();) {
      if (!note->second.owner.expired()) {
        ++note;
        continue;
      }
      ended.push_back(std::move(note->second));
      note = notes_.erase(note);
    }
    sweep_at_ = std::max<size_t>(sweep_at_, 2 * notes_.size());
  }

  ForkSafeMutex mutex_;
  std::unordered_map<const c10::StorageImpl*, OfStorage> notes_;
  std::atomic<size_t> count_{0};
  size_t sweep_at_ = 1024;
};

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl->is_cuda() || !impl->has_storage()) return nullptr;
  return impl->unsafe_storage().unsafeGetStorageImpl();
}

std::optional<Likely> noted(const at::Tensor& tensor) {
  if (Notes::get().is_empty()) return {};
  const c10::StorageImpl* const storage = storage_of(tensor);
  return storage == nullptr ? std::nullopt : Notes::get().find(storage, extent_of(tensor));
}

void set_note(const at::Tensor& tensor, const Likely& likely) {
  c10::StorageImpl* const storage = tensor.defined() ? storage_of(tensor) : nullptr;
  if (storage != nullptr) Notes::get().set(storage, extent_of(tensor), likely);
}

void forget_note(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = tensor.defined() ? storage_of(tensor) : nullptr;
  if (storage != nullptr) Notes::get().forget(storage, extent_of(tensor));
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

bool has_noted(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && noted(value.toTensor()).has_value();
  if (!value.isTensorList()) return false;
  const auto list = value.toTensorList();
  return !list.empty() && noted(list.get(0)).has_value();
}

// One element instead of all, and whether it is more than a guess.
struct Element {
  at::Tensor tensor;
  bool is_known = false;
  bool is_sure = false;
};

Element element_of(const at::Tensor& tensor) {
  Element element;
  const auto of = [&](double value) {
    return at::full({1}, value, at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
  };
  if (const std::optional<Likely> likely = noted(tensor)) {
    element.is_sure = likely->is_sure;
    element.tensor = of(likely->value);
  } else if (const std::optional<at::Tensor> known = known_values(tensor);
             known && known->numel() > 0) {
    element.is_known = true;
    element.tensor = known->reshape({-1}).slice(0, 0, 1).clone();
  } else {
    element.tensor = of(likely_of_type(tensor.scalar_type()));
  }
  return element;
}

// The operator on one element of each tensor.
std::optional<Likely> of_pointwise(const OperatorInfo& info, const at::RecordFunction& fn) {
  std::vector<c10::IValue> stack;
  bool all_sure = true, any_sure = false;
  for (const c10::IValue& input : fn.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) {
      if (input.isTensorList() || input.isGenerator()) return {};
      stack.push_back(input.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : input);
      continue;
    }
    const Element element = element_of(input.toTensor());
    all_sure &= element.is_known || element.is_sure;
    any_sure |= element.is_sure;
    stack.emplace_back(element.tensor);
  }
  info.handle.callBoxed(stack);
  if (stack.size() != 1 || !stack[0].isTensor() || stack[0].toTensor().numel() != 1) return {};
  return Likely{stack[0].toTensor().to(at::kDouble).item<double>(), all_sure && any_sure};
}

// What elements are taken from: likely where the first is, and sure where all are.
std::optional<Likely> likely_of_sources(const c10::IValue& value) {
  std::optional<Likely> likely;
  bool is_first = true;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    const std::optional<Likely> one = tensor.defined() ? noted(tensor) : std::nullopt;
    if (std::exchange(is_first, false)) {
      likely = one;
    } else if (likely) {
      likely->is_sure &= one && one->is_sure && one->value == likely->value;
    }
  });
  return likely;
}

std::optional<Likely> of_selection(const OperatorInfo& info, const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  const size_t argument = info.name == "aten::copy_" ? 1 : 0;
  if (inputs.size() <= argument) return {};
  std::optional<Likely> likely = likely_of_sources(inputs[argument]);
  if (likely && info.tells == Tells::kSum && inputs[argument].isTensor()) {
    likely->value *= static_cast<double>(inputs[argument].toTensor().numel());
    likely->is_sure = false;  // how many there are may be a size
  }
  return likely;
}

bool compares_with_itself(const OperatorInfo& info, const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  return info.tells == Tells::kComparison && inputs.size() >= 2 && inputs[0].isTensor() &&
         inputs[1].isTensor() && inputs[0].toTensor().is_same(inputs[1].toTensor());
}

// The scaler of gradients finds none that is not finite.
void note_unscaled(const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  if (inputs.size() < 2 || !inputs[1].isTensor()) return;
  forget_note(inputs[1].toTensor());
  set_note(inputs[1].toTensor(), {0, true});
}

}  // namespace

std::optional<Likely> likely_value(const at::Tensor& tensor) noexcept {
  try {
    return tensor.defined() ? noted(tensor) : std::nullopt;
  } catch (...) {
    return {};
  }
}

double likely_of_type(c10::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) ? 0 : 1;
}

bool may_have_likely_result(const at::RecordFunction& fn) {
  const OperatorInfo* const info = operator_info(fn);
  if (info == nullptr || !info->is_ours) return false;
  switch (info->tells) {
    case Tells::kFinite:
    case Tells::kNotFinite:
    case Tells::kComparison:
    case Tells::kUnscaling:
      return true;
    case Tells::kNothing:
      if (info->partly == Partly::kNo && !info->is_view) return false;
      break;
    case Tells::kSelection:
    case Tells::kSum:
      break;
  }
  if (Notes::get().is_empty()) return false;
  for (const c10::IValue& input : fn.inputs()) {
    if (has_noted(input)) return true;
  }
  return false;
}

std::optional<Likely> likely_result(const at::RecordFunction& fn) {
  const OperatorInfo& info = *operator_info(fn);
  switch (info.tells) {
    case Tells::kFinite:
      return Likely{1, true};
    case Tells::kNotFinite:
      return Likely{0, true};
    case Tells::kUnscaling:
      note_unscaled(fn);
      return {};
    case Tells::kSelection:
    case Tells::kSum:
      return of_selection(info, fn);
    case Tells::kComparison:
    case Tells::kNothing:
      break;
  }
  if (info.is_view) return of_selection(info, fn);
  std::optional<Likely> likely = of_pointwise(info, fn);
  if (likely && compares_with_itself(info, fn)) likely->is_sure = true;
  return likely;
}

void keep_likely(const at::RecordFunction& fn, const Likely& likely) {
  const std::vector<c10::IValue>& outputs = fn.outputs();
  if (outputs.empty()) return;
  for_each_tensor(outputs[0], [&](const at::Tensor& tensor) { set_note(tensor, likely); });
}

void forget_likely(const at::RecordFunction& fn) {
  if (Notes::get().is_empty()) return;
  const OperatorInfo* const info = operator_info(fn);
  if (info == nullptr || !info->writes || info->tells == Tells::kUnscaling) return;
  const auto inputs = fn.inputs();
  for (size_t i = 0; i < std::min(inputs.size(), info->is_written.size()); ++i) {
    if (info->is_written[i]) for_each_tensor(inputs[i], forget_note);
  }
}

}  // namespace memledger::virtual_gpu
