#pragma once

#include <string>
#include <string_view>

namespace memledger {

// Returns `text` with escape(c) instead of each character c for which it is not empty.
template <typename Escape>
std::string escaped(std::string_view text, Escape escape) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const std::string_view other = escape(c);
    if (other.empty()) {
      result += c;
    } else {
      result += other;
    }
  }
  return result;
}

}  // namespace memledger
