// The CUDA allocator wrapper over LibTorch's own allocator, against that allocator's statistics and
// snapshot. Links LibTorch's small CUDA library (c10_cuda) only, and runs on the virtual GPU or a
// real one. The same binary runs with different settings of PYTORCH_CUDA_ALLOC_CONF and
// PYTORCH_NO_CUDA_MEMORY_CACHING: what an allocator keeps no figures of is held against the test's
// own.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/registry.h"

// LibTorch's header defines a function that calls it, and this program does not link with CUDA's
// own library: LibTorch does.
#pragma weak cudaMemGetInfo

// Streams of LibTorch's pool ask libtorch_cuda whether a device is in use. This program does
// without it.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}

namespace memledger {
namespace {

namespace cca = c10::cuda::CUDACachingAllocator;

Registry& registry() { return Registry::global(); }

c10::Device device(int index = 0) {
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

cca::CUDAAllocator& allocator() { return *cca::get(); }

bool full() { return std::getenv("MEMLEDGER_FULL") != nullptr; }

// What the allocator in use can report.
bool is_native() { return allocator().name() == "native"; }
bool is_caching() { return is_native() && device_statistics(device())->caching; }

int64_t rows(c10::Device where = device()) { return registry().snapshot().total_bytes(where); }

void check_healthy() {
  const HookHealth health = registry().health();
  CHECK(health.unknown_frees == 0);
  CHECK(health.dropped_records == 0);
  CHECK(health.swallowed_exceptions == 0);
}

// The table, the wrapper's counter, LibTorch's statistics and LibTorch's blocks all say the same.
void check_figures(c10::Device where, int64_t before_tracking = 0) {
  const Snapshot snapshot = registry().snapshot();
  const int64_t ours = snapshot.total_bytes(where);
  CHECK(snapshot.counters(where).current_bytes == ours);
  if (!is_caching()) return;
  const auto statistics = device_statistics(where);
  REQUIRE(statistics.has_value());
  const auto blocks = device_blocks(where);
  REQUIRE(blocks.has_value());
  CHECK(ours + before_tracking == blocks->requested_bytes);
  CHECK(ours + before_tracking + blocks->awaiting_free_requested_bytes ==
        statistics->requested_bytes.current);
  CHECK(blocks->allocated_bytes() == statistics->allocated_bytes.current);
  CHECK(blocks->active_bytes() == statistics->active_bytes.current);
  CHECK(blocks->reserved_bytes() == statistics->reserved_bytes.current);
  bool expandable = false;  // such segments are not in LibTorch's number of segments
  for (const DeviceSegment& segment : blocks->segments)
    expandable = expandable || segment.expandable;
  if (!expandable)
    CHECK(static_cast<int64_t>(blocks->segments.size()) == statistics->segments.current);
  int64_t in_use = 0;
  for (const DeviceSegment& segment : blocks->segments) {
    int64_t sum = 0;
    for (const DeviceBlock& block : segment.blocks) {
      sum += block.nbytes;
      if (block.state == BlockState::kFree) continue;
      CHECK(block.requested_bytes <= block.nbytes);
      CHECK(block.unsplit_bytes() >= 0);
      if (block.state != BlockState::kInUse) continue;
      ++in_use;
      if (before_tracking != 0) continue;
      const StorageInfo* const row =
          snapshot.find_address(where, reinterpret_cast<const void*>(block.address));
      REQUIRE(row != nullptr);
      CHECK(row->nbytes == block.requested_bytes);
      CHECK(row->device == where);
    }
    CHECK(sum == segment.nbytes);
  }
  if (before_tracking == 0) CHECK(in_use == static_cast<int64_t>(snapshot.storages(where).size()));
}

at::Tensor empty(int64_t nbytes) {
  return at::detail::empty_generic(
      {nbytes}, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kByte, std::nullopt);
}

// One after the other: the state of the process goes forward only.
TEST_CASE("before the allocator is initialized, and before activation") {
  CHECK_FALSE(registry().active());
  CHECK_FALSE(device_statistics(device()).has_value());
  CHECK_FALSE(device_blocks(device()).has_value());
  CHECK_FALSE(device_statistics(c10::Device(c10::kCPU)).has_value());
  CHECK(library_workspaces().empty());
  CHECK(registry().follows(device()));
  CHECK_FALSE(allocator().initialized());
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  // Done by libtorch_cuda in a program that loads it; from 2.15 on expandable segments ask for it.
  c10::cuda::detail::init_p2p_access_cache(c10::cuda::device_count());
#endif
  allocator().init(c10::cuda::device_count());
  CHECK(allocator().initialized());
  REQUIRE(device_statistics(device()).has_value());
  CHECK_FALSE(device_statistics(device(100)).has_value());
  CHECK_FALSE(registry().snapshot().unseen_before_tracking(c10::kCUDA));
}

struct BornEarly {
  at::Tensor reached = empty(1000);
  at::Tensor operand = empty(2000);
  at::Tensor unreached = empty(4000);
  c10::DataPtr block = allocator().allocate(500);
  void* raw = allocator().raw_alloc(300);
};

TEST_CASE("blocks born before activation: told by the statistics, adopted when reached") {
  auto early = std::make_unique<BornEarly>();
  CHECK(registry().snapshot().unseen_before_tracking(c10::kCUDA));
  CHECK_FALSE(registry().snapshot().unseen_before_tracking(c10::kCPU));
  CHECK((allocator().raw_deleter() == early->block.get_deleter()));
  REQUIRE(registry().activate().ok());
  CHECK(rows() == 0);
  check_figures(device(), 7800);

  CHECK(registry().storage_id(early->reached) != 0);
  CHECK(rows() == 1000);
  CHECK(registry().snapshot().storages(device())[0].adopted);
  { auto seen_by_operator = early->operand.detach(); }
  CHECK(rows() == 3000);
  CHECK(registry().snapshot().devices().back().adopted_bytes == 3000);
  check_figures(device(), 4800);

  // Freed by whatever way there is.
  early->block.clear();
  allocator().raw_delete(early->raw);
  check_figures(device(), 4000);
  CHECK(registry().storage_id(early->unreached) != 0);
  check_figures(device(), 0);
  early.reset();
  CHECK(rows() == 0);
  check_figures(device());
  check_healthy();
}

TEST_CASE("the program sees the allocator it would see") {
  CHECK((c10::GetAllocator(c10::kCUDA) == &allocator()));
  CHECK((allocator().name() == "native" || allocator().name() == "cudaMallocAsync"));
  c10::DataPtr data = allocator().allocate(100);
  CHECK(data.get() == data.get_context());
  CHECK((data.get_deleter() == allocator().raw_deleter()));
  CHECK(allocator().is_simple_data_ptr(data));
  if (is_caching()) {
    size_t nbytes = 0;
    if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr)
      CHECK(allocator().getBaseAllocation(data.get(), &nbytes) == data.get());
    size_t largest = 0;
    allocator().cacheInfo(0, &largest);
    CHECK(largest >= static_cast<size_t>(device_blocks(device())->largest_free_block));
  }
  { c10::DataPtr nothing = allocator().allocate(0); }
  CHECK(allocator().raw_alloc(0) == nullptr);
  CHECK(registry().snapshot().storages(device()).size() == 1);
}

TEST_CASE("raw blocks") {
  void* const one = allocator().raw_alloc(1000);
  void* const two =
      allocator().raw_alloc_with_stream(2000, c10::cuda::getDefaultCUDAStream().stream());
  check_figures(device());
  const Snapshot snapshot = registry().snapshot();
  REQUIRE(snapshot.find_address(device(), one) != nullptr);
  CHECK(snapshot.find_address(device(), one)->raw_block);
  CHECK(snapshot.find_address(device(), two)->nbytes == 2000);
  {
    auto tensor = empty(10);
    CHECK_FALSE(registry().snapshot().storages(device()).back().raw_block);
  }
  allocator().raw_delete(one);
  CHECK(rows() == 2000);
  // A DataPtr put around it.
  { c10::DataPtr around(two, two, allocator().raw_deleter(), device()); }
  CHECK(rows() == 0);
  // The other way round: cudagraph trees take blocks out of their DataPtr and delete them by
  // address.
  c10::DataPtr data = allocator().allocate(3000);
  CHECK(data.compare_exchange_deleter(allocator().raw_deleter(), c10::detail::deleteNothing));
  allocator().raw_delete(data.get());
  CHECK(rows() == 0);
  void* const by_c10 = allocator().raw_allocate(400);
  CHECK(rows() == 400);
  allocator().raw_deallocate(by_c10);
  if (is_native()) allocator().raw_delete(nullptr);  // cudaMallocAsync refuses it
  CHECK(rows() == 0);
  check_figures(device());
  check_healthy();
}

TEST_CASE("a block used on another stream is not reused before that stream has passed") {
  if (!is_caching()) return;
  const auto side = c10::cuda::getStreamFromPool();
  const auto awaited = [] { return device_blocks(device())->awaiting_free_bytes; };
  for (int variant = 0; variant < 3; ++variant) {
    c10::DataPtr data = allocator().allocate(5 << 20);
    void* const address = data.get();
    if (variant == 1) allocator().recordStream(data, side);
    if (variant == 2) allocator().recordStream(data, side.unwrap());
    CHECK(data.get() == address);
    CHECK(rows() == 5 << 20);
    data.clear();
    CHECK(rows() == 0);
    CHECK(awaited() == (variant == 0 ? 0 : 5 << 20));
    check_figures(device());
    c10::impl::getDeviceGuardImpl(c10::kCUDA)->synchronizeStream(side.unwrap());
    { c10::DataPtr next = allocator().allocate(512); }  // lets the allocator look at its events
    CHECK(awaited() == 0);
    check_figures(device());
  }
  // Memory of others, copy-on-write, nothing: as LibTorch takes it.
  c10::DataPtr foreign(&registry(), device());
  allocator().recordStream(foreign, side);
  c10::DataPtr nothing;
  allocator().recordStream(nothing, side);
  check_healthy();
}

TEST_CASE("copy-on-write: counted where memory is, whoever holds it") {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, &allocator(), /*resizable=*/true);
  const uint64_t id = registry().snapshot().storages(device())[0].id;
  {
    c10::intrusive_ptr<c10::StorageImpl> copy =
        c10::impl::cow::lazy_clone_storage(*storage.unsafeGetStorageImpl());
    REQUIRE(copy);
    CHECK(rows() == 4096);
    copy->mutable_data();  // materializes
    CHECK(rows() == 8192);
    check_figures(device());
  }
  CHECK(rows() == 4096);
  CHECK(registry().snapshot().find(id) != nullptr);
  storage = c10::Storage();
  CHECK(rows() == 0);
  check_figures(device());
  check_healthy();
}

TEST_CASE("LibTorch's out-of-memory error reaches the program, and the books stay right") {
  if (!is_native()) return;
  size_t free = allocator().getMemoryInfo(0).first;
  const size_t piece = free / 8;
  int seen = 0;
  std::vector<c10::DataPtr> held;
  const auto before = device_statistics(device())->out_of_memory_errors;
  // An observer that writes down who held what does it here: everything can be read. LibTorch
  // cannot detach an observer.
  static int64_t rows_in_observer = -1;
  if (is_caching()) {
    allocator().attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) {
      rows_in_observer = rows();
      check_figures(device());
    });
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    for (int i = 0; i < 20; ++i) {
      try {
        held.push_back(allocator().allocate(piece));
      } catch (const c10::OutOfMemoryError& error) {
        ++seen;
        if (is_caching())
          CHECK(std::string(error.what()).find("Tried to allocate") != std::string::npos);
        break;
      } catch (const c10::Error&) {  // uncached, the driver's error comes as it is
        ++seen;
        break;
      }
    }
    CHECK(seen == attempt + 1);
    CHECK(held.size() >= 6);
    CHECK(rows() == static_cast<int64_t>(held.size() * piece));
    check_figures(device());
    if (is_caching()) CHECK(rows_in_observer == rows());
    CHECK_THROWS_AS(allocator().raw_alloc(free), c10::Error);
    check_figures(device());
    held.clear();
    CHECK(rows() == 0);
    if (is_caching())
      CHECK(device_statistics(device())->out_of_memory_errors == before + 2 * (attempt + 1));
    {
      auto works_again = empty(1 << 20);
      CHECK(rows() == 1 << 20);
    }
    allocator().emptyCache({0, 0});
    check_figures(device());
  }
  if (is_caching()) CHECK(device_statistics(device())->reserved_bytes.current == 0);
  CHECK_THROWS_AS(allocator().allocate(size_t{1} << 62), c10::OutOfMemoryError);
  CHECK(rows() == 0);
  check_healthy();
}

