#pragma once

#include <cstdint>
#include <functional>

#include "virtual_gpu/known_values.h"

namespace memledger::virtual_gpu {

// Calls `visit` with each word among a kernel's arguments that may be an address. That is all
// addresses, and other words as well, because a launch shows neither how many arguments there are
// nor how long each is. Returns false where it shows nothing of them. Takes some microseconds.
bool for_each_argument_word(const memledger_virtual_gpu_work& work,
                            const std::function<void(uintptr_t word)>& visit);

}  // namespace memledger::virtual_gpu
