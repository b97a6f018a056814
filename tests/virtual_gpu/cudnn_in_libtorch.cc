// What LibTorch's allocator gives out for cuDNN's workspaces, counted by LibTorch itself, on an
// h100: `model` with the model's sizes, `asked` with those of fake_cudnn.cc.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int failures = 0;

void check(int64_t found, int64_t expected, const char* what) {
  if (found == expected) return;
  std::fprintf(stderr, "FAILED: %s: %lld, not %lld\n", what, static_cast<long long>(found),
               static_cast<long long>(expected));
  ++failures;
}

int64_t block(int64_t bytes) { return (bytes + 511) / 512 * 512; }

// How much more than before is allocated at the peak of `work`.
template <typename F>
int64_t peak(F work) {
  const auto stat = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0];
  };
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  const int64_t before = stat().current;
  const auto result = work();
  return stat().peak - before;
}

const auto kOptions = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
constexpr int64_t kX = int64_t{2} * 64 * 128 * 128 * 2;  // and y
constexpr int64_t kW = 64 * 64 * 9 * 2;

int64_t convolve() {
  const torch::NoGradGuard guard;
  const auto x = torch::empty({2, 64, 128, 128}, kOptions);
  const auto w = torch::empty({64, 64, 3, 3}, kOptions);
  return peak([&] { return torch::conv2d(x, w, {}, 1, 1); }) - kX;
}

void check_model() {
  check(convolve(), block(2 * kX + kW + 16), "the first plan's workspace");
  at::globalContext().setBenchmarkCuDNN(true);
  // LibTorch keeps the plan for a shape: a benchmark needs another alignment or flag.
  at::globalContext().setDeterministicCuDNN(true);
  // All channels in tiles of 128, and a quarter.
  const int64_t padded = (2 * 2 * kX + 4 * kW) * 5 / 4;
  check(convolve(), block(padded + 16), "a benchmark allocates the largest workspace");
  check(convolve(), block(2 * kX + kW + 16), "and the fastest plan is the first afterwards");

  // cuDNN's attention: the output, a row of float sums for each, the random generator's seed and
  // offset, and the plan's 256 bytes.
  const auto q = torch::empty({2, 8, 512, 64}, kOptions);
  const int64_t forward = peak([&] {
    return at::_scaled_dot_product_cudnn_attention(q, q, q, {}, /*compute_log_sumexp=*/true);
  });
  check(forward, 2 * 8 * 512 * 64 * 2 + 2 * 8 * 512 * 4 + 3 * 512, "attention, forward");
}

void check_asked() {
  // 132 multiprocessors make 132 002 000 bytes, the largest 4 MiB more. Blocks so large are whole
  // pages of 2 MiB.
  check(convolve(), int64_t{63} << 21, "the first plan's workspace, as asked");
  at::globalContext().setBenchmarkCuDNN(true);
  at::globalContext().setDeterministicCuDNN(true);
  check(convolve(), int64_t{65} << 21, "the largest of all that were asked for");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !torch::cuda::is_available()) {
    std::fprintf(stderr, "FAILED: an argument and a CUDA device are needed\n");
    return 1;
  }
  if (const char* const folder = std::getenv("TEST_TMPDIR")) setenv("XDG_CACHE_HOME", folder, 1);
  if (std::string(argv[1]) == "model") {
    check_model();
  } else {
    check_asked();
  }
  return failures > 0;
}
