// A library of somebody else's, for causes_program.
#include <ATen/ops/ones.h>

extern "C" __attribute__((visibility("default"))) void add_to(at::Tensor& sum, int64_t size) {
  sum = at::ones({size}, at::kCUDA).add(1);
}
