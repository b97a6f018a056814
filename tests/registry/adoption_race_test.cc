// Weights from before activation that several threads use for the first time at once: the thread
// sanitizer watches.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <thread>
#include <vector>

#include "registry/live_storages.h"
#include "registry/registry.h"

namespace memledger {
namespace {

TEST_CASE("threads that meet storages from before tracking at once adopt each of them once") {
  constexpr size_t kThreads = 4;
  constexpr size_t kStorages = 2000;
  Registry& registry = Registry::global();
  std::vector<at::Tensor> early;
  for (size_t i = 0; i < kStorages; ++i) early.push_back(at::empty({16}));
  REQUIRE(registry.activate().ok());
  std::atomic<size_t> here{0};
  std::vector<std::vector<uint64_t>> ids(kThreads);
  std::atomic<int> not_ours{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kStorages; ++i) {
        // All at the same one at the same time.
        ++here;
        while (here.load(std::memory_order_relaxed) < kThreads * (i + 1)) std::this_thread::yield();
        ids[t].push_back(registry.storage_id(early[i]));
        c10::StorageImpl* const storage =
            early[i].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
        know_storage(*storage);
        if (!owns_watched_block(*storage)) ++not_ours;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kStorages; ++i) {
    REQUIRE(ids[0][i] != 0);
    for (size_t t = 1; t < kThreads; ++t) REQUIRE(ids[t][i] == ids[0][i]);
  }
  CHECK(not_ours.load() == 0);
  CHECK(registry.snapshot().total_bytes(at::kCPU) == static_cast<int64_t>(64 * kStorages));
  early.clear();
  CHECK(registry.snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry.health().unknown_frees == 0);
  registry.deactivate();
}

}  // namespace
}  // namespace memledger
