#pragma once

#include <charconv>
#include <string>
#include <string_view>

// The newest release of LibTorch that memledger was tested with is 2.15. The newest pin of
// third_party/libtorch_versions.bzl is the same.
#ifndef MEMLEDGER_NEWEST_LIBTORCH_MINOR
#define MEMLEDGER_NEWEST_LIBTORCH_MINOR 15
#endif

namespace memledger {

// Returns whether nobody has tried memledger with this release. What it reads by its own copy of
// one of LibTorch's layouts, which no compiler compares, it must then leave alone.
constexpr bool is_newer_than_known(int major, int minor) {
  return major > 2 || (major == 2 && minor > MEMLEDGER_NEWEST_LIBTORCH_MINOR);
}

// Returns a note on `release`, such as "2.16.0", if it is newer than those known; empty for a known
// one.
inline std::string newer_libtorch_note(std::string_view release) {
  int major = 0;
  int minor = 0;
  const char* const end = release.data() + release.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): it reads no further than `end`.
  const std::from_chars_result first = std::from_chars(release.data(), end, major);
  if (first.ptr != end) std::from_chars(first.ptr + 1, end, minor);
  if (!is_newer_than_known(major, minor)) return "";
  return "LibTorch " + std::string(release) + " is newer than 2." +
         std::to_string(MEMLEDGER_NEWEST_LIBTORCH_MINOR) +
         ", the newest that this memledger was tested with: cuBLAS's workspaces have no names here";
}

}  // namespace memledger
