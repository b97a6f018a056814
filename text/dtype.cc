#include "text/dtype.h"

#include <exception>

namespace memledger {

std::string dtype_name(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return "?";
  try {
    // A string or a view of one, by LibTorch's release.
    return std::string(c10::getDtypeNames(dtype).first);
  } catch (const std::exception&) {
    return c10::toString(dtype);
  }
}

std::optional<std::string> known_dtype(const std::optional<c10::ScalarType>& dtype) {
  if (!dtype.has_value() || *dtype == c10::ScalarType::Undefined) return std::nullopt;
  return "torch." + dtype_name(*dtype);
}

std::string dtype_text(const std::optional<c10::ScalarType>& dtype) {
  return known_dtype(dtype).value_or("?");
}

}  // namespace memledger
