#pragma once

// Has failed checks of doctest print shapes, and enumerations by name. Include it after doctest's
// header.

#include <c10/util/DimVector.h>

#include <string>

#include "text/shape.h"

namespace doctest {

template <>
struct StringMaker<c10::DimVector> {
  static String convert(const c10::DimVector& sizes) {
    return memledger::shape_text(sizes).c_str();
  }
};

}  // namespace doctest

// Prints an enumeration by its to_string(); at the top level of a test file:
//   MEMLEDGER_PRINT_BY_NAME(memledger::Phase)
// doctest prints enumerations as numbers, whatever operator<< they have.
#define MEMLEDGER_PRINT_BY_NAME(Enum)                                       \
  template <>                                                               \
  inline doctest::String doctest::toString<Enum, true>(const Enum& value) { \
    return std::string(to_string(value)).c_str();                           \
  }
