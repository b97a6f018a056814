#pragma once

#include <string>
#include <vector>

namespace memledger::runner {

// Why a program does not start with the libraries of the virtual GPU, where its LibTorch is another
// than the one that they were made for: a sentence that names both and says what to do. Empty where
// it starts, has no LibTorch, or is no program that the dynamic linker can be asked about.
// `libraries` are those that will be preloaded, as LD_PRELOAD has them.
std::string why_libtorch_does_not_fit(const std::string& program,
                                      const std::vector<std::string>& libraries,
                                      const std::string& release);

}  // namespace memledger::runner
