#pragma once

#include <string>

namespace memledger::runner {

struct GpusOptions {
  bool json = false;
};

// Returns the devices that --virtual-gpu knows, as a table or as JSON (`memledger.gpus/1`).
std::string gpus_text(const GpusOptions& options);

// Prints them. Returns the exit status: 0, or 1 where standard output cannot be written.
int gpus_command(const GpusOptions& options);

}  // namespace memledger::runner
