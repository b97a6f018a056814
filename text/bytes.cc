#include "text/bytes.h"

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

std::string size_in_words(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes != 0 && std::abs(bytes) < 0.05) return fmt::format("{:.2g} B", bytes);
  size_t unit = 0;
  // 1023.96 would read as 1024.0.
  while (std::abs(bytes) >= 1023.95 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace memledger
