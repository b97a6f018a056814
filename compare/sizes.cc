#include "compare/sizes.h"

#include <fmt/format.h>

#include "text/bytes.h"

namespace memledger::compare {

std::string size(int64_t bytes) { return readable_size(bytes); }

std::string size_change(int64_t bytes) {
  if (bytes == 0) return "0";
  return bytes < 0 ? "-" + readable_size(-bytes) : "+" + readable_size(bytes);
}

std::string exact_change(int64_t bytes) { return bytes == 0 ? "0" : fmt::format("{:+}", bytes); }

std::string share_of(int64_t change, int64_t before) {
  if (before == 0) return "";
  return fmt::format(" ({:+.2f} %)",
                     100 * static_cast<double>(change) / static_cast<double>(before));
}

}  // namespace memledger::compare
