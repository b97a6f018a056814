#pragma once

#include <string>

namespace memledger::runner {

// Returns what `memledger --version` prints: a line each for memledger, LibTorch and this build.
std::string version_text();

}  // namespace memledger::runner
