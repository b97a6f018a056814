#pragma once

#include <string_view>

namespace memledger::core {

// Returns whether a library, by its file's name, is LibTorch's, CUDA's, the system's or memledger's
// own: large, and nothing that a person who looks for their line wants to see. Thread-safe.
bool is_foreign_library(std::string_view path);

}  // namespace memledger::core