TEST_CASE("private memory pools: their blocks are rows, their segments are not") {
  if (!is_caching()) return;
  const c10::MempoolId_t pool{0, 17};
  allocator().createOrIncrefPool(0, pool, nullptr);
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  std::vector<c10::DataPtr> inside;
  for (int i = 1; i <= 5; ++i) inside.push_back(allocator().allocate(i * 100000));
  allocator().endAllocateToPool(0, pool);
  c10::DataPtr outside = allocator().allocate(1000);
  CHECK(rows() == 1500000 + 1000);
  check_figures(device());
  bool found = false;
  const auto blocks = device_blocks(device());
  for (const DeviceSegment& segment : blocks->segments)
    found = found || segment.pool == std::pair<uint64_t, uint64_t>(0, 17);
  CHECK(found);
  inside.clear();
  CHECK(rows() == 1000);
  check_figures(device());
  allocator().releasePool(0, pool);
  allocator().emptyCache({0, 0});
  outside.clear();
  check_figures(device());
  check_healthy();
}

TEST_CASE("a checkpoint of a pool: blocks that it frees and makes by itself are followed") {
  if (!is_caching()) return;
  const c10::MempoolId_t pool{0, 19};
  allocator().createOrIncrefPool(0, pool, nullptr);
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr kept = allocator().allocate(3000);
  c10::DataPtr also = allocator().allocate(700000);
  const auto state = allocator().getCheckpointState(0, pool);
  c10::DataPtr later = allocator().allocate(5000);
  CHECK(rows() == 708000);
  // As cudagraph trees do: whoever holds blocks of the pool lets go of them without freeing.
  const auto forget = [](c10::DataPtr& data) {
    REQUIRE(data.compare_exchange_deleter(allocator().raw_deleter(), c10::detail::deleteNothing));
  };
  void* const kept_address = kept.get();
  forget(kept);
  forget(also);
  forget(later);
  cca::CheckpointDelta delta = allocator().setCheckpointPoolState(0, state);
  allocator().endAllocateToPool(0, pool);
  CHECK(delta.ptrs_freed.size() == 3);
  REQUIRE(delta.dataptrs_allocd.size() == 2);
  check_figures(device());
  CHECK(registry().snapshot().storages(device()).size() == 2);
  CHECK(registry().snapshot().find_address(device(), kept_address) != nullptr);
  for (const c10::DataPtr& data : delta.dataptrs_allocd)
    CHECK((data.get_deleter() == allocator().raw_deleter()));
  delta.dataptrs_allocd.clear();
  CHECK(rows() == 0);
  check_figures(device());
  allocator().releasePool(0, pool);
  allocator().emptyCache({0, 0});
  check_figures(device());
  check_healthy();
}

