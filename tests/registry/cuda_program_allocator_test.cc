// A program with a CUDA allocator of its own, set after memledger's wrapper took its place and
// before the first allocation, which is when LibTorch allows it.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdlib>
#include <map>
#include <stdexcept>

#include "registry/device_statistics.h"
#include "registry/registry.h"

namespace memledger {
namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;

Registry& registry() { return Registry::global(); }

const c10::Device kCuda0(c10::kCUDA, 0);

int64_t rows() { return registry().snapshot().total_bytes(kCuda0); }

c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator() {
  return *c10::cuda::CUDACachingAllocator::get();
}

// Nobody touches this memory, so any will do.
std::map<void*, size_t> held;
void* take(size_t nbytes, int, cudaStream_t) {
  void* const data = std::malloc(nbytes);
  held[data] = nbytes;
  return data;
}
void give(void* data, size_t nbytes, int, cudaStream_t) {
  CHECK(held.at(data) == nbytes);
  held.erase(data);
  std::free(data);
}

TEST_CASE(
    "an allocator that the program sets is obeyed, and watched from the next activation or "
    "snapshot on") {
  CHECK(registry().follows(kCuda0));
  const auto mine = pluggable::createCustomAllocator(take, give);
  pluggable::changeCurrentAllocator(mine);
  CHECK(allocator().name() == mine->name());
  CHECK_FALSE(registry().follows(kCuda0));
  REQUIRE(registry().activate().ok());
  CHECK(registry().follows(kCuda0));
  CHECK(allocator().name() == mine->name());
  CHECK_FALSE(device_blocks(kCuda0).has_value());  // it keeps none
  {
    c10::DataPtr data = allocator().allocate(1000);
    CHECK(held.size() == 1);
    CHECK(rows() == 1000);
    void* const raw = allocator().raw_alloc(500);
    CHECK(held.size() == 2);
    CHECK(rows() == 1500);
    CHECK((registry().snapshot().storages(kCuda0)[1].address == reinterpret_cast<uintptr_t>(raw)));
    CHECK(registry().snapshot().storages(kCuda0)[1].raw_block);
    allocator().raw_delete(raw);
    const at::Tensor tensor = at::detail::empty_generic(
        {50}, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kFloat, std::nullopt);
    CHECK(rows() == 1200);
  }
  CHECK(held.empty());
  CHECK(rows() == 0);

  // The program takes the wrapper out: obeyed, too, until the next snapshot. The same allocator
  // gets the same wrapper again.
  auto* const wrapper = &allocator();
  c10::cuda::CUDACachingAllocator::allocator.store(mine.get());
  c10::DataPtr unseen = allocator().allocate(100);
  CHECK(rows() == 0);
  CHECK(registry().snapshot().tracking_was_off(c10::kCUDA));
  CHECK(&allocator() == wrapper);
  c10::DataPtr seen = allocator().allocate(200);
  CHECK(rows() == 200);
  unseen.clear();
  seen.clear();
  CHECK(held.empty());
  CHECK(rows() == 0);
  CHECK(registry().health().unknown_frees == 0);
  CHECK(registry().health().dropped_records == 0);
}

// Imitates LibTorch's allocator after it could not read PYTORCH_CUDA_ALLOC_CONF: it says that it is
// initialized, but has no devices, and would end the process when asked for their figures.
class HalfMade : public pluggable::CUDAPluggableAllocator {
 public:
  using CUDAPluggableAllocator::CUDAPluggableAllocator;
  void init(int) override { throw std::runtime_error("settings that nobody can read"); }
  bool initialized() override { return true; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    ++asked;
    return {};
  }
  int asked = 0;
};

// The last case, as the process has no CUDA allocator after it.
TEST_CASE("an allocator that failed while it was made is not asked for statistics") {
  static HalfMade half_made(take, give);
  c10::cuda::CUDACachingAllocator::allocator.store(&half_made);
  (void)registry().snapshot();  // puts the wrapper in front
  REQUIRE(&allocator() != &half_made);
  (void)device_statistics(kCuda0);
  CHECK(half_made.asked == 1);
  CHECK_THROWS_WITH(allocator().init(1), "settings that nobody can read");
  CHECK_FALSE(device_statistics(kCuda0).has_value());
  CHECK_FALSE(device_blocks(kCuda0).has_value());
  CHECK(half_made.asked == 1);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
