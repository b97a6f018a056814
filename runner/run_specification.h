#pragma once

// The specifications of the runs of a dry-run, made from the one that the user gave. What the user
// said stays; a run only decides what was left open.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/prediction.h"

namespace memledger::runner {

// Returns whether a specification has the option, as in `h100,reads=all`.
bool has_option(std::string_view specification, std::string_view option);

// Returns the specification with the option, unless it has it already.
std::string with_option(std::string specification, std::string_view option, std::string_view value);

// Returns the specification for one end of the prediction and one order of addresses.
std::string on_end(std::string specification, prediction::Run::End end,
                   prediction::Run::Addresses addresses);

// Returns the same machine with more memory than any program takes. Its contexts, and what NCCL
// takes, stay those of the machine. Devices of files get new files in `folder`, which must exist as
// long as programs run. `specification` must be valid.
absl::StatusOr<std::string> without_limit(const std::string& specification,
                                          const std::string& folder);

// Returns the same machine with fewer free bytes on each device, because its context takes more.
// The total memory that programs see stays the same: one that asks for a share of it asks for as
// much as before. Devices whose contexts differ get files, as above.
absl::StatusOr<std::string> with_less(const std::string& specification, int64_t bytes,
                                      const std::string& folder);

// Returns why devices may have less memory than the runs were given, a sentence for each on which
// the process takes more than is there for sure and has room: `cuda:0 may have less: with ECC …`.
// Empty where none is. `specification` must be valid.
std::string notes_on_memory(const std::string& specification,
                            const std::vector<prediction::DevicePrediction>& devices);

}  // namespace memledger::runner
