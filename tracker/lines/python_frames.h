#pragma once

// Reads which lines of Python functions run. No tracing: at an allocation or free the frames of the
// thread are looked at, so that a debugger, coverage and compiled code are not disturbed, and
// nothing is paid for lines that allocate nothing. What backward's own threads do is of the thread
// that waits for them.

#include <string>
#include <vector>

namespace memledger {

class PythonFrames {
 public:
  // From now on reads the calls of all PythonFunctions, those added later, too. Where there is no
  // Python in the process, nothing. Thread-safe, on any thread.
  static void begin() noexcept;
  // Looks for functions called so as well; names have no dots. `describe` is Python's function that
  // takes a code object and its module's globals, and returns the number of one of the
  // PythonFunctions, or -1. With Python's lock.
  static void describe_with(void* describe, const std::vector<std::string>& frame_names) noexcept;
  // Stops for good, as Python is about to end.
  static void stop() noexcept;
};

// Returns a file as PythonFunctions have it, from what a code object calls it: absolute, but for
// <string> and the like.
std::string absolute_python_file(const std::string& file);

}  // namespace memledger
