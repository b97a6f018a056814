#pragma once

// The holders of what an earlier failure has left. A Python program is searched for them in its own
// thread, soon after memory ran out; what is still alive at the next failure or at the end is
// reported.

#include <string>

namespace memledger::inside {

// Has the program's main thread search for holders when it next runs Python code: never waits. Does
// nothing where no searcher is known. Any thread, without Python's lock; no signal handler on a
// thread of the program's.
void search_soon() noexcept;

// Does that, and waits until it is done, at most 0.6 seconds. Returns whether it is.
bool search_and_wait() noexcept;

// Takes the Python function that searches, or null once Python ends.
void set_searcher(void* function) noexcept;

// Whether this is a Python program that can be searched.
bool has_searcher() noexcept;

// Called after each failure: notes what is alive that was held before, and searches again, at the
// first eight failures and at powers of two.
void note_failure() noexcept;

// Returns what was noted at the last failure, as lines; empty where nothing was.
std::string failure_holders_text();

}  // namespace memledger::inside
