// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/computation.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <cstring>
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

at::Tensor copy_of_scalar(const at::Tensor& tensor) {
  Place place;
  place.dtype = tensor.dtype();
  at::Tensor copy = dense(place, place.dtype, 0);
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), place.item_bytes());
  // It decides on the type of a result otherwise than other tensors do.
  copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

// An argument that holds no tensor; nothing for symbols and objects.
std::optional<c10::IValue> plain_value(c10::IValue value) {
  if (value.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
  if (value.isGenerator()) return c10::IValue();
  if (value.isPtrType() && !value.isString() && !value.isIntList() && !value.isDoubleList() &&
      !value.isBoolList() && !value.isList()) {
    return {};
  }
  return value;
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

Operand Operand::of(const at::Tensor& tensor) {
  Operand result;
  if (!tensor.defined()) {
    result.kind = Kind::kUndefined;
  } else if (tensor.is_cuda()) {
    result.kind = Kind::kDevice;
    result.place = Place::of(tensor);
    result.dtype = tensor.dtype();
  } else if (is_plain_cpu(tensor)) {
    result.kind = Kind::kHost;
    result.host = tensor;
  }
  return result;
}

bool RecordedArguments::add(Argument& argument, const at::Tensor& tensor) {
  Operand operand = Operand::of(tensor);
  switch (operand.kind) {
    case Operand::Kind::kUndefined:
      break;
    case Operand::Kind::kDevice:
      if (!operand.place) break;
      c10::raw::weak_intrusive_ptr::incref(operand.place->storage);
      owners_.push_back(c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(operand.place->storage));
      break;
    case Operand::Kind::kHost:
      // Others are read when the graph is launched.
      if (tensor.dim() != 0) return false;
      operand.host = copy_of_scalar(tensor);
      break;
    case Operand::Kind::kOther:
      return false;
  }
  argument.operands.push_back(std::move(operand));
  return true;
}

std::optional<RecordedArguments> RecordedArguments::of(c10::ArrayRef<const c10::IValue> arguments) {
  RecordedArguments result;
  result.arguments_.reserve(arguments.size());
  for (const c10::IValue& value : arguments) {
    Argument& argument = result.arguments_.emplace_back();
    if (value.isTensor()) {
      argument.kind = Kind::kTensor;
      if (!result.add(argument, value.toTensor())) return {};
    } else if (value.isTensorList()) {
      argument.kind = Kind::kTensors;
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (!result.add(argument, tensor)) return {};
      }
    } else if (value.isOptionalTensorList()) {
      argument.kind = Kind::kOptionalTensors;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
        if (!result.add(argument, tensor.value_or(at::Tensor()))) return {};
      }
    } else {
      const std::optional<c10::IValue> plain = plain_value(value);
      if (!plain) return {};
      argument.value = *plain;
    }
  }
  return result;
}

void RecordedArguments::add_written(const OperatorInfo& info, std::vector<Place>& places) const {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!info.is_written[i] || info.is_returned[i]) continue;
    for (const Operand& operand : arguments_[i].operands) {
      if (operand.place) places.push_back(*operand.place);
    }
  }
}

std::optional<Value> Computation::look_at(const Operand& operand, size_t index) {
  switch (operand.kind) {
    case Operand::Kind::kUndefined:
      return Value{at::Tensor(), {}};
    case Operand::Kind::kOther:
      return {};
    case Operand::Kind::kDevice:
      if (info_->is_out[index] && info_->is_returned[index])
        return Value{empty_of(operand.dtype), {}};
      if (!operand.place) return {};
      return look_at_device(*operand.place, index);
    case Operand::Kind::kHost:
      break;
  }
  if (info_->is_written[index] ||
      (operand.host.numel() > kMostElements && info_->name != "aten::copy_"))
    return {};
  any_known_ = true;
  return Value{operand.host, {}};
}

