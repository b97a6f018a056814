#pragma once

// The functions of the program and its libraries, from the symbol tables of the mapped files:
// static ones, too, and without debug information. LibTorch's and the system's libraries are left
// out.
//
// No LibTorch. Reading costs about 10 ms per 10 000 functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger {

struct ProgramFunction {
  uintptr_t begin = 0;  // addresses of its code
  uintptr_t end = 0;
  std::string name;       // demangled: `Net::forward(at::Tensor const&)`
  std::string qualified;  // without result, parameters and template arguments: `Net::forward`
  std::string file;       // program or library
  bool part = false;      // split off by the compiler: `.cold`, `.part.0`, `.isra.0`
};

class ProgramFunctions {
 public:
  // Reads what is loaded now.
  static ProgramFunctions read();

  // Returns the function with code at that address, or null. Parts that the compiler split off
  // (`.cold`) are functions of the same name.
  const ProgramFunction* at(uintptr_t address) const;
  // Returns the functions for which is_named() holds, whole ones first.
  std::vector<const ProgramFunction*> named(std::string_view name) const;
  // Returns the names most similar to this one, best first.
  std::vector<std::string> near(std::string_view name, size_t most = 5) const;
  const std::vector<ProgramFunction>& all() const { return functions_; }

 private:
  std::vector<ProgramFunction> functions_;  // by address
};

// Returns whether the qualified name ends with these parts: `forward` and `Net::forward` both name
// `app::Net::forward`, `ward` does not.
bool is_named(std::string_view qualified, std::string_view name);

// Returns the name without result, parameters and template arguments. Lambdas are called by the
// function that they stand in: `train::{lambda#1}`.
std::string qualified_name(std::string_view demangled);

}  // namespace memledger
