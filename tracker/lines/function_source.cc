#include "tracker/lines/function_source.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace memledger {

std::string find_source(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path;
  const fs::path relative = path;
  if (const char* const folders = std::getenv("MEMLEDGER_SOURCES")) {
    std::istringstream in(folders);
    for (std::string text; std::getline(in, text, ':');) {
      if (text.empty()) continue;
      const fs::path folder = text;
      // Compiled elsewhere: /build/app/src/net.cc may be src/net.cc in this folder.
      const fs::path below = relative.relative_path();
      for (auto begin = below.begin(); begin != below.end(); ++begin) {
        fs::path end;
        for (auto part = begin; part != below.end(); ++part) end /= *part;
        if (fs::is_regular_file(folder / end, error)) return folder / end;
      }
    }
  }
  if (relative.is_absolute()) return "";
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path(); !folder.empty();
       folder = folder.parent_path()) {
    if (fs::is_regular_file(folder / relative, error)) return folder / relative;
    if (folder == folder.parent_path()) break;
  }
  return "";
}

std::vector<std::string> source_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

int64_t last_line_of_function(const std::vector<std::string>& lines, int64_t first) {
  if (first < 1 || first > static_cast<int64_t>(lines.size())) return first;
  enum class In { kCode, kString, kCharacter, kComment, kRaw } in = In::kCode;
  std::string raw_end;
  int depth = 0;
  bool begun = false;
  for (size_t i = static_cast<size_t>(first - 1); i < lines.size(); ++i) {
    const std::string& line = lines[i];
    for (size_t j = 0; j < line.size(); ++j) {
      const char c = line[j];
      switch (in) {
        case In::kString:
        case In::kCharacter:
          if (c == '\\') {
            ++j;
          } else if (c == (in == In::kString ? '"' : '\'')) {
            in = In::kCode;
          }
          break;
        case In::kComment:
          if (line.compare(j, 2, "*/") == 0) {
            in = In::kCode;
            ++j;
          }
          break;
        case In::kRaw:
          if (line.compare(j, raw_end.size(), raw_end) == 0) {
            in = In::kCode;
            j += raw_end.size() - 1;
          }
          break;
        case In::kCode:
          if (line.compare(j, 2, "//") == 0) {
            j = line.size();
          } else if (line.compare(j, 2, "/*") == 0) {
            in = In::kComment;
            ++j;
          } else if (line.compare(j, 2, "R\"") == 0) {
            const size_t open = line.find('(', j);
            if (open == std::string::npos) break;
            raw_end = ")" + line.substr(j + 2, open - j - 2) + "\"";
            in = In::kRaw;
            j = open;
          } else if (c == '"') {
            in = In::kString;
          } else if (c == '\'') {
            // 1'000 is a number.
            const bool separates = j > 0 && j + 1 < line.size() &&
                                   std::isxdigit(static_cast<unsigned char>(line[j - 1])) != 0 &&
                                   std::isxdigit(static_cast<unsigned char>(line[j + 1])) != 0;
            if (!separates) in = In::kCharacter;
          } else if (c == '{') {
            ++depth;
            begun = true;
          } else if (c == '}' && --depth <= 0 && begun) {
            return static_cast<int64_t>(i + 1);
          } else if (c == ';' && !begun) {
            return first;  // a declaration
          }
          break;
      }
    }
    if (in == In::kString || in == In::kCharacter) in = In::kCode;
  }
  return first;
}

bool has_code(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos || line.compare(begin, 2, "//") == 0 || line[begin] == '#' ||
      line[begin] == '*')
    return false;
  return line.find_first_not_of(" \t\r{}();,", begin) != std::string::npos;
}

}  // namespace memledger
