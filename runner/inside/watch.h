#pragma once

// What libmemledger.so does by itself at load if the environment asks for it
// (runner/environment.h). It watches the process from its first allocation, and writes reports
// (memledger-exit.txt, oom-….txt), a line profile (memledger-lines.txt) and a timeline.
//
// A forked child that goes on without exec is watched, but reports nothing of its own.

// libmemledger_preload.so calls it when the program's main begins, or finds it running.
extern "C" void memledger_main_begins();

namespace memledger::inside {

// Keeps what the report at the program's end says of this moment, and writes the timeline and the
// line profile. Called when Python's interpreter begins to end, while what the program has is still
// there; the report waits for the exit status.
void interpreter_ends();

}  // namespace memledger::inside
