#pragma once

// The functions of the Python program in this process that a line profile may show: registered by
// LineProfiler::add_python_function(), and by `memledger run -f` (runner/inside/python_lines.h).
// Their lines are read by python_frames.h. This part needs no Python and no LibTorch.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger {

struct ToldFunction {
  std::string name;    // qualified, without `<locals>`: Net.forward
  std::string module;  // __main__
  std::string file;    // absolute, or what the program calls it: <string>
  int64_t first = 0;   // the first and the last line of its source
  int64_t last = 0;
  std::string frame_name = {};  // what its frames are called: forward; empty: the name's last part

  // Returns whether the qualified name, with the module before it or the file's stem, ends with
  // these parts: `forward`, `Net.forward` and `train.Net.forward`, or with `::` between them.
  bool is_named(std::string_view wanted) const;
};

// A call that runs.
struct PythonCall {
  uint32_t function = 0;
  int64_t line = 0;  // where it is now

  friend bool operator<(PythonCall a, PythonCall b) {
    return a.function != b.function ? a.function < b.function : a.line < b.line;
  }
};

// The calls of one thread, outermost first.
struct PythonCalls {
  // The thread of the frames: in backward, the one that waits for it. No two that live have the
  // same number.
  uint64_t thread = 0;
  std::vector<PythonCall> calls;
};

// Thread-safe. Without memory, a function is missing.
class PythonFunctions {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Reads the calling thread's calls of the functions. Called with no lock held.
  using ReadCalls = void (*)(PythonCalls& calls);
  static void set_reader(ReadCalls reader) noexcept;
  // Returns whether there is a reader.
  static bool are_read() noexcept;
  static PythonCalls read_calls();

  // Returns the function's number, the same for the same frame name, file and first line, as
  // compiled code has them, too; kNone without memory.
  static uint32_t add(const ToldFunction& function) noexcept;
  // Returns the number of the function with this frame name, file and first line, or kNone.
  static uint32_t find(std::string_view frame_name, std::string_view file, int64_t first) noexcept;
  // Returns how many functions there are: whoever remembers that one is missing asks again when
  // there are more.
  static uint32_t count() noexcept;
  // Returns whether there is one for which is_named() holds; false without memory.
  static bool has(std::string_view wanted) noexcept;
  // Returns the functions by number.
  static std::vector<ToldFunction> all();
  // Adds a name that is much like one that is not there.
  static void add_near(std::string_view name) noexcept;
  static std::vector<std::string> near();
};

}  // namespace memledger
