#pragma once

// What libmemledger.so does of its own accord, at load, where the environment asks for it
// (runner/environment.h): watches the process from its first allocation, and writes reports
// (memledger-exit.txt, oom-….txt), a line profile (memledger-lines.txt) and a timeline.
//
// A forked child that goes on without exec is watched, but reports nothing of its own.

// libmemledger_preload.so calls it when the program's main begins, or finds it running.
extern "C" void memledger_main_begins();

namespace memledger::inside {

// Writes the reports that are due when the program ends, once. Called when Python begins to end,
// while what the program has is still there.
void report_now();

}  // namespace memledger::inside
