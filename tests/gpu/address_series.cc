#include "tests/gpu/address_series.h"

#include <cuda_runtime_api.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <vector>

namespace memledger::testing {
namespace {

constexpr int kAllocations = 300;
constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kMost = size_t{1} << 30;

// LibTorch's segments (2 MiB, 20 MiB, multiples of 2 MiB), and what is on either side of a border.
constexpr size_t kSizes[] = {
    512,       5056,      64 * kKiB, 700 * kKiB, kMiB,      kMiB + 1,  2 * kMiB,
    2 * kMiB,  2 * kMiB,  4 * kMiB,  10 * kMiB,  20 * kMiB, 20 * kMiB, 20 * kMiB,
    22 * kMiB, 30 * kMiB, 32 * kMiB, 34 * kMiB,  38 * kMiB, 64 * kMiB, 100 * kMiB,
};

struct Block {
  void* pointer;
  size_t bytes;
};

class Series {
 public:
  int allocate(size_t bytes) {
    while (taken_ + bytes > kMost) free_at(0);
    void* pointer = nullptr;
    if (const cudaError_t error = cudaMalloc(&pointer, bytes)) return error;
    print("allocate", {pointer, bytes});
    blocks_.push_back({pointer, bytes});
    taken_ += bytes;
    return 0;
  }

  void free_at(size_t place) {
    const Block block = blocks_[place];
    print("free", block);
    cudaFree(block.pointer);
    taken_ -= block.bytes;
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  size_t blocks() const { return blocks_.size(); }

 private:
  static void print(const char* call, const Block& block) {
    std::printf("address\t%s\t%zu\t%" PRIuPTR "\n", call, block.bytes,
                reinterpret_cast<uintptr_t>(block.pointer));
  }

  std::vector<Block> blocks_;
  size_t taken_ = 0;
};

}  // namespace

int print_address_series() {
  if (const cudaError_t error = cudaFree(nullptr)) return error;  // makes the context
  Series series;
  int done = 0;
  // One size after the other, then everything at once.
  for (const size_t bytes : {2 * kMiB, 20 * kMiB, 34 * kMiB, 2 * kMiB}) {
    for (int i = 0; i < 10; ++i, ++done) {
      if (const int error = series.allocate(bytes)) return error;
    }
  }
  uint64_t state = 1;
  const auto random = [&state](size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % below);
  };
  for (; done < kAllocations; ++done) {
    if (const int error = series.allocate(kSizes[random(std::size(kSizes))])) return error;
    if (random(5) < 2) series.free_at(random(series.blocks()));
  }
  while (series.blocks() != 0) series.free_at(series.blocks() - 1);
  return 0;
}

}  // namespace memledger::testing
