#pragma once

// Finds the text of a function in its source file. No LibTorch.

#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

// Returns where a source file is that the debug information names, empty if it is not found. Tries
// the path itself; below each folder of MEMLEDGER_SOURCES (with ':' between) every end of the path,
// the longest first; a relative path also in each folder above the program.
std::string find_source(const std::string& path);

// Returns the lines of a file, none if it cannot be read.
std::vector<std::string> source_lines(const std::string& path);

// Returns the line of the brace that closes the function whose name stands in line `first`, counted
// from 1; `first` itself if there is none.
int64_t last_line_of_function(const std::vector<std::string>& lines, int64_t first);

// Returns whether a line is a statement or part of one: not blank, not a comment, not only braces.
bool has_code(const std::string& line);

}  // namespace memledger