std::optional<Value> Computation::look_at_device(const Place& place, size_t index) {
  if (info_->is_written[index]) {
    if (!may_compute(place)) return {};
    if (!info_->is_returned[index]) written_.push_back(place);
  }
  if ((index == 0 && info_->overwrites) || index == overwritten_)
    return Value{dense(place, place.dtype, 0), {}};
  Shadows& shadows = Shadows::get();
  if (std::optional<Value> value = shadows.find(place)) {
    if (!may_compute(place)) return {};  // also one expanded to a large one
    if (!value->is_known() && info_->partly == Partly::kNo) return {};
    any_known_ = true;
    return value;
  }
  if (place.numel() == 0) return Value{dense(place, place.dtype, 0), {}};
  if (!bears_unknown(info_->partly) || !may_compute(place)) return {};
  if (info_->partly == Partly::kMul &&
      !c10::isIntegralType(c10::typeMetaToScalarType(place.dtype), /*includeBool=*/true)) {
    return {};
  }
  return Value{dense(place, place.dtype, 0), dense(place, caffe2::TypeMeta::Make<bool>(), 1)};
}

bool Computation::add(c10::IValue value, size_t index) {
  Argument argument;
  const auto note = [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
    const std::optional<Value> known = look_at(Operand::of(tensor), index);
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
  } else {
    std::optional<c10::IValue> plain = plain_value(std::move(value));
    if (!plain) return false;
    argument.value = *std::move(plain);
  }
  arguments_.push_back(std::move(argument));
  return true;
}

bool Computation::add(const RecordedArguments::Argument& recorded, size_t index) {
  using Kind = RecordedArguments::Kind;
  Argument argument;
  std::vector<at::Tensor> hosts;
  for (const Operand& operand : recorded.operands) {
    const std::optional<Value> known = look_at(operand, index);
    if (!known) return false;
    argument.unknown.push_back(known->unknown);
    hosts.push_back(known->data);
  }
  switch (recorded.kind) {
    case Kind::kTensor:
      argument.value = hosts[0];
      break;
    case Kind::kTensors:
      argument.value = c10::List<at::Tensor>(hosts);
      break;
    case Kind::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (const at::Tensor& host : hosts)
        list.push_back(host.defined() ? std::optional<at::Tensor>(host) : std::nullopt);
      argument.value = list;
      break;
    }
    case Kind::kOther:
      argument.value = recorded.value;
      break;
  }
  arguments_.push_back(std::move(argument));
  return true;
}

// Where two writes go to one place, the second would not see the first.
bool Computation::writes_twice() const {
  for (size_t i = 0; i < written_.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (written_[i].storage == written_[k].storage && written_[i].offset == written_[k].offset)
        return true;
    }
  }
  return false;
}

// Whether anything of its inputs is known.
bool Computation::is_worthwhile() const {
  bool has_input = false;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    has_input |=
        !arguments_[i].unknown.empty() && !info_->is_out[i] && !(i == 0 && info_->overwrites);
  }
  return !has_input || any_known_;
}

std::optional<Computation> Computation::of(const OperatorInfo& info,
                                           c10::ArrayRef<const c10::IValue> arguments) {
  Computation result(info);
  result.arguments_.reserve(arguments.size());
  if (info.is_first_step && arguments[*info.is_first_step].toBool())
    result.overwritten_ = info.momentum_buffers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!result.add(arguments[i], i)) return {};
  }
  if (!result.is_worthwhile() || result.writes_twice()) return {};
  return result;
}

