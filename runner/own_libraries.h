#pragma once

#include <string>
#include <vector>

namespace memledger::runner {

// Returns the specification of a virtual GPU with `libraries=`, as it is where it has that option
// already: `real` where the program brings all of NVIDIA's libraries that it needs, `stand-ins`
// where it lacks one, or where that is not known. `program`: its words, the program first.
//
// Looks at files alone; nothing of the program runs. A program is asked for what it is linked with.
// A Python program needs what torch needs that its interpreter would import, or without torch
// cuBLAS, in wheels (site-packages/nvidia) or in LD_LIBRARY_PATH. The interpreter is known behind
// `#!`, and behind programs that run another one, such as `env`, `timeout` or `torchrun`; not
// behind shell scripts and programs that choose one themselves, such as `uv run` or pyenv's.
// Takes 0.1 to 0.3 s where LibTorch has CUDA.
std::string with_library_choice(std::string specification, const std::vector<std::string>& program);

// Returns the names of NVIDIA's libraries that the program needs and does not find, as far as such
// a look at files shows. The dynamic linker will end it for each that nothing stands for.
std::vector<std::string> missing_libraries(const std::vector<std::string>& program);

}  // namespace memledger::runner
