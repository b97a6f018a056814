#pragma once

// Has failed checks of doctest print shapes, and memledger's enumerations by name: each that has a
// to_string() and no operator<< of its own. Include it after doctest's header.

#include <c10/util/DimVector.h>

#include <ostream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "text/shape.h"

namespace doctest {

template <>
struct StringMaker<c10::DimVector> {
  static String convert(const c10::DimVector& sizes) {
    return memledger::shape_text(sizes).c_str();
  }
};

}  // namespace doctest

namespace memledger {

template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>,
          typename = decltype(std::string_view(to_string(std::declval<Enum>())))>
std::ostream& operator<<(std::ostream& out, Enum value) {
  return out << std::string_view(to_string(value));
}

}  // namespace memledger
