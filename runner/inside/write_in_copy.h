#pragma once

// Does something in a copy of this process, where the process itself must not: it is about to end,
// in a signal handler, maybe with its heap broken or its locks held. What goes wrong there ends the
// copy.

namespace memledger::inside {

// Runs `write(context)` in a copy that has this thread alone, and waits for its end, some seconds
// at most. The copy is no child that the program could wait for. Returns false where there is none.
bool write_in_copy(void (*write)(void* context), void* context) noexcept;

// Calls `note` with a signal's name before the signal ends this process: the first of SIGSEGV,
// SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGTERM. The program's handler, or the signal's own action,
// then takes place as without us. Handlers that the program sets later take the place of this.
void note_deadly_signals(void (*note)(const char* signal) noexcept) noexcept;

}  // namespace memledger::inside
