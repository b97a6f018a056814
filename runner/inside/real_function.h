#pragma once

// A function of the C library that one of our preloaded libraries stands before.

#include <dlfcn.h>

namespace memledger::inside {

// Looked up at its first call at the latest, as other libraries' constructors call these before
// ours has run. What is called in signal handlers or in a child of vfork has to be looked up
// before. get() returns null where no library has the function.
template <typename Function>
class RealFunction {
 public:
  explicit constexpr RealFunction(const char* name) : name_(name) {}
  Function get() {
    void* known = __atomic_load_n(&function_, __ATOMIC_RELAXED);
    if (known == nullptr) {
      known = dlsym(RTLD_NEXT, name_);
      __atomic_store_n(&function_, known, __ATOMIC_RELAXED);
    }
    return reinterpret_cast<Function>(known);
  }

 private:
  const char* name_;
  void* function_ = nullptr;
};

// Puts a variable of that type, be it local to a function, among those that
// look_up_real_functions() knows.
#define MEMLEDGER_LOOKED_UP __attribute__((section("memledger_real")))

}  // namespace memledger::inside
