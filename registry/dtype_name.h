#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace memledger {

// Python's name of a dtype, without `torch.`: float32, int64, complex64. LibTorch's own name where
// Python has none; ? for Undefined.
std::string dtype_name(c10::ScalarType dtype);

}  // namespace memledger
