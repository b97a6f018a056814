#pragma once

// Where a signal has interrupted this thread within malloc() or memledger's hooks, lets it leave
// them, and go on elsewhere: in a copy of the process (write_in_copy.h), or where the program ends
// itself in the signal's handler, to which it never returns.

#include <cstddef>
#include <cstdint>

namespace memledger::inside {

struct InterruptedCall {
  bool in_handler = false;  // a signal handler runs on this thread
  // The state that the signal has interrupted, an ucontext_t; null: it was not within such a call.
  void* state = nullptr;
  // Where the outermost such call returns to, and the stack pointer then.
  uintptr_t returns_to = 0;
  uintptr_t stack_pointer = 0;
};

// Looks up the functions and libraries that matter. Call it once, outside of signal handlers.
void prepare_interrupted_calls() noexcept;

// How far out such calls are looked for.
enum class Reach : uint8_t {
  kInnermost,  // where nothing but their own helpers was interrupted
  kOutermost,  // and where they had called other libraries, but not the program
};

// Walks the calling thread's stack. Allocates nothing; a broken stack may end the process.
InterruptedCall find_interrupted_call(Reach reach) noexcept;

// Whether a signal handler runs on the calling thread. Where no signal is blocked, and the program
// has set no handler that lets its own signal come again (SA_NODEFER), the stack is not walked, so
// that ordinary programs take no risk.
bool runs_in_signal_handler() noexcept;

// A signal that we have blocked ourselves, in all threads, and that says nothing; 0: none.
void expect_blocked(int signal) noexcept;

// Goes on with the interrupted call, with all signals blocked, and calls `then` on `stack` when it
// returns; nobody else comes back. Returns where that cannot be done: on processors other than
// x86-64, and while another thread does it.
void finish_interrupted_call(const InterruptedCall& call, void* stack, size_t stack_bytes,
                             void (*then)()) noexcept;

}  // namespace memledger::inside
