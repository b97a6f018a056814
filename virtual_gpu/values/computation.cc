// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/computation.h"

#include <ATen/Functions.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace memledger::virtual_gpu {
namespace {

constexpr int64_t kMostElements = 32768;  // at::internal::GRAIN_SIZE

// Whether a rule knows something of the result where an input is not known at all.
bool bears_unknown(Partly partly) {
  switch (partly) {
    case Partly::kAnd:
    case Partly::kOr:
    case Partly::kMul:
    case Partly::kLogicalAnd:
    case Partly::kLogicalOr:
    case Partly::kWhere:
    case Partly::kMaskedFill:
    case Partly::kMoved:
      return true;
    default:
      return false;
  }
}

// The arguments whose elements a kMoved operator moves.
bool is_moved(const OperatorInfo& info, size_t argument) {
  if (info.name == "aten::copy_") return argument == 1;
  if (info.name == "aten::_index_put_impl_") return argument == 0 || argument == 2;
  return argument == 0;
}

bool is_plain_cpu(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kOther(
      {DispatchKey::Python, DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
       DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched,
       DispatchKey::Functionalize});
  return impl->is_cpu() && impl->layout() == at::kStrided && impl->has_storage() &&
         impl->key_set().has(DispatchKey::CPU) && !impl->key_set().has_any(kOther) &&
         !tensor.is_nested();
}

// Which conversions of floating point the device does otherwise.
bool converts_alike(const at::Tensor& from, c10::ScalarType to) {
  if (!from.is_floating_point() || !c10::isIntegralType(to, /*includeBool=*/false)) return true;
  const double most = to == at::kLong    ? 9.2e18
                      : to == at::kInt   ? 2147483000.0
                      : to == at::kShort ? 32767.0
                      : to == at::kChar  ? 127.0
                      : to == at::kByte  ? 255.0
                                         : 0.0;
  const double least = to == at::kByte ? 0.0 : -most;
  const at::Tensor wide = from.to(at::kDouble);
  return at::logical_and(wide.ge(least), wide.le(most)).all().item<bool>();
}

// Without LibTorch's dispatcher, as an operator of the program is about to run.
at::Tensor dense(Place place, caffe2::TypeMeta dtype, unsigned char byte) {
  place.dtype = dtype;
  place.offset = 0;
  int64_t stride = 1;
  for (size_t d = place.sizes.size(); d-- > 0;) {
    place.strides[d] = stride;
    stride *= std::max<int64_t>(place.sizes[d], 1);
  }
  return tensor_in(make_host_storage(static_cast<size_t>(place.numel()) * dtype.itemsize(), byte),
                   place);
}

at::Tensor empty_of(caffe2::TypeMeta dtype) {
  Place place;
  place.sizes = {0};
  place.strides = {1};
  return dense(place, dtype, 0);
}

// Can be resized by the operator.
at::Tensor new_result(const at::Tensor& result) {
  return at::empty({0}, at::TensorOptions(at::kCPU).dtype(result.dtype()));
}

bool all_differ(const at::Tensor& tensor) {
  if (tensor.numel() < 2) return true;
  const at::Tensor sorted = std::get<0>(at::sort(tensor.reshape({-1})));
  return sorted.slice(0, 1).ne(sorted.slice(0, 0, -1)).all().item<bool>();
}

}  // namespace

bool may_compute(const Place& place) {
  return place.numel() <= kMostElements && Shadows::get().may_hold(place);
}

bool Computation::Argument::is_known() const {
  return std::none_of(unknown.begin(), unknown.end(),
                      [](const at::Tensor& mask) { return mask.defined(); });
}

std::optional<Value> Computation::look_at(const at::Tensor& tensor, size_t index) {
  if (!tensor.defined()) return Value{tensor, {}};
  if (!tensor.is_cuda()) {
    if (!is_plain_cpu(tensor) || info_->is_written[index] ||
        (tensor.numel() > kMostElements && info_->name != "aten::copy_"))
      return {};
    any_known_ = true;
    return Value{tensor, {}};
  }
  if (info_->is_out[index]) return Value{empty_of(tensor.dtype()), {}};
  const std::optional<Place> place = Place::of(tensor);
  if (!place) return {};
  Shadows& shadows = Shadows::get();
  if (info_->is_written[index] && !may_compute(*place)) return {};
  if (index == 0 && info_->overwrites) {
    return Value{dense(*place, place->dtype, 0), {}};
  }
  if (std::optional<Value> value = shadows.find(*place)) {
    if (!may_compute(*place)) return {};  // also one expanded to a large one
    if (!value->is_known() && info_->partly == Partly::kNo) return {};
    any_known_ = true;
    return value;
  }
  if (place->numel() == 0) return Value{dense(*place, place->dtype, 0), {}};
  if (!bears_unknown(info_->partly) || !may_compute(*place)) return {};
  if (info_->partly == Partly::kMul &&
      !c10::isIntegralType(c10::typeMetaToScalarType(place->dtype), /*includeBool=*/true)) {
    return {};
  }
  return Value{dense(*place, place->dtype, 0), dense(*place, caffe2::TypeMeta::Make<bool>(), 1)};
}

