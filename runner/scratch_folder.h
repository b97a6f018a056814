#pragma once

#include <string>

namespace memledger::runner {

// A temporary folder of our own, removed at the end with all that is in it, whatever ends this
// process: a process of its own waits for that. Not thread-safe.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Empty where it could not be made; errno says why.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int alive_ = -1;  // its other end is what the remover reads
};

}  // namespace memledger::runner
