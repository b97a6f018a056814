#pragma once

// The Python functions that `memledger run -f` names. How their lines are read:
// tracker/lines/python_frames.h.

#include <string>
#include <vector>

namespace memledger::inside {

// Sets the functions to look for. Before Python runs.
void profile_python_functions(const std::vector<std::string>& names);
// Returns the names as a list in Python's syntax: ["Net.forward"].
std::string profiled_python_names();

// Called by python_names.py, with Python's lock. The first begins: `describe` is its function that
// takes a code object and a module's globals and returns the number of a ToldFunction, or -1.
void begin_python_lines(void* describe) noexcept;
// Returns that number; -1: none that is looked for, or PyTorch's or Python's own.
int add_python_function(const char* name, const char* module, const char* file, int first,
                        int last) noexcept;
// Stops reading, as Python is about to end.
void end_python_lines() noexcept;

}  // namespace memledger::inside
