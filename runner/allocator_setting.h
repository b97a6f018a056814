#pragma once

#include <string>
#include <string_view>

namespace memledger::runner {

// Returns a value of PYTORCH_CUDA_ALLOC_CONF with the options of `added` instead of those of the
// same name; the others stay. Lists in brackets are one value.
std::string with_allocator_setting(std::string_view setting, std::string_view added);

// Adds `added` to the options of LibTorch's allocator in this process's children. It replaces
// options of the same name in the caller's environment. Changes the environment; call it after
// fork.
void add_to_allocator_variable(std::string_view added);

// Returns what the caller's environment says, all options that there are.
std::string callers_allocator_setting();

}  // namespace memledger::runner
