#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// The end of what a program has written, whatever it has written before.
class OutputTail {
 public:
  void add(std::string_view text);
  // Returns the last lines, at most `lines`. Very long ones are cut to their end.
  std::string last_lines(int lines) const;

 private:
  std::string text_;
};

// A program that runs alongside us: its standard input is an empty file, its output is read by us,
// and it does not outlive us. Processes that it starts end with it.
class ChildProcess {
 public:
  struct End {
    int status = 0;  // as a shell has it: 128 + signal
    bool timed_out = false;
    bool read_input = false;  // or tried to, as far as the file system notes it
  };

  // Forks, and calls `become` in the child, which becomes the program; what it returns is the
  // child's exit status. Makes the input file. By `tag`, NAME=VALUE of a variable that `become`
  // gives to the program, the processes that the program starts are known. Where this process has
  // other threads, `become` may only do what is safe in a signal handler. `ends_itself`: at SIGTERM
  // the child ends all that it has started, and then itself.
  static absl::StatusOr<ChildProcess> start(const std::string& input_file, std::string tag,
                                            bool ends_itself, const std::function<int()>& become);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Reads what the program has written. Returns true once it has ended, and `end()` is known.
  bool poll();
  // Ends the program and all that it started.
  void kill(bool timed_out = false);

  // Returns once one of them has written something or ended, or the time is over.
  static void wait_for_any(const std::vector<const ChildProcess*>& children,
                           std::chrono::milliseconds at_most);

  std::chrono::steady_clock::duration age() const {
    return std::chrono::steady_clock::now() - began_;
  }
  const End& end() const { return end_; }
  const OutputTail& output() const { return output_; }

 private:
  ChildProcess(pid_t process, int output, std::string input_file, std::string tag,
               bool ends_itself);
  void read_output();
  void end_descendants() const;

  pid_t process_;  // 0: ended
  int process_descriptor_ = -1;
  int output_descriptor_;  // -1: all has been read
  std::string input_file_;
  std::string tag_;  // NAME=VALUE
  bool ends_itself_;
  OutputTail output_;
  End end_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace memledger::runner
