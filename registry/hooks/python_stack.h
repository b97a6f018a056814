#pragma once

// The calling thread's Python stack, in a Python program.

#include <cstdint>
#include <vector>

#include "registry/stacks.h"

namespace memledger {

// Frames are kept as addresses that no code can have, so that a StackTable takes them, each place
// of a program once for the life of the process. The code objects of the first 32768 places are
// kept alive, so that each is looked up once.
//
// Thread-safe. Taking one waits for Python's lock, as LibTorch's own recording of stacks does; no
// lock of memledger's may be held. Finding one does not.
class PythonStack {
 public:
  // Returns the frames, innermost first; none outside Python, on a thread that Python does not
  // know, and after stop(). Some 10 µs for 20 frames, a tenth where all
  // were seen before.
  static std::vector<void*> take() noexcept;
  // Takes no more, as Python is about to end.
  static void stop() noexcept;

  // Returns whether Python runs in this process, or did before stop().
  static bool is_in_process() noexcept;

  static bool has(const void* address) noexcept;
  static StackFrame frame_at(const void* address);
  // Returns whether the frame is PyTorch's or Python's own.
  static bool is_foreign(const StackFrame& frame);

  static void lock_for_fork();
  static void unlock_after_fork();
};

}  // namespace memledger
