#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace memledger {

template <typename Visit>
void for_each_tensor_in_list(const c10::IValue& value, const Visit& visit);

// Calls visit(const at::Tensor&) with each tensor of an operator's argument or result, those of
// lists and tuples included; some may be undefined. Allocates nothing.
template <typename Visit>
inline void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isIntrusivePtr()) {  // no number
    for_each_tensor_in_list(value, visit);
  }
}

// Apart from the above, which each operator of a program runs through.
template <typename Visit>
__attribute__((noinline)) void for_each_tensor_in_list(const c10::IValue& value,
                                                       const Visit& visit) {
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) visit(*tensor);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements())
      for_each_tensor(element, visit);
  }
}

}  // namespace memledger
