#pragma once

// How sizes and their changes read, and words that more than one file uses.

#include <cstdint>
#include <string>

namespace memledger::compare {

inline constexpr char kWorkspaceRole[] = "workspace";
inline constexpr char kUnusedGraph[] = "held for a backward pass that never began";

// Returns 1.58G.
std::string size(int64_t bytes);
// Returns +1.58G.
std::string size_change(int64_t bytes);
// Returns +1048576, 0.
std::string exact_change(int64_t bytes);
// Returns ` (+0.41 %)`; empty if there was nothing before.
std::string share_of(int64_t change, int64_t before);

}  // namespace memledger::compare
