#include "text/sizes.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>

namespace memledger {

std::string readable_size(int64_t bytes) {
  constexpr std::array<char, 6> kUnits = {'B', 'K', 'M', 'G', 'T', 'P'};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(size) >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f}{}", size, kUnits[unit]);
}

}  // namespace memledger
