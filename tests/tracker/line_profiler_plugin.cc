#include <ATen/ops/empty.h>

extern "C" __attribute__((visibility("default"))) void plugin_makes(int64_t nbytes) {
  const at::Tensor one = at::empty({nbytes}, at::kByte);
  asm volatile("" ::"r"(one.unsafeGetTensorImpl()));
}
