#pragma once

#include <string>

namespace memledger::runner {

// Makes the memory in which the processes of a run on a virtual GPU list the files that they write
// (runner/inside/unreal_files.h), as a descriptor with a high number that the program inherits.
// Returns the value of prediction::kWrittenListVariable; empty where it could not be made.
// `process` is the one that this process becomes.
std::string make_written_list(int process);

}  // namespace memledger::runner
