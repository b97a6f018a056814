#pragma once

// Twenty functions that allocate, compiled twice: line_programs.cc at -O0 and at -O2.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace line_programs {

struct Program {
  const char* name;
  void (*run)(int64_t bytes);
};

namespace unoptimized {
std::vector<Program> all();
}
namespace optimized {
std::vector<Program> all();
}

// Where tensors are kept until a program has run, so that the compiler cannot leave one out.
std::vector<at::Tensor>& kept();

}  // namespace line_programs
