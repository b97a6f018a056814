#pragma once

#include <optional>
#include <string>

namespace memledger {

// The last failure of this process since write_out_of_memory_reports() with `keep_last`.
struct LastOutOfMemory {
  int failures = 0;  // in all
  std::string page;  // some fifteen lines
};
// Returns nothing where there was no failure. Any thread; throws std::bad_alloc.
std::optional<LastOutOfMemory> last_out_of_memory();

}  // namespace memledger
