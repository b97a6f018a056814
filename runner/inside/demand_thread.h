#pragma once

// Takes the signal that asks for a report on a thread of its own, so that no call of the program's
// is interrupted: sleep(), poll() and others end early after any handler, whatever SA_RESTART says.

namespace memledger::inside {

// Call it once, when the handler is set. Does nothing where the functions that the program calls
// are not ours, or the program has a use of its own for the signal.
//
// From then on the program's threads block the signal, and see nothing of that (thread_calls.h).
// Threads that were there before, and calls with a mask of their own (ppoll()), handle it as
// without all this. Programs that are started, and children, have the mask that the program has
// asked for. A program that sets an action of its own for the signal, or waits for it, gets it back
// on all threads. For a call that works in a process of one thread only (unshare(), setns()) the
// thread is ended, and made again after it.
void take_on_own_thread(int signal) noexcept;

// Whether the calling thread is that thread. Async-signal-safe.
bool is_demand_thread() noexcept;

}  // namespace memledger::inside
