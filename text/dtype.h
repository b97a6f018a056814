#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace memledger {

// Returns Python's name of a dtype without `torch.`: float32, int64, complex64. LibTorch's own name
// where Python has none; ? for Undefined.
std::string dtype_name(c10::ScalarType dtype);

// Returns the name with `torch.`, as all formats spell it: torch.float32. Nothing where it is
// unknown, Undefined included.
std::optional<std::string> known_dtype(const std::optional<c10::ScalarType>& dtype);

// The same for text: ? where it is unknown.
std::string dtype_text(const std::optional<c10::ScalarType>& dtype);

}  // namespace memledger
