#pragma once

// Faults of files and messages, and names that try to be more than names.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace memledger::testing {

namespace fs = std::filesystem;

inline std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Bazel's folder for the test; without it, one whose name nobody can foresee.
inline fs::path temporary_folder() {
  if (const char* const given = std::getenv("TEST_TMPDIR")) return given;
  static const std::string made = [] {
    std::string name = fs::temp_directory_path() / "memledger-test-XXXXXX";
    return mkdtemp(name.data()) == nullptr ? throw std::runtime_error("no folder") : name;
  }();
  return made;
}

// Makes an empty folder for the test.
inline fs::path fresh_folder(const std::string& name) {
  fs::path folder = temporary_folder() / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Runs `body` in a child of fork. Returns its exit status, or 128 and the signal's number.
inline int status_of_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct HostileName {
  std::string what;
  std::string name;
};

inline std::vector<HostileName> hostile_names() {
  return {
      {"a line break", "a\nTotal Tensors: 0 \tUsed Memory: 0.00B\r\nb"},
      {"an escape sequence", "a\x1b[2J\x1b]0;title\x07\x7f"},
      {"a C1 control",
       "a\xc2\x9b"
       "31m"},
      {"an override of direction",
       "a\xe2\x80\xae"
       "b\xe2\x81\xa6"},
      {"a formula", "=HYPERLINK(\"http://x\",\"y\")"},
      {"a formula behind a sign", "+1"},
      {"a formula behind a tab", "\t=1"},
      {"mark-up", "</script><b a=\"'\">&"},
      {"10 kB", std::string(10000, 'n') + ".weight"},
      {"bytes that are no UTF-8", "caf\xe9 \xff\xc0\xaf \xed\xa0\x80"},
      {"a zero byte", std::string("a\0b", 3)},
  };
}

// Returns what is wrong with a text (control characters other than line ends and tabs, marks of
// direction, no UTF-8), or "".
inline std::string harm_in(std::string_view text) {
  if (valid_utf8(text) != text) return "no UTF-8";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
      return "control character " + std::to_string(c);
  }
  for (const std::string_view mark : {"\xc2\x9b", "\xe2\x80\xae", "\xe2\x81\xa6"}) {
    if (text.find(mark) != std::string_view::npos) return "a C1 control or a mark of direction";
  }
  return "";
}

}  // namespace memledger::testing
