#pragma once

// What libmemledger.so does of its own accord, at load, where the environment asks for it:
//
//   MEMLEDGER=1                watch this process from its first allocation, and report when it
//   ends or runs out of memory MEMLEDGER_LOG=FOLDER       reports go to files there
//   (memledger-exit.txt, memledger-out-of-memory-1.txt, …) instead of standard
//                              error. In the name %r stands for the rank, %p for the process, %%
//                              for a per cent sign; the folder is made if missing.
//   MEMLEDGER_LINES=f          the memory of each line of these functions (one a line), written
//   when the process ends; see
//                              tracker/line_profiler.h. With MEMLEDGER_LINE_COLUMNS (one a line),
//                              MEMLEDGER_LINES_GPU, and files MEMLEDGER_LINES_TEXT,
//                              MEMLEDGER_LINES_JSON, MEMLEDGER_LINES_HTML
//   MEMLEDGER_QUIET=1          what would go to standard error is left out; files are written
//   MEMLEDGER_TIMELINE=FILE    births and deaths of storages with their times go there when the
//   process ends: `.pickle` for
//                              pytorch.org/memory_viz, else a Chrome trace. %r and %p as above.
//                              With or without MEMLEDGER=1.
//
// The rank is the first set of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID; 0 without.
// A forked child that goes on without exec is watched, but reports nothing of its own.

#include <string>
#include <string_view>

namespace memledger::inside {

// The folder that a MEMLEDGER_LOG value means in this process, and the file of MEMLEDGER_TIMELINE.
std::string expand_log_folder(std::string_view pattern, int rank, int process);
int rank_of_this_process();

}  // namespace memledger::inside
