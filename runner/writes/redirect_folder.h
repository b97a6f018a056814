#pragma once

// The private folder of a run whose writes the preloaded library redirects
// (runner/inside/redirected_files.h).

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "runner/writes/would_be_files.h"

namespace memledger::runner {

// Makes what a redirected run expects in an empty folder of its own, whose absolute path has no
// links and goes to the program as MEMLEDGER_REDIRECT. Returns the key for
// LandlockRules::attribute_key.
absl::StatusOr<uint64_t> make_redirect_folder(const std::string& folder);

// Returns what the run's programs would have written and removed. Call it when they have ended.
WouldBeFiles read_redirect_folder(const std::string& folder);

}  // namespace memledger::runner
