#pragma once

// Observes every end of this process that can be seen, and has a copy of the process report it
// (write_in_copy.h): exit, quick_exit(), _exit(), exec, and signals whose default action ends a
// process. The program's own handlers win, and the process ends as without us.
//
// With libmemledger_preload.so, a signal that the program gives its default action again is seen as
// well, and the program notices nothing of all this. Without, handlers are set once where there are
// none.

#include <string>

#include "runner/inside/end_calls.h"

namespace memledger::inside {

// Has `observer` called before _exit() and _Exit(), on the thread that calls them. Does nothing
// where the library is not there.
void observe_sudden_exit(SuddenExitObserver observer) noexcept;

struct EndOfProcess {
  enum class Kind : uint8_t { kExit, kQuickExit, kSuddenExit, kExec, kSignal, kOnDemand };
  Kind kind = Kind::kExit;
  int status = 0;                 // what exit() or _exit() was given
  const char* signal = nullptr;   // SIGTERM: of kSignal and kOnDemand
  const char* program = nullptr;  // of kExec

  bool goes_on() const { return kind == Kind::kOnDemand; }
};

// Writes about an end. All but write() are called in the process itself, perhaps in a signal
// handler.
struct EndWriter {
  // Returns whether there is something to write, and counts as asking for it.
  bool (*take)(const EndOfProcess& end) noexcept;
  // Nothing was written, and the process goes on: exec has failed, or the signal comes again.
  void (*give_back)(const EndOfProcess& end) noexcept;
  // Writes a part. Called in a copy of the process.
  void (*write)(const EndOfProcess& end, int part);
  int parts = 1;
  // Notes that a part was left out, and why.
  void (*tell_why_not)(const EndOfProcess& end, int part, const char* reason) noexcept;
  int on_demand = 0;  // the number of a signal after which the process goes on; 0: none
};

// To be called once.
void watch_ends(const EndWriter& writer) noexcept;

// For handlers that run at exit: reports what the writer has not been asked for yet. If the program
// calls exit() in a signal handler, nothing is booked any more from then on, as the handler may
// have interrupted the books themselves.
void report_exit(const EndOfProcess& end) noexcept;

// Returns the text of the exception that nobody has caught, where one ends the program; else
// nothing.
std::string uncaught_exception();

// Returns the number of SIGUSR1 or SIGUSR2 by its name, 0 for any other name.
int signal_on_demand(const char* name) noexcept;

}  // namespace memledger::inside
