#pragma once

// Lists the files that the processes of a run on a virtual GPU open for writing. The end of the run
// names those that were written after an unknown value had been read from the device, because they
// may hold zeros.
//
// The list is memory that `memledger run` makes (runner/written_list.h) and that all processes
// reach through the first one's descriptor. It goes with them, holds at most kMaxListBytes, and
// needs no folder. Where it cannot be reached nothing is noted.
//
// All functions can be called in signal handlers and children of vfork.

#include <stddef.h>
#include <stdint.h>

namespace memledger::inside {

// What the list begins with; records follow, each a WrittenRecord and a path that ends with a zero
// byte.
struct WrittenListHeader {
  int64_t first_read_ns;  // when the first such value was read, by the clock of files; 0: not yet
  uint32_t is_full;       // files were left out
  uint32_t unused;
};
struct WrittenRecord {
  uint32_t writer;  // a process
  uint32_t teller;  // the process that has named it; 0: none yet
};

inline constexpr char kWrittenListName[] = "memledger files";
inline constexpr size_t kMaxListBytes = size_t{1} << 20;

// Called once, with the variable's value: `PROCESS:DESCRIPTOR:INODE`.
void begin_to_list_files(const char* value);
bool are_files_listed();
// Returns false where there is no room for it now.
bool list_file(const char* path);

}  // namespace memledger::inside
