#include "tests/support/refcounts_beside_tsan.h"

#if defined(__SANITIZE_THREAD__)

#include <ATen/record_function.h>
#include <sanitizer/tsan_interface.h>

#include <cstddef>
#include <memory>

// GCC does not bring the header that has it.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*,
                                                                           std::size_t),
                                                         void (*freed)(const volatile void*));

namespace memledger::testing {
extern char let_go;  // in refcounts_beside_tsan_let_go.cc
}

namespace {

using memledger::testing::let_go;

// What is allocated is so before it is freed.
__attribute__((no_sanitize_thread)) void allocated(const volatile void* block, std::size_t) {
  __tsan_release(const_cast<void*>(block));
}

// Each release of a tensor happens before any part of a tensor is freed, and before the object
// itself is, whose count follows the pointer to its virtual functions.
__attribute__((no_sanitize_thread)) void freed(const volatile void* block) {
  __tsan_acquire(const_cast<void*>(block));
  __tsan_acquire(static_cast<char*>(const_cast<void*>(block)) + sizeof(void*));
  __tsan_acquire(&let_go);
}

// After memledger's hooks have looked at an operator's tensors, and before LibTorch lets go of
// them.
void looked(const at::RecordFunction&, at::ObserverContext*) { __tsan_release(&let_go); }
std::unique_ptr<at::ObserverContext> looked_at_inputs(const at::RecordFunction&) {
  __tsan_release(&let_go);
  return nullptr;
}

}  // namespace

void memledger::testing::tell_tsan_what_refcounts_order() {
  __sanitizer_install_malloc_and_free_hooks(&allocated, &freed);
  at::addGlobalCallback(at::RecordFunctionCallback(&looked_at_inputs, &looked));
}

#else

void memledger::testing::tell_tsan_what_refcounts_order() {}

#endif
