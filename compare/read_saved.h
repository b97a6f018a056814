#pragma once

// Reads the text of a saved file.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compare/saved.h"

namespace memledger::compare {

// Whether a text is a log of MemTracker, which `memledger log` compares, and no JSON.
bool is_log(std::string_view text);

// Returns what the file says; of a run's report, about that moment. `name` is its path, for
// messages. InvalidArgument is one sentence that says what to do.
absl::StatusOr<SavedFile> read_saved(const std::string& name, std::string_view text, Moment moment);

// Returns one file of the reports of one run's processes. `name` is their folder.
absl::StatusOr<SavedFile> joined(const std::string& name, std::vector<SavedFile> processes);

}  // namespace memledger::compare
