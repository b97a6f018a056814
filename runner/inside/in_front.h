#pragma once

#include <dlfcn.h>

namespace memledger::inside {

// Returns a function of the library that stands first in the process, whose functions the program
// calls; null where it has none. RTLD_DEFAULT would find libmemledger.so's own, as that is linked
// with -Bsymbolic.
template <typename F>
F find_in_front(const char* name) noexcept {
  void* const program = dlopen(nullptr, RTLD_NOW);
  return program == nullptr ? nullptr : reinterpret_cast<F>(dlsym(program, name));
}

}  // namespace memledger::inside
