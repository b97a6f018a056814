#pragma once

// libmemledger_measure.so, preloaded beside libmemledger_preload.so into programs that
// `memledger dry-run` measures, and into what they start. It sees which files they write, and the
// calls of _exit(), after which nothing runs any more.

namespace memledger::inside {

using SuddenExitObserver = void (*)(int status) noexcept;

// Has `observer` called before _exit() and _Exit(), on the thread that calls them. Does nothing
// where the library is not there.
void observe_sudden_exit(SuddenExitObserver observer) noexcept;

}  // namespace memledger::inside

extern "C" __attribute__((visibility("default"))) void memledger_observe_sudden_exit(
    memledger::inside::SuddenExitObserver observer);
