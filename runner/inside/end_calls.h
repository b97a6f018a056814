#pragma once

// For those who want to know that the process ends without exit handlers: the library that has this
// stands before _exit() and _Exit(), and before sigaction() and signal().

#include <signal.h>
#include <stdint.h>

namespace memledger::inside {

// Called before _exit() and _Exit(), on the thread that calls them.
using SuddenExitObserver = void (*)(int status) noexcept;

// Called after the program has set an action of its own for a signal, perhaps in a signal handler.
using OwnActionObserver = void (*)(int signal) noexcept;

}  // namespace memledger::inside

// Adds an observer, four at most.
extern "C" void memledger_observe_sudden_exit(memledger::inside::SuddenExitObserver observer);

// Sets the observer; of one caller.
extern "C" void memledger_observe_own_actions(memledger::inside::OwnActionObserver observer);

// From now on a signal's default action is `action`, for the signals whose bits are set (bit N is
// signal N + 1): at once for those that have their default action, else when the program sets it.
// The program's own handlers take its place, and it is told that the action is the default one.
extern "C" void memledger_replace_default_actions(uint64_t signals, const struct sigaction* action);
