// A file of its own: with LibTorch's headers of tensors the compiler would have two of the function
// below.
#if defined(__SANITIZE_THREAD__)

#include <c10/util/intrusive_ptr.h>
#include <sanitizer/tsan_interface.h>

namespace c10 {
class TensorImpl;
}

namespace memledger::testing {
extern char let_go;
char let_go = 0;  // a place that the sanitizer knows; its value means nothing
}  // namespace memledger::testing

// In the place of the one that our code would have of the header (which is weak), and by which all
// of it lets go of tensors: a member of another's class can only be defined by its name.
void let_go_of(c10::TensorImpl* target) asm(
    "_ZN3c1013intrusive_ptrINS_10TensorImplENS_19UndefinedTensorImplEE15reset_not_null_EPS1_");
void let_go_of(c10::TensorImpl* target) {
  __tsan_release(&memledger::testing::let_go);
  c10::raw::intrusive_ptr::decref(
      reinterpret_cast<c10::intrusive_ptr_target*>(target));  // its only base
}

#endif