// Random allocations and frees, raw ones and uses on other streams among them, as `seed` says.
class Storm {
 public:
  Storm(uint32_t seed, int streams, int devices) : random_(seed), devices_(devices) {
    for (int d = 0; d < devices; ++d) {
      std::vector<c10::cuda::CUDAStream>& mine = streams_.emplace_back();
      mine.push_back(c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(d)));
      while (static_cast<int>(mine.size()) < streams) {
        mine.push_back(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(d)));
      }
    }
  }

  void step() {
    if (live_.size() < 20 || (live_.size() < 400 && random_() % 2 == 0)) {
      make();
    } else {
      drop(random_() % live_.size());
    }
    if (random_() % 5000 == 0) allocator().emptyCache({0, 0});
  }

  void finish() {
    while (!live_.empty()) drop(live_.size() - 1);
  }

  int64_t live_bytes(int d) const {
    int64_t sum = 0;
    for (const Block& block : live_) {
      if (block.device == d) sum += static_cast<int64_t>(block.nbytes);
    }
    return sum;
  }
  int out_of_memory = 0;

 private:
  struct Block {
    c10::DataPtr data;
    void* raw = nullptr;
    size_t nbytes = 0;
    int device = 0;
  };

  size_t some_size() {
    switch (random_() % 8) {
      case 0:
        return 1 + random_() % 512;
      case 1:
        return 1 + random_() % (24 << 20);
      case 2:
        return (1 << 20) * (1 + random_() % 12);
      default:
        return 1 + random_() % 200000;
    }
  }

  void make() {
    Block block;
    block.nbytes = some_size();
    block.device = static_cast<int>(random_() % devices_);
    const auto& streams = streams_[block.device];
    const c10::StreamGuard on(streams[random_() % streams.size()].unwrap());
    try {
      switch (random_() % 10) {
        case 0:
          block.raw = allocator().raw_alloc(block.nbytes);
          break;
        case 1:
          block.raw = allocator().raw_alloc_with_stream(
              block.nbytes, streams[random_() % streams.size()].stream());
          break;
        default:
          block.data = allocator().allocate(block.nbytes);
          if (random_() % 4 == 0)
            allocator().recordStream(block.data, streams[random_() % streams.size()]);
      }
    } catch (const c10::Error&) {
      ++out_of_memory;
      while (live_.size() > 10) drop(random_() % live_.size());
      return;
    }
    live_.push_back(std::move(block));
  }

  void drop(size_t which) {
    Block block = std::move(live_[which]);
    live_[which] = std::move(live_.back());
    live_.pop_back();
    if (block.raw != nullptr) allocator().raw_delete(block.raw);
  }

  std::mt19937 random_;
  const unsigned devices_;
  std::vector<std::vector<c10::cuda::CUDAStream>> streams_;
  std::vector<Block> live_;
};

