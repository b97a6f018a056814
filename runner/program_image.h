#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace memledger::runner {

// A program with its arguments and environment, made before a fork: the child of a process with
// several threads may neither allocate nor touch its environment, as another thread may have held
// their locks.
class ProgramImage {
 public:
  // The environment is a copy of this process's. `folder`: where the program runs; empty: here.
  ProgramImage(std::string file, std::vector<std::string> arguments, std::string folder = "");

  void set(std::string_view name, std::string_view value);
  void set_default(std::string_view name, std::string_view value);
  void unset(std::string_view name);

  // Makes what execve() takes. Nothing may be set, and the image not be moved, from here on.
  void finish();
  // Becomes the program. Async-signal-safe. Returns 126 where that fails.
  int become() const;

 private:
  std::vector<std::string>::iterator find(std::string_view name);

  std::string file_, folder_;
  std::vector<std::string> arguments_, variables_;  // NAME=VALUE
  std::vector<char*> argv_, envp_;
};

}  // namespace memledger::runner
