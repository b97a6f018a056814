#pragma once

#include <string>
#include <vector>

namespace memledger::runner {

// Explains why a program does not start with the libraries of the virtual GPU if they were made for
// another LibTorch. The sentence names both versions and says what to do. Empty where it starts,
// has no LibTorch, or is no program that the dynamic linker can be asked about. `libraries` are
// those that will be preloaded, as LD_PRELOAD has them.
std::string why_libtorch_does_not_fit(const std::string& program,
                                      const std::vector<std::string>& libraries,
                                      const std::string& release);

}  // namespace memledger::runner