TEST_CASE("storms: after every thousand operations the registry says what the allocator says") {
  const int seeds = full() ? 200 : 12;
  const int devices = static_cast<int>(c10::cuda::device_count());
  int out_of_memory = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const bool scarce = is_caching() && seed % 4 == 3;
    if (scarce) {
      const double total = static_cast<double>(allocator().getMemoryInfo(0).second);
      for (int d = 0; d < devices; ++d)
        allocator().setMemoryFraction(200e6 / total, static_cast<c10::DeviceIndex>(d));
    }
    Storm storm(seed, 1 + seed % 3, 1 + seed % std::min(devices, 2));
    for (int thousand = 0; thousand < (full() ? 20 : 5); ++thousand) {
      for (int i = 0; i < 1000; ++i) storm.step();
      for (int d = 0; d < devices; ++d) {
        CHECK(rows(device(d)) == storm.live_bytes(d));
        check_figures(device(d));
      }
    }
    storm.finish();
    out_of_memory += storm.out_of_memory;
    if (scarce) {
      for (int d = 0; d < devices; ++d)
        allocator().setMemoryFraction(1.0, static_cast<c10::DeviceIndex>(d));
    }
    for (int d = 0; d < devices; ++d) {
      CHECK(rows(device(d)) == 0);
      check_figures(device(d));
    }
    check_healthy();
  }
  MESSAGE(seeds << " storms, " << out_of_memory << " out of memory");
  allocator().emptyCache({0, 0});
}

