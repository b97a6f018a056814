#include "virtual_gpu/library_sizes.h"

#include <array>
#include <atomic>
#include <cstdio>

#include "virtual_gpu/use_file.h"

namespace memledger::virtual_gpu {
namespace {

constexpr auto kSizes = static_cast<size_t>(LibrarySize::kCount);

struct Known {
  const char* what;
  bool has_upper_bound;
};

constexpr std::array<Known, kSizes> kKnown = {{
    {"cuSPARSE's product of sparse matrices", true},
    {"CUDA's stream-ordered pool (cudaMallocAsync)", false},
    {"the code that CUDA_MODULE_LOADING=EAGER loads", false},
    {"cuDNN's work area for other graphs than convolutions and attention", false},
    {"cuSPARSELt's work area", false},
}};

std::array<std::atomic<uint64_t>, kSizes> counts;

}  // namespace

void note_library_size(LibrarySize size) {
  counts[static_cast<size_t>(size)].fetch_add(1, std::memory_order_relaxed);
  tell_library_sizes();
}

void tell_library_sizes() {
  prediction::DeviceUseFile* const file = UseFile::current();
  if (file == nullptr) return;
  static_assert(kSizes <= prediction::kMaxLibrarySizes);
  for (size_t i = 0; i < kSizes; ++i) {
    prediction::LibrarySizeRow& row = file->library_sizes[i];
    std::snprintf(row.what, sizeof row.what, "%s", kKnown[i].what);
    row.has_upper_bound = kKnown[i].has_upper_bound ? 1 : 0;
    row.count = counts[i].load(std::memory_order_relaxed);
  }
}

}  // namespace memledger::virtual_gpu

size_t memledger_virtual_gpu_library_sizes(memledger_virtual_gpu_library_size* rows,
                                           size_t capacity) {
  using namespace memledger::virtual_gpu;
  size_t written = 0;
  for (size_t i = 0; i < kSizes; ++i) {
    const uint64_t count = counts[i].load(std::memory_order_relaxed);
    if (count == 0) continue;
    if (written < capacity)
      rows[written] = {kKnown[i].what, count, kKnown[i].has_upper_bound ? 1 : 0};
    ++written;
  }
  return written;
}
