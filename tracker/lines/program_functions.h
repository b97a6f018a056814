#pragma once

// The functions of the program and of its libraries, from the symbol tables of the files that are
// mapped: also static ones, also without debug information. LibTorch's own libraries and the
// system's are left out.
//
// No LibTorch. Reading costs some 10 ms for each 10 000 functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger {

struct ProgramFunction {
  uintptr_t begin = 0;  // in memory
  uintptr_t end = 0;
  std::string name;       // demangled: `Net::forward(at::Tensor const&)`
  std::string qualified;  // without result, parameters and template arguments: `Net::forward`
  std::string file;       // that it was loaded from
  bool part = false;      // split off by the compiler: `.cold`, `.part.0`, `.isra.0`
};

class ProgramFunctions {
 public:
  // What is loaded now.
  static ProgramFunctions read();

  // By address; parts that the compiler has split off (`.cold`) are functions of the same name.
  const ProgramFunction* at(uintptr_t address) const;
  // Whole functions first. Whose qualified name ends with these parts: `forward` and `Net::forward`
  // both find `app::Net::forward`.
  std::vector<const ProgramFunction*> named(std::string_view name) const;
  // The names most like this one, best first.
  std::vector<std::string> near(std::string_view name, size_t most = 5) const;
  const std::vector<ProgramFunction>& all() const { return functions_; }

 private:
  std::vector<ProgramFunction> functions_;  // by address
};

// Of a demangled name. Lambdas keep their place: `train::{lambda#1}`.
std::string qualified_name(std::string_view demangled);

}  // namespace memledger
