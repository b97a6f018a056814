#pragma once

// For those who want to know how the process ends: the library that has this stands before exit(),
// quick_exit(), _exit() and _Exit(), and before sigaction(), signal() and signal()'s kin.

#include <signal.h>
#include <stdint.h>

namespace memledger::inside {

// Called before _exit() and _Exit(), on the thread that calls them.
using SuddenExitObserver = void (*)(int status) noexcept;

// Called after the program has set an action of its own for a signal, perhaps in a signal handler.
using OwnActionObserver = void (*)(int signal) noexcept;
// Called before exit() and quick_exit() run their handlers, on the thread that calls them; not when
// main returns. May call the C library's function itself.
using ExitObserver = void (*)(void (*function)(int), int status) noexcept;

}  // namespace memledger::inside

// Add an observer, four at most of each kind. The last that was added is called first.
extern "C" void memledger_observe_sudden_exit(memledger::inside::SuddenExitObserver observer);
extern "C" void memledger_observe_exit(memledger::inside::ExitObserver observer);

// Sets the observer; of one caller.
extern "C" void memledger_observe_own_actions(memledger::inside::OwnActionObserver observer);

// From now on a signal's default action is `action`, for the signals whose bits are set (bit N is
// signal N + 1): at once for those that have their default action, else when the program sets it.
// The program's own handlers replace it, and the program sees the default action as its former one.
extern "C" void memledger_replace_default_actions(uint64_t signals, const struct sigaction* action);

// Whether the program has ever set a handler that lets its own signal come again.
extern "C" bool memledger_has_nodefer_handler();
