#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace memledger {

// Returns `count` sizes as Python prints a torch.Size: (256, 3), (5,), () for a scalar. A negative
// size is a symbolic one, printed as ?.
std::string shape_text(const int64_t* sizes, size_t count);

// Takes any container of sizes, or an optional one: (?) where the shape is unknown.
template <typename Sizes>
std::string shape_text(const Sizes& sizes) {
  return shape_text(sizes.data(), sizes.size());
}
template <typename Sizes>
std::string shape_text(const std::optional<Sizes>& sizes) {
  return sizes.has_value() ? shape_text(*sizes) : "(?)";
}

// The same for CSV, where an unknown shape is nothing.
template <typename Sizes>
std::optional<std::string> known_shape(const std::optional<Sizes>& sizes) {
  if (!sizes.has_value()) return std::nullopt;
  return shape_text(*sizes);
}

}  // namespace memledger
