#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace memledger::runner {

// A temporary folder of our own, removed at the end with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "memledger-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Empty where it could not be made; errno says why.
  const std::string& path() const { return path_; }
  // Leaves the folder where it is.
  void release() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace memledger::runner
