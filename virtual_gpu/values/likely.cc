// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/likely.h"

#include <ATen/Functions.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/values.h"

namespace memledger::virtual_gpu {
namespace {

// Keeps no tensor alive. While there is a weak reference to a storage, no other gets its address.
class Notes {
 public:
  static Notes& get() {
    static auto* const notes = new Notes;  // never destroyed: operators may run until the end
    return *notes;
  }

  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  std::optional<Likely> find(const c10::StorageImpl* storage) {
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto note = notes_.find(storage);
    if (note == notes_.end()) return {};
    return note->second.likely;
  }

  void set(c10::StorageImpl* storage, const Likely& likely) {
    std::vector<Note> ended;  // end without the lock
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    if (notes_.size() >= sweep_at_) sweep(ended);
    const auto [note, is_new] = notes_.try_emplace(storage);
    if (is_new) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      note->second.owner = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
    }
    note->second.likely = likely;
    count_.store(notes_.size(), std::memory_order_relaxed);
  }

 private:
  struct Note {
    c10::weak_intrusive_ptr<c10::StorageImpl> owner{c10::intrusive_ptr<c10::StorageImpl>()};
    Likely likely;
  };

  void sweep(std::vector<Note>& ended) {
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
  std::unordered_map<const c10::StorageImpl*, Note> notes_;
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
  return storage == nullptr ? std::nullopt : Notes::get().find(storage);
}

bool has_noted(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && noted(value.toTensor()).has_value();
  if (!value.isTensorList()) return false;
  const auto list = value.toTensorList();
  return !list.empty() && noted(list.get(0)).has_value();
}

// One element in place of all, and whether it is more than a guess.
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

// The first tensor among what elements are taken from.
std::optional<at::Tensor> source_of(const OperatorInfo& info, c10::ArrayRef<const c10::IValue> in) {
  const size_t argument = info.name == "aten::copy_" ? 1 : 0;
  if (in.size() <= argument) return {};
  const c10::IValue& value = in[argument];
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
  if (value.isTensorList() && !value.toTensorList().empty()) return value.toTensorList().get(0);
  return {};
}

std::optional<Likely> of_selection(const OperatorInfo& info, const at::RecordFunction& fn) {
  const std::optional<at::Tensor> source = source_of(info, fn.inputs());
  if (!source) return {};
  std::optional<Likely> likely = noted(*source);
  if (likely && info.tells == Tells::kSum && likely->value != 0) {
    likely->value *= static_cast<double>(source->numel());
    likely->is_sure = false;
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
  if (c10::StorageImpl* const storage = storage_of(inputs[1].toTensor()))
    Notes::get().set(storage, {0, true});
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
      if (info->partly == Partly::kNo) return false;
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
  std::optional<Likely> likely = of_pointwise(info, fn);
  if (likely && compares_with_itself(info, fn)) likely->is_sure = true;
  return likely;
}

void keep_likely(const at::RecordFunction& fn, const Likely& likely) {
  const std::vector<c10::IValue>& outputs = fn.outputs();
  if (outputs.empty() || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
  if (c10::StorageImpl* const storage = storage_of(outputs[0].toTensor()))
    Notes::get().set(storage, likely);
}

}  // namespace memledger::virtual_gpu