bool Computation::add(c10::IValue value, size_t index) {
  Argument argument;
  const auto note = [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
    const std::optional<Value> known = look_at(tensor, index);
    if (!known) return {};
    argument.unknown.push_back(known->unknown);
    return known->data;
  };
  if (value.isTensor()) {
    const std::optional<at::Tensor> host = note(value.toTensor());
    if (!host) return false;
    argument.value = *host;
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> hosts;
    for (const at::Tensor& tensor : value.toTensorList()) {
      const std::optional<at::Tensor> host = note(tensor);
      if (!host) return false;
      hosts.push_back(*host);
    }
    argument.value = hosts;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> hosts;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      const std::optional<at::Tensor> host = note(tensor.value_or(at::Tensor()));
      if (!host) return false;
      hosts.push_back(host->defined() ? host : std::nullopt);
    }
    argument.value = hosts;
  } else if (value.isDevice()) {
    argument.value = c10::Device(c10::kCPU);
  } else if (value.isPtrType() && !value.isString() && !value.isIntList() &&
             !value.isDoubleList() && !value.isBoolList() && !value.isList()) {
    return false;  // a symbol, an object
  } else {
    argument.value = std::move(value);
  }
  arguments_.push_back(std::move(argument));
  return true;
}

std::optional<Computation> Computation::of(const OperatorInfo& info,
                                           c10::ArrayRef<const c10::IValue> arguments) {
  Computation result(info);
  result.arguments_.reserve(arguments.size());
  bool has_input = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!result.add(arguments[i], i)) return {};
    has_input |= !result.arguments_.back().unknown.empty() && !info.is_out[i] &&
                 !(i == 0 && info.overwrites);
  }
  if (has_input && !result.any_known_) return {};
  return result;
}

// Whether the device gives the same result.
bool Computation::is_unambiguous() {
  if (info_->name == "aten::copy_") {
    return converts_alike(arguments_[1].value.toTensor(),
                          arguments_[0].value.toTensor().scalar_type());
  }
  if (info_->is_division && arguments_.size() > 2 && arguments_[2].value.isString())
    return is_safe_division();
  if (info_->depends_on_ties) return all_differ(arguments_[0].value.toTensor());
  if (!info_->depends_on_order) return true;
  const at::Tensor self = arguments_[0].value.toTensor();
  const at::Tensor count = at::zeros(self.sizes(), at::kInt);
  if (info_->name == "aten::_index_put_impl_") {
    const at::Tensor values = arguments_[2].value.toTensor();
    if (values.numel() == 1 || arguments_[3].value.toBool()) return !self.is_floating_point();
    count.index_put_(arguments_[1].value.toOptionalTensorList(), at::ones(values.sizes(), at::kInt),
                     /*accumulate=*/true);
  } else if (!arguments_[3].value.isTensor()) {
    return true;  // one value for all
  } else if (arguments_.size() > 4 && !info_->is_out[4]) {
    return false;  // a reduction
  } else {
    const at::Tensor index = arguments_[2].value.toTensor();
    const at::Tensor ones = at::ones(arguments_[3].value.toTensor().sizes(), at::kInt);
    const int64_t dim = arguments_[1].value.toInt();
    if (info_->name.find("index_copy") != std::string::npos) {
      count.index_add_(dim, index, ones);
    } else {
      count.scatter_add_(dim, index, ones);
    }
  }
  return count.le(1).all().item<bool>();
}

// The CPU traps where the least integer is divided by -1.
bool Computation::is_safe_division() const {
  const c10::IValue& divisor = arguments_[1].value;
  if (divisor.isTensor()) {
    const at::Tensor& tensor = divisor.toTensor();
    return !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) ||
           tensor.ne(-1).all().item<bool>();
  }
  return divisor.isDouble() || (divisor.isInt() && divisor.toInt() != -1);
}

std::vector<at::Tensor> Computation::call(std::vector<c10::IValue> stack) {
  info_->handle.callBoxed(stack);
  std::vector<at::Tensor> result;
  for (const c10::IValue& value : stack) result.push_back(value.toTensor().contiguous());
  return result;
}

// The same operator on the masks says where the unknown elements have gone.
at::Tensor Computation::moved_unknown(const at::Tensor& result) {
  if (info_->name == "aten::copy_") return mask(1).expand(result.sizes());
  std::vector<c10::IValue> stack;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    if (info_->is_out[i]) {
      stack.emplace_back(at::empty({0}, at::TensorOptions(at::kCPU).dtype(at::kBool)));
    } else if (!is_moved(*info_, i)) {
      if (!argument.is_known()) return {};
      stack.push_back(argument.value);
    } else if (argument.value.isTensorList()) {
      c10::List<at::Tensor> masks;
      for (size_t k = 0; k < argument.unknown.size(); ++k) {
        masks.push_back(argument.unknown[k].defined()
                            ? argument.unknown[k]
                            : at::zeros(argument.value.toTensorList().get(k).sizes(), at::kBool));
      }
      stack.emplace_back(masks);
    } else {
      stack.emplace_back(mask(i).defined()
                             ? mask(i).clone()
                             : at::zeros(argument.value.toTensor().sizes(), at::kBool));
    }
  }
  return call(std::move(stack)).at(0);
}

