// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "virtual_gpu/values/distinct.h"

#include <algorithm>
#include <limits>

namespace memledger::virtual_gpu {
namespace {

constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

uint64_t sum(uint64_t a, uint64_t b) { return a > kUnbounded - b ? kUnbounded : a + b; }

uint64_t product(uint64_t a, uint64_t b) {
  return a != 0 && b > kUnbounded / a ? kUnbounded : a * b;
}

bool is_integral(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

uint64_t values_of(caffe2::TypeMeta dtype) {
  if (c10::typeMetaToScalarType(dtype) == at::kBool) return 2;
  return dtype.itemsize() < sizeof(uint64_t) ? uint64_t{1} << (8 * dtype.itemsize()) : kUnbounded;
}

// The whole storage counts, read as the place's type.
uint64_t max_in_storage(const Place& place) {
  const uint64_t elements = place.storage_bytes / std::max<size_t>(place.item_bytes(), 1);
  const std::optional<uint64_t> noted = Shadows::get().find_distinct(place);
  return std::min({elements, values_of(place.dtype), noted.value_or(kUnbounded)});
}

bool is_whole_storage(const at::Tensor& tensor, const Place& place) {
  return place.offset == 0 &&
         static_cast<size_t>(place.numel()) * place.item_bytes() == place.storage_bytes &&
         tensor.is_non_overlapping_and_dense();
}

// Whether an operator's results cannot be integers that were not counted: fractions in, fractions
// out, and bools of comparisons need no note.
bool has_fractions(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 && !is_integral(tensor);
}

// Values that come from an argument; nothing where they are not counted.
std::optional<uint64_t> max_of(const c10::IValue& argument) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    if (!tensor.defined() || has_fractions(tensor)) return {};
    return max_distinct(tensor);
  }
  if (!argument.isTensorList()) return 1;  // a scalar
  uint64_t count = 0;
  for (const at::Tensor& tensor : argument.toTensorList()) {
    if (!tensor.defined() || has_fractions(tensor)) return {};
    count = sum(count, max_distinct(tensor));
  }
  return count;
}

// Each result is a function of one element of each tensor.
std::optional<uint64_t> max_of_pointwise(const OperatorInfo& info,
                                         c10::ArrayRef<const c10::IValue> arguments) {
  uint64_t count = 1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensorList() || arguments[i].isOptionalTensorList()) return {};
    if (info.is_out[i] || !arguments[i].isTensor()) continue;
    const std::optional<uint64_t> of_one = max_of(arguments[i]);
    if (!of_one) return {};
    count = product(count, *of_one);
  }
  return count;
}

std::optional<uint64_t> max_of_moved(const OperatorInfo& info,
                                     c10::ArrayRef<const c10::IValue> arguments) {
  uint64_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if ((info.moved_arguments >> i & 1) == 0) continue;
    const std::optional<uint64_t> of_one = max_of(arguments[i]);
    if (!of_one) return {};
    count = sum(count, *of_one);
  }
  return std::max<uint64_t>(count, 1);
}

bool accumulates(const OperatorInfo& info, c10::ArrayRef<const c10::IValue> arguments) {
  return info.name == "aten::_index_put_impl_" && arguments[3].toBool();
}

}  // namespace

uint64_t max_distinct(const at::Tensor& tensor) {
  const auto elements = static_cast<uint64_t>(tensor.numel());
  if (elements < 2 || !is_integral(tensor)) return elements;
  const std::optional<Place> place = tensor.is_cuda() ? Place::of(tensor) : std::nullopt;
  return std::min(elements, place ? max_in_storage(*place) : values_of(tensor.dtype()));
}

std::optional<DistinctResult> DistinctResult::of(const OperatorInfo& info,
                                                 c10::ArrayRef<const c10::IValue> arguments) {
  if (info.distinct == Distinct::kUnknown || arguments.empty() ||
      arguments.size() != info.is_written.size() || accumulates(info, arguments))
    return {};
  const bool is_in_place = info.is_written[0] && !info.is_out[0];
  const bool has_self = arguments[0].isTensor() && arguments[0].toTensor().defined();
  if (is_in_place && (!has_self || has_fractions(arguments[0].toTensor()))) return {};
  const std::optional<uint64_t> count = info.distinct == Distinct::kPointwise
                                            ? max_of_pointwise(info, arguments)
                                            : max_of_moved(info, arguments);
  if (!count) return {};
  DistinctResult result(*count);
  const bool keeps_self = info.distinct == Distinct::kMovedInto;
  if (is_in_place) {
    const at::Tensor& self = arguments[0].toTensor();
    const std::optional<Place> place = Place::of(self);
    if (!place) return {};
    result.is_of_storage_ = true;
    if (keeps_self || !is_whole_storage(self, *place))
      result.count_ = sum(result.count_, max_in_storage(*place));
  } else if (keeps_self) {
    const std::optional<uint64_t> of_self = max_of(arguments[0]);
    if (!of_self) return {};
    result.count_ = sum(result.count_, *of_self);
  }
  return result;
}

std::optional<Place> DistinctResult::keep(const at::Tensor& result) const {
  if (!result.defined() || !result.is_cuda() || !is_integral(result)) return {};
  std::optional<Place> place = Place::of(result);
  if (!place || (!is_of_storage_ && !is_whole_storage(result, *place))) return {};
  if (count_ >= max_in_storage(*place)) return {};
  Shadows::get().set_distinct(*place, count_);
  return place;
}

}  // namespace memledger::virtual_gpu
