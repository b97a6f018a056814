#include "tests/support/refcounts_beside_tsan.h"

#if defined(__SANITIZE_THREAD__)

#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <sanitizer/tsan_interface.h>

#include <cstddef>
#include <memory>

// GCC does not bring the header that has it.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, std::size_t),
                                                         void (*freed)(const volatile void*));

namespace {

char let_go = 0;  // a place that the sanitizer knows; its value means nothing

// What is allocated is so before it is freed.
__attribute__((no_sanitize_thread)) void allocated(const volatile void* block, std::size_t) {
  __tsan_release(const_cast<void*>(block));
}

// Whoever has let go of a tensor has done so before something of a tensor is freed; and before itself is, whose count follows the
// pointer to its virtual functions.
__attribute__((no_sanitize_thread)) void freed(const volatile void* block) {
  __tsan_acquire(const_cast<void*>(block));
  __tsan_acquire(static_cast<char*>(const_cast<void*>(block)) + sizeof(void*));
  __tsan_acquire(&let_go);
}

// After memledger's hooks have looked at an operator's tensors, and before LibTorch lets go of them.
void looked(const at::RecordFunction&, at::ObserverContext*) { __tsan_release(&let_go); }
std::unique_ptr<at::ObserverContext> looked_at_inputs(const at::RecordFunction&) {
  __tsan_release(&let_go);
  return nullptr;
}

}  // namespace

// In the place of the one that our code would have of the header (which is weak), and by which all of it lets go of tensors: a
// member of another's class can only be defined by its name.
void let_go_of(c10::TensorImpl* target) asm(
    "_ZN3c1013intrusive_ptrINS_10TensorImplENS_19UndefinedTensorImplEE15reset_not_null_EPS1_");
void let_go_of(c10::TensorImpl* target) {
  __tsan_release(&let_go);
  c10::raw::intrusive_ptr::decref(target);
}

void memledger::testing::tell_tsan_what_refcounts_order() {
  __sanitizer_install_malloc_and_free_hooks(&allocated, &freed);
  at::addGlobalCallback(at::RecordFunctionCallback(&looked_at_inputs, &looked));
}

#else

void memledger::testing::tell_tsan_what_refcounts_order() {}

#endif
