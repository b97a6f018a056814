#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace memledger::testing {

// An empty folder in $TEST_TMPDIR, else in the system's, removed with all that is in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* const base = ::getenv("TEST_TMPDIR");
    path_ =
        (base != nullptr ? std::filesystem::path(base) : std::filesystem::temp_directory_path()) /
        "memledger_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), "cannot make " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Returns the path of a file in it.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Returns the paths of what is in it, or in a folder in it.
  std::vector<std::string> files(const std::string& folder = "") const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(*this / folder))
      paths.push_back(entry.path().string());
    return paths;
  }

 private:
  std::string path_;
};

}  // namespace memledger::testing
