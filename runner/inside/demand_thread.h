#pragma once

// Takes the signal that asks for a report on a thread of its own, so that no call of the program's
// is interrupted: sleep(), poll() and others end early after any handler, whatever SA_RESTART says.
//
// The program's threads block the signal: the one that calls this, and those that are made later.
// A thread that has set its mask itself handles the signal as without all this. Programs that are
// started, and children, do not have the signal blocked (exec_calls.cc). A program that sets an
// action of its own for the signal gets it back, on the thread that sets it.

namespace memledger::inside {

// Call it once, when the handler is set. Does nothing where the functions that start programs are
// not ours, as such programs would have the signal blocked.
void take_on_own_thread(int signal) noexcept;

}  // namespace memledger::inside
