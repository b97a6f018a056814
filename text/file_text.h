#pragma once

#include <array>
#include <cstddef>
#include <fstream>
#include <string>

namespace memledger {

// Returns a file's bytes; those that came before an error, so none where it is missing or a folder.
// For small files, and those of /proc, whose size is not known before. Thread-safe.
inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 16384> part;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (file.read(part.data(), part.size()), file.gcount() > 0)
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace memledger
