#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace memledger {

// Returns Python's name of a dtype without `torch.`: float32, int64, complex64. Returns LibTorch's
// own name where Python has none, and ? for Undefined.
std::string dtype_name(c10::ScalarType dtype);

// Returns the name with `torch.`, as all formats spell it: torch.float32. Returns nothing for an
// unknown dtype, Undefined included.
std::optional<std::string> known_dtype(const std::optional<c10::ScalarType>& dtype);

// The same for text, where an unknown dtype is ?.
std::string dtype_text(const std::optional<c10::ScalarType>& dtype);

}  // namespace memledger
