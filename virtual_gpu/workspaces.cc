#include "virtual_gpu/workspaces.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kKinds = static_cast<size_t>(WorkspaceKind::kCount);

constexpr std::array<const char*, kKinds> kNames = {
    "cuDNN convolution forward",
    "cuDNN convolution backward data",
    "cuDNN convolution backward filter",
    "cuDNN attention",
    "cuDNN other operation graphs",
    "cuDNN batch norm",
    "cuDNN RNN workspace",
    "cuDNN RNN reserve",
    "cuDNN CTC loss",
    "cuDNN dropout states",
    "cuBLAS",
    "cuFFT",
    "cuSOLVER",
    "cuSPARSE",
    "cuSPARSELt",
};

struct Counts {
  std::atomic<uint64_t> largest_bytes{0};
  std::atomic<uint64_t> asked{0};
  std::atomic<uint64_t> used{0};
};

std::array<Counts, kKinds>
    counts;  // constant initialized: counts calls made before this library's constructors ran

void print() {
  std::array<memledger_virtual_gpu_workspace, kKinds> rows;
  const size_t n = memledger_virtual_gpu_workspaces(rows.data(), rows.size());
  for (size_t i = 0; i < n; ++i) {
    std::fprintf(stderr,
                 "memledger virtual GPU: workspace of %s: at most %llu bytes, asked for %llu "
                 "times, used %llu times\n",
                 rows[i].name, static_cast<unsigned long long>(rows[i].largest_bytes),
                 static_cast<unsigned long long>(rows[i].asked),
                 static_cast<unsigned long long>(rows[i].used));
  }
}

__attribute__((destructor)) void print_if_asked() {
  const char* const wanted = std::getenv(kPrintWorkspacesVariable);
  if (wanted != nullptr && std::string_view(wanted) == "1") print();
}

}  // namespace

void note_workspace_asked(WorkspaceKind kind, uint64_t bytes) {
  Counts& count = counts[static_cast<size_t>(kind)];
  count.asked.fetch_add(1, std::memory_order_relaxed);
  uint64_t largest = count.largest_bytes.load(std::memory_order_relaxed);
  while (bytes > largest &&
         !count.largest_bytes.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) {
  }
}

void note_workspace_used(WorkspaceKind kind) {
  counts[static_cast<size_t>(kind)].used.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace memledger::virtual_gpu

size_t memledger_virtual_gpu_workspaces(memledger_virtual_gpu_workspace* rows, size_t capacity) {
  using namespace memledger::virtual_gpu;
  size_t n = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const uint64_t asked = counts[kind].asked.load(std::memory_order_relaxed);
    if (asked == 0) continue;
    if (n < capacity) {
      rows[n] = {kNames[kind], counts[kind].largest_bytes.load(std::memory_order_relaxed), asked,
                 counts[kind].used.load(std::memory_order_relaxed)};
    }
    ++n;
  }
  return n;
}
