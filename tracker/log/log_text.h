#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/names.h"

// The figures and words that log, diff and listing have in common. None depends on the locale.
namespace memledger::log_text {

// Of the Memory column: MiB, shortest decimal with at least one decimal place, cut to 6 characters
// but never inside the integer part; below 0.0001 as 3.815e-06. What Python prints for str(x)[:6],
// save that an exponent is not cut off.
std::string memory(int64_t bytes);

// Of the totals: MiB as {:<7.1f}; ? where unknown.
std::string total(std::optional<int64_t> bytes);

// MiB as Python prints a float: 0.006591796875, 90.0, 3.814697265625e-06.
std::string exact_mib(int64_t bytes);

// (256, 256, 3, 3), (512,), () for a scalar, (?) where unknown.
std::string size(const std::optional<std::vector<int64_t>>& shape);

// torch.float32, as Python writes it; ? where unknown.
std::string dtype(const std::optional<c10::ScalarType>& dtype);

// Local time as 30-Apr-21-20:25:29.
std::string date(std::chrono::system_clock::time_point time);

using memledger::printable;

// Spaces behind, up to `width` characters of UTF-8.
std::string padded(std::string text, size_t width);

}  // namespace memledger::log_text
