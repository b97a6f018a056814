#pragma once

// Tells of ends of this process without exit handlers: _exit(), and signals whose default action
// ends it. The program's own handlers win, and the process ends as without us.
//
// With libmemledger_preload.so, a signal that the program gives its default action again is seen as
// well, and the program is told nothing of all this. Without, handlers are set once where there are
// none.

#include <string>

#include "runner/inside/end_calls.h"

namespace memledger::inside {

// Has `observer` called before _exit() and _Exit(), on the thread that calls them. Does nothing
// where the library is not there.
void observe_sudden_exit(SuddenExitObserver observer) noexcept;

struct SuddenEnd {
  const char* signal = nullptr;  // SIGTERM; null: _exit()
  int status = 0;                // what _exit() was given
  bool goes_on = false;          // the process, as the signal is that of `on_demand`
};

struct EndWriter {
  // Returns whether there is something to write, and counts as asking for it. Called in a signal
  // handler.
  bool (*take)(const SuddenEnd& end) noexcept;
  // Writes it. Called in a copy of the process.
  void (*write)(const SuddenEnd& end);
  // Tells that nothing was written, and why. Called in a signal handler.
  void (*tell_why_not)(const SuddenEnd& end, const char* reason) noexcept;
  int on_demand = 0;  // the number of a signal after which the process goes on; 0: none
};

// To be called once.
void watch_sudden_ends(const EndWriter& writer) noexcept;

// Returns the text of the exception that nobody has caught, where one ends the program; else
// nothing.
std::string uncaught_exception();

// Returns the number of SIGUSR1 or SIGUSR2 by its name, 0 for any other name.
int signal_on_demand(const char* name) noexcept;

}  // namespace memledger::inside