// Where the one result is not known; undefined if nothing of it is known.
at::Tensor Computation::unknown_of(const at::Tensor& result) {
  const auto data = [&](size_t i) { return arguments_[i].value.toTensor(); };
  const auto mask_or_zeros = [&](size_t i) {
    return mask(i).defined() ? mask(i) : at::zeros({}, at::kBool);
  };
  const auto decides = [&](size_t i) {
    // As the operator sees it.
    const at::Tensor value = data(i).to(result.scalar_type());
    switch (info_->partly) {
      case Partly::kOr:
        return at::logical_and(result.scalar_type() == at::kBool ? value : value.eq(-1),
                               mask_or_zeros(i).logical_not());
      case Partly::kLogicalOr:
        return at::logical_and(data(i).ne(0), mask_or_zeros(i).logical_not());
      case Partly::kLogicalAnd:
        return at::logical_and(data(i).eq(0), mask_or_zeros(i).logical_not());
      default:
        return at::logical_and(value.eq(0), mask_or_zeros(i).logical_not());
    }
  };
  Partly partly = info_->partly;
  const bool is_integral = c10::isIntegralType(result.scalar_type(), /*includeBool=*/true);
  const bool decides_alone = partly == Partly::kAnd || partly == Partly::kOr ||
                             partly == Partly::kMul || partly == Partly::kLogicalAnd ||
                             partly == Partly::kLogicalOr;
  if (decides_alone && (!is_integral || !arguments_[1].value.isTensor()))
    partly = Partly::kPointwise;
  switch (partly) {
    case Partly::kPointwise: {
      at::Tensor unknown = at::zeros(result.sizes(), at::kBool);
      for (const Argument& argument : arguments_) {
        for (const at::Tensor& mask : argument.unknown) {
          if (mask.defined()) unknown = at::logical_or(unknown, mask.expand(result.sizes()));
        }
      }
      return unknown;
    }
    case Partly::kAnd:
    case Partly::kOr:
    case Partly::kMul:
    case Partly::kLogicalAnd:
    case Partly::kLogicalOr:
      return at::logical_and(at::logical_or(mask_or_zeros(0), mask_or_zeros(1)),
                             at::logical_or(decides(0), decides(1)).logical_not());
    case Partly::kWhere:
      if (arguments_.size() < 3 || !arguments_[1].value.isTensor()) return {};
      return at::logical_or(at::where(data(0).to(at::kBool), mask_or_zeros(1), mask_or_zeros(2)),
                            mask_or_zeros(0));
    case Partly::kMaskedFill: {
      const at::Tensor masked = data(1).to(at::kBool);
      at::Tensor unknown =
          at::logical_or(at::logical_and(mask_or_zeros(0), masked.logical_not()), mask_or_zeros(1));
      if (arguments_[2].value.isTensor())
        unknown = at::logical_or(unknown, at::logical_and(masked, mask_or_zeros(2)));
      return unknown;
    }
    case Partly::kMoved:
      return moved_unknown(result);
    case Partly::kAll:
      return result.ne(0);
    case Partly::kAny:
      return result.eq(0);
    case Partly::kNo:
      break;
  }
  return {};
}

bool Computation::answer() {
  std::vector<c10::IValue> stack;
  for (const Argument& argument : arguments_) stack.push_back(argument.value);
  info_->handle.callBoxed(stack);
  return stack.at(0).toBool();
}

std::vector<Value> Computation::run() {
  if (!is_unambiguous()) return {};
  bool all_known = true;
  std::vector<c10::IValue> stack;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    all_known &= argument.is_known();
    if (info_->is_out[i] && argument.value.isTensor()) {
      stack.emplace_back(new_result(argument.value.toTensor()));
    } else if (info_->is_written[i] && argument.value.isTensor()) {
      stack.emplace_back(argument.value.toTensor().clone());
    } else if (info_->partly == Partly::kAll && !argument.is_known()) {
      stack.emplace_back(argument.value.toTensor().masked_fill(mask(i), 1));
    } else {
      stack.push_back(argument.value);
    }
  }
  const std::vector<at::Tensor> results = call(std::move(stack));
  std::vector<Value> values;
  if (all_known) {
    for (const at::Tensor& result : results) values.push_back({result, {}});
    return values;
  }
  if (results.size() != 1) return {};
  const at::Tensor unknown = unknown_of(results[0]);
  if (!unknown.defined()) return {};
  values.push_back({results[0], unknown.expand(results[0].sizes()).contiguous()});
  return values;
}

}  // namespace memledger::virtual_gpu
