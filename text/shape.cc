#include "text/shape.h"

namespace memledger {

std::string shape_text(const int64_t* sizes, size_t count) {
  std::string text = "(";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += ", ";
    text += sizes[i] < 0 ? "?" : std::to_string(sizes[i]);
  }
  return text + (count == 1 ? ",)" : ")");
}

}  // namespace memledger
