#pragma once

#include <optional>
#include <string>
#include <vector>

namespace memledger::runner {

// A line of what the dynamic linker says of a program or library: `NAME => PATH (0x…)`.
struct NeededLibrary {
  std::string name;
  std::string path;  // empty: not found
};

// Asks glibc's dynamic linker what it would load, as ldd does, in this process's environment.
// Nothing of the file runs. Returns the linker's text, or nothing where no process can be made.
// `path` is a program that glibc's linker starts, or a shared library. Resolving all symbols takes
// its time with LibTorch. Takes some 0.1 s with LibTorch for CUDA.
std::optional<std::string> trace_linker(const std::string& path, bool resolve_symbols = false);

// The libraries in such a text, in the linker's order.
std::vector<NeededLibrary> needed_libraries(const std::string& text);

// The folder of LibTorch's libraries among them; empty where there is none.
std::string folder_of_libtorch(const std::vector<NeededLibrary>& libraries);

}  // namespace memledger::runner
