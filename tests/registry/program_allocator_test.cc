// A program with a CPU allocator of its own, before, after and between activations, standing on the
// one it found. Own binary.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <string>

#include "registry/live_storages.h"
#include "registry/registry.h"
#include "tests/support/delegating_allocator.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

using testing::DelegatingAllocator;

int64_t resident_kib() {
  FILE* status = fopen("/proc/self/status", "r");
  REQUIRE(status != nullptr);
  char line[256];
  int64_t kib = 0;
  while (fgets(line, sizeof(line), status) != nullptr) {
    if (std::string(line).rfind("VmRSS:", 0) == 0) kib = std::stoll(std::string(line).substr(6));
  }
  fclose(status);
  return kib;
}

// What is made is seen, and what is dropped is freed, in the table, in the counter and for the
// system.
void check_bookkeeping() {
  { auto warm_up = at::ones({4 << 20}); }
  const Snapshot before = registry().snapshot();
  const int64_t resident = resident_kib();
  for (int i = 0; i < 60; ++i) {
    auto tensor = at::ones({4 << 20});
    const Snapshot now = registry().snapshot();
    CHECK(now.total_bytes(at::kCPU) == before.total_bytes(at::kCPU) + (16 << 20));
    CHECK(now.counters(at::kCPU).current_bytes == now.total_bytes(at::kCPU));
  }
  const Snapshot after = registry().snapshot();
  CHECK(after.total_bytes(at::kCPU) == before.total_bytes(at::kCPU));
  CHECK(after.counters(at::kCPU).current_bytes == before.counters(at::kCPU).current_bytes);
  CHECK(registry().health().dropped_records == 0);
#if !defined(__SANITIZE_ADDRESS__)  // which keeps freed memory back
  // 960 MiB came and went.
  CHECK(resident_kib() < resident + 200 * 1024);
#else
  static_cast<void>(resident);
#endif
}

// The allocator that is in place, through the raw calls that oneDNN uses.
void check_raw_calls() {
  c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
  if (allocator->raw_deleter() == nullptr) return;
  const int64_t before = registry().snapshot().total_bytes(at::kCPU);
  void* const block = allocator->raw_allocate(1000);
  CHECK(registry().snapshot().total_bytes(at::kCPU) == before + 1000);
  allocator->raw_deallocate(block);
  CHECK(registry().snapshot().total_bytes(at::kCPU) == before);
}

void set(c10::Allocator* allocator) { c10::SetAllocator(at::kCPU, allocator); }

TEST_CASE("allocators of the program's own, set at any time, are obeyed and watched") {
  auto early = at::ones({100});
  auto* const before =
      new DelegatingAllocator(c10::GetAllocator(at::kCPU), /*with_raw_deleter=*/false);
  set(before);
  auto through_it = at::ones({100});
  CHECK(before->calls == 1);

  REQUIRE(registry().activate().ok());
  check_bookkeeping();
  CHECK(before->calls > 1);
  check_raw_calls();

  auto* const after =
      new DelegatingAllocator(c10::GetAllocator(at::kCPU), /*with_raw_deleter=*/true);
  set(after);
  auto unwatched_yet = at::ones({100});
  CHECK(after->calls == 1);
  check_bookkeeping();
  check_raw_calls();
  CHECK(after->calls > 30);
  CHECK(registry().snapshot().tracking_was_off());

  // The wrapper takes the priority of what it stands before.
  auto* const important =
      new DelegatingAllocator(c10::GetAllocator(at::kCPU), /*with_raw_deleter=*/true);
  c10::SetAllocator(at::kCPU, important, /*priority=*/7);
  check_bookkeeping();
  CHECK(c10::GetAllocator(at::kCPU) != important);
  CHECK(important->calls > 30);
  c10::Allocator* const in_place = c10::GetAllocator(at::kCPU);
  auto* const too_low = new DelegatingAllocator(in_place, /*with_raw_deleter=*/true);
  c10::SetAllocator(at::kCPU, too_low, /*priority=*/6);
  CHECK(c10::GetAllocator(at::kCPU) == in_place);
  delete too_low;
  auto* const as_important = new DelegatingAllocator(in_place, /*with_raw_deleter=*/true);
  c10::SetAllocator(at::kCPU, as_important, /*priority=*/7);
  CHECK(c10::GetAllocator(at::kCPU) == as_important);
  check_bookkeeping();

  registry().deactivate();
  auto* const in_gap =
      new DelegatingAllocator(c10::GetAllocator(at::kCPU), /*with_raw_deleter=*/true);
  c10::SetAllocator(at::kCPU, in_gap, /*priority=*/7);
  auto gap = at::ones({100});
  REQUIRE(registry().activate().ok());
  check_bookkeeping();
  check_raw_calls();
  auto sum = at::cat({early, through_it, unwatched_yet, gap});
  early = through_it = unwatched_yet = gap = sum = at::Tensor();
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry().snapshot().counters(at::kCPU).current_bytes == 0);
  registry().deactivate();
}

TEST_CASE(
    "a program may change between its allocators as often as it likes: each is watched again") {
  REQUIRE(registry().activate().ok());
  c10::Allocator* const found = c10::GetAllocator(at::kCPU);
  auto* const one = new DelegatingAllocator(found);
  auto* const other = new DelegatingAllocator(found);
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    DelegatingAllocator* const set_now = i % 2 == 0 ? one : other;
    c10::SetAllocator(at::kCPU, set_now, /*priority=*/7);
    const int64_t before = registry().snapshot().total_bytes(at::kCPU);
    const int calls = set_now->calls;
    const auto tensor = at::ones({100});
    CHECK(set_now->calls == calls + 1);
    CHECK(c10::GetAllocator(at::kCPU) != set_now);
    CHECK(registry().snapshot().total_bytes(at::kCPU) == before + 400);
  }
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry().health().unknown_frees == 0);
  registry().deactivate();
}

// A storage on a block that LibTorch's CPU allocator made and will free, said to be elsewhere.
c10::intrusive_ptr<c10::StorageImpl> storage_said_to_be_on(c10::Device device) {
  c10::DataPtr block = c10::GetDefaultCPUAllocator()->allocate(64);
  const c10::DeleterFnPtr deleter = block.get_deleter();
  void* const data = block.get();
  block.release_context();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 64,
                                               c10::DataPtr(data, data, deleter, device),
                                               /*allocator=*/nullptr, /*resizable=*/false);
}

TEST_CASE("a block of a device type without a wrapper is nobody's, however it is freed") {
  REQUIRE(registry().activate().ok());
  const int64_t before = registry().counters(at::kCPU).current_count;
  const c10::Device elsewhere(c10::DeviceType::PrivateUse1, 0);
  const auto foreign = storage_said_to_be_on(elsewhere);
  know_storage(*foreign);
  CHECK_FALSE(owns_watched_block(*foreign));
  CHECK(live_storages(elsewhere).empty());
  for (const c10::Device device : {elsewhere, c10::Device(at::kCUDA, 0)})
    CHECK(registry().counters(device).current_count == 0);
  CHECK(registry().counters(at::kCPU).current_count == before);

  const auto ours = storage_said_to_be_on(at::kCPU);
  know_storage(*ours);
  CHECK(owns_watched_block(*ours));
  CHECK(registry().counters(at::kCPU).current_count == before + 1);
  registry().deactivate();
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