std::optional<Computation> Computation::of(const OperatorInfo& info,
                                           const RecordedArguments& arguments) {
  Computation result(info);
  result.arguments_.reserve(arguments.arguments_.size());
  if (info.is_first_step && arguments.arguments_[*info.is_first_step].value.toBool())
    result.overwritten_ = info.momentum_buffers;
  for (size_t i = 0; i < arguments.arguments_.size(); ++i) {
    if (!result.add(arguments.arguments_[i], i)) return {};
  }
  if (!result.is_worthwhile() || result.writes_twice()) return {};
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
  // Where it does not sort, the order is the device's.
  if (info_->name == "aten::_unique2") return arguments_[1].value.toBool();
  if (info_->depends_on_ties) return all_differ(arguments_[0].value.toTensor());
  if (!info_->depends_on_order) return true;
  const at::Tensor self = arguments_[0].value.toTensor();
  const at::Tensor count = at::zeros(self.sizes(), at::kInt);
  if (info_->name == "aten::_index_put_impl_") {
    const at::Tensor values = arguments_[2].value.toTensor();
    if (arguments_[3].value.toBool()) return !self.is_floating_point();
    if (values.numel() == 1) return true;  // one value for all
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
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) result.push_back(tensor.contiguous());
    } else {
      result.push_back(value.toTensor().contiguous());
    }
  }
  return result;
}

// Whether the program lets the device round the factors of products (TF32).
bool Computation::is_rounded_product() const {
  const auto is_float = [](const Argument& argument) {
    return argument.value.isTensor() && argument.value.toTensor().defined() &&
           argument.value.toTensor().scalar_type() == at::kFloat;
  };
  if (std::none_of(arguments_.begin(), arguments_.end(), is_float)) return false;
  try {
    return at::globalContext().allowTF32CuBLAS();
  } catch (const std::exception&) {  // it has said so in two ways that differ
    return true;
  }
}

// The device adds products of half precision in full precision, too. Not every CPU has them.
std::vector<at::Tensor> Computation::call_widened(std::vector<c10::IValue> stack) {
  std::optional<at::ScalarType> narrow;
  for (c10::IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor tensor = value.toTensor();
    if (!c10::isReducedFloatingType(tensor.scalar_type())) continue;
    narrow = tensor.scalar_type();
    value = tensor.to(at::kFloat);
  }
  std::vector<at::Tensor> results = call(std::move(stack));
  if (narrow) {
    for (at::Tensor& result : results) {
      if (result.scalar_type() == at::kFloat) result = result.to(*narrow);
    }
  }
  return results;
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

std::vector<Value> Computation::run(const RandomNumbers* numbers) {
  if (info_->distribution != Distribution::kNone) {
    std::vector<c10::IValue> values;
    for (const Argument& argument : arguments_) {
      if (!argument.is_known()) return {};
      values.push_back(argument.value);
    }
    if (numbers == nullptr || !values[0].isTensor()) return {};
    const at::Tensor drawn = draw(info_->distribution, values[0].toTensor(), values, *numbers);
    if (!drawn.defined()) return {};
    return {Value{drawn, {}}};
  }
  if (!is_unambiguous() || (info_->is_product && is_rounded_product())) return {};
  bool all_known = true;
  std::vector<c10::IValue> stack;
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    all_known &= argument.is_known();
    if (info_->is_out[i] && info_->is_returned[i] && argument.value.isTensor()) {
      stack.emplace_back(new_result(argument.value.toTensor()));
    } else if (info_->is_written[i] && argument.value.isTensor()) {
      stack.emplace_back(argument.value.toTensor().clone());
      if (!info_->is_returned[i]) written.push_back(stack.back().toTensor());
    } else if (info_->is_written[i] && argument.value.isTensorList()) {
      c10::List<at::Tensor> copies;
      for (const at::Tensor& tensor : argument.value.toTensorList()) {
        copies.push_back(tensor.clone());
        if (!info_->is_returned[i]) written.push_back(copies.get(copies.size() - 1));
      }
      stack.emplace_back(copies);
    } else if (info_->partly == Partly::kAll && !argument.is_known()) {
      stack.emplace_back(argument.value.toTensor().masked_fill(mask(i), 1));
    } else {
      stack.push_back(argument.value);
    }
  }
  std::vector<at::Tensor> results =
      info_->is_product ? call_widened(std::move(stack)) : call(std::move(stack));
  for (const at::Tensor& tensor : written) results.push_back(tensor.contiguous());
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
