#pragma once

#include <cstdint>

namespace memledger::core {

// Classifies the other threads of the process, which it reads from /proc/self/task.
//
// Some threads run no code of the program as long as the calling thread does not wait for them:
// - workers of OpenMP and of BLAS libraries, known by the library that has their start routine,
// - threads of autograd's engine and of the virtual GPU, known by the type that std::thread runs,
// - threads of CUDA's driver, and memledger's own.
//
// The C library's tables for debuggers say where it keeps a thread's start routine. If there are
// no such tables, or the thread is of another kind, it counts as the program's. Under the address
// and thread sanitizers all workers do, because each thread begins in the sanitizer.
class OtherThreads {
 public:
  enum class Kind : uint8_t {
    kNone,     // none but idle workers
    kEngine,   // as above, and threads of autograd's engine: idle outside a backward pass
    kProgram,  // at least one of the program's, or it is not known
  };
  // Looks now. Where an answer but kProgram holds, it does so until the calling thread makes a
  // thread or waits for a pool. In a child of fork, and in a copy, it is also the answer of the
  // moment at which the process was made: what other threads were writing may be torn there. Costs
  // a system call where there is no other thread, else some for each.
  static Kind look() noexcept;

  // Looks up what look() needs, and watches forks. At load.
  static void prepare() noexcept;
  // To be called before a fork, with no lock of memledger's held: takes the loader's lock. A fork
  // handler of its own does it where nobody has.
  static void note_fork() noexcept;
  // Adds a start routine of memledger's own threads: at most eight.
  static void add_own(void* (*start)(void*)) noexcept;

  // For a copy of the process that is made without fork(). Can be called in a signal handler.
  // begin_copy() notes the threads, and returns whether that went well; one thread at a time can
  // have them noted, until end_copy(). Call be_copy() in the copy: `noted` as returned, or false
  // where nothing may be believed.
  static bool begin_copy() noexcept;
  static void end_copy() noexcept;
  static void be_copy(bool noted) noexcept;

 private:
  static void be_child() noexcept;
};

}  // namespace memledger::core
