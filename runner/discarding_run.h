#pragma once

#include "runner/run_command.h"
#include "runner/writes/write_hold.h"

namespace memledger::runner {

// What `memledger run --writes=discard` does: runs the program in this process's place, and nothing
// that it writes stays but for the reports that the options ask for. A line at the end says what it
// would have written. Ends this process as the program ends, or returns a status having said why it
// did not run: as run_program(), and 126 where nothing keeps it from writing.
int run_discarding(const RunOptions& options);

}  // namespace memledger::runner
