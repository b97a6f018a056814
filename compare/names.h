#pragma once

// Names of the same tensor in two files.

#include <string>
#include <string_view>
#include <vector>

namespace memledger::compare {

// Returns the name without what wrappers of modules add to it anywhere: `module.` of
// DataParallel, `_orig_mod.` of torch.compile, and those of FSDP and checkpointing.
std::string without_wrappers(std::string_view name);

// Returns the name without that prefix, which may follow the name of an optimizer: `fc.weight` of
// `model.fc.weight`, `SGD.fc.weight.momentum_buffer` of `SGD.model.fc.weight.momentum_buffer`.
std::string without_prefix(const std::string& name, const std::string& prefix);

// Returns the name with # in place of each number.
std::string without_numbers(std::string_view name);

// What to leave out at the beginning of names, so that those of both files are the same.
struct Prefixes {
  std::string before, after;  // with a dot at its end; empty: nothing
};
// The names are those that only one file has. A prefix is one of half of them, at least.
Prefixes prefixes_of(const std::vector<std::string>& before, const std::vector<std::string>& after);

// Returns one name for several that differ in numbers only: `layer0…7.k`.
std::string ranged_name(const std::vector<std::string>& names);

}  // namespace memledger::compare
