#pragma once

// The private folder of a run whose writes the preloaded library redirects
// (runner/inside/redirected_files.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/writes.h"

namespace memledger::runner {

// Makes what a redirected run expects in an empty folder of its own, whose absolute path goes to
// the program as MEMLEDGER_REDIRECT. What goes to the `allowed` folders is not redirected. Returns
// the key for LandlockRules::attribute_key.
absl::StatusOr<uint64_t> make_redirect_folder(const std::string& folder,
                                              const std::vector<std::string>& allowed);

// Returns what the run's programs wrote and removed there. Call it when they have ended; `held_by`
// and `refusals` are left as they are.
prediction::Writes read_redirect_folder(const std::string& folder);

}  // namespace memledger::runner
