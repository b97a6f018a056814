#pragma once

// The text of a function, from its source file. No LibTorch.

#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

// A source file as the debug information names it, which may be by a path in the folder that it was
// compiled in. Looked for as it is (an existing file at an absolute path comes first); in each
// folder of MEMLEDGER_SOURCES (with ':' between) by every end of the path, the longest first; and,
// a relative path, in the folders that the program lies in. Empty: not found.
std::string find_source(const std::string& path);

// Empty if it cannot be read.
std::vector<std::string> source_lines(const std::string& path);

// The line of the brace that closes the function whose name stands at `first` (1 is the first
// line); `first` if there is none.
int64_t last_line_of_function(const std::vector<std::string>& lines, int64_t first);

// A statement, or part of one: not blank, not a comment, not only braces.
bool has_code(const std::string& line);

}  // namespace memledger
