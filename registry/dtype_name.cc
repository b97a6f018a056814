#include "registry/dtype_name.h"

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

}  // namespace memledger
