#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace memledger::runner {

// A program that runs beside us: its standard input is an empty file, its output goes to a file,
// and it does not outlive us. Processes that it starts end with it.
class ChildProcess {
 public:
  struct End {
    int status = 0;  // as a shell has it: 128 + signal
    bool timed_out = false;
    bool read_input = false;  // or tried to, as far as the file system notes it
  };

  // Forks, and calls `become` in the child, which becomes the program; what it returns is the
  // child's exit status. Makes the two files. By `tag`, NAME=VALUE of a variable that `become`
  // gives to the program, the processes that the program starts are known. Where this process has
  // other threads, `become` may only do what is safe in a signal handler.
  static absl::StatusOr<ChildProcess> start(const std::string& input_file,
                                            const std::string& output_file, std::string tag,
                                            const std::function<int()>& become);

  // Returns true once the program has ended, and `end()` is known.
  bool poll();
  // Ends the program and all that it started.
  void kill(bool timed_out = false);

  std::chrono::steady_clock::duration age() const {
    return std::chrono::steady_clock::now() - began_;
  }
  const End& end() const { return end_; }

 private:
  ChildProcess(pid_t process, std::string input_file, std::string tag)
      : process_(process), input_file_(std::move(input_file)), tag_(std::move(tag)) {}
  void kill_descendants() const;

  pid_t process_;  // 0: ended
  std::string input_file_;
  std::string tag_;  // NAME=VALUE
  End end_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// Returns the last lines of a file, at most `lines`; empty where it cannot be read.
std::string last_lines(const std::string& path, int lines);

}  // namespace memledger::runner