TEST_CASE("several threads, freeing each other's blocks") {
  std::vector<std::thread> threads;
  std::atomic<c10::DataPtr*> handed{nullptr};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<c10::DataPtr> held(50);
      for (int i = 0; i < 20000; ++i) {
        held[random() % held.size()] = allocator().allocate(1 + random() % 100000);
        if (i % 10 == 0) delete handed.exchange(new c10::DataPtr(allocator().allocate(700)));
        if (i % 1000 == 0) registry().snapshot();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(rows() == 700);
  check_figures(device());
  delete handed.exchange(nullptr);
  CHECK(rows() == 0);
  check_figures(device());
  check_healthy();
}

TEST_CASE("devices are told apart") {
  if (c10::cuda::device_count() < 2) return;
  c10::DataPtr first = allocator().allocate(1000);
  c10::DataPtr second;
  void* raw = nullptr;
  {
    const c10::DeviceGuard guard(device(1));
    second = allocator().allocate(2000);
    raw = allocator().raw_alloc(4000);
  }
  CHECK(rows(device(0)) == 1000);
  CHECK(rows(device(1)) == 6000);
  CHECK(registry().counters(device(1)).current_bytes == 6000);
  check_figures(device(0));
  check_figures(device(1));
  second.clear();
  allocator().raw_delete(raw);
  CHECK(rows(device(1)) == 0);
  CHECK(rows(device(0)) == 1000);
}

TEST_CASE(
    "off: the allocator is as without us, what was seen is followed to its end, a gap is told per "
    "device type") {
  c10::DataPtr seen = allocator().allocate(1000);
  registry().deactivate();
  REQUIRE_FALSE(registry().active());
  at::Tensor in_gap = empty(2000);
  CHECK(rows() == 1000);
  CHECK(registry().snapshot().tracking_was_off(c10::kCUDA));
  CHECK_FALSE(registry().snapshot().tracking_was_off(c10::kCPU));
  seen.clear();
  CHECK(rows() == 0);
  REQUIRE(registry().activate().ok());
  CHECK(registry().storage_id(in_gap) != 0);
  CHECK(rows() == 2000);
  in_gap = at::Tensor();
  CHECK(rows() == 0);
  check_figures(device());

  // Blocks that LibTorch was set not to cache are freed in another way, and known by it all the
  // same.
  if (is_caching()) {
    registry().deactivate();
    allocator().enable(false);
    at::Tensor uncached = empty(3000);
    allocator().enable(true);
    REQUIRE(registry().activate().ok());
    CHECK(registry().storage_id(uncached) != 0);
    CHECK(rows() == 3000);
    uncached = at::Tensor();
    CHECK(rows() == 0);
    at::Tensor cached = empty(1000);
    check_figures(device());
  }
  check_figures(device());
  check_healthy();
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return doctest::Context(argc, argv).run();
}
