// CUDA graphs and streams as LibTorch programs use them: what they take, and that the books hold.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/relu.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/registry.h"

namespace memledger {
namespace {

const c10::Device kCuda0(c10::kCUDA, 0);
constexpr int64_t kMiB = 1 << 20;

Registry& registry() { return Registry::global(); }

bool is_late() {
  const char* const specification = std::getenv("MEMLEDGER_VIRTUAL_GPU");
  return specification != nullptr && std::string(specification).find("late") != std::string::npos;
}

bool has_expandable_segments() {
  const char* const settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  return settings != nullptr && std::string(settings).find("expandable") != std::string::npos;
}

bool is_malloc_async() {
  return c10::cuda::CUDACachingAllocator::get()->name() == "cudaMallocAsync";
}

// The rows against LibTorch's own statistics.
void check_books() {
  const Snapshot snapshot = registry().snapshot();
  const HookHealth health = registry().health();
  CHECK(health.unknown_frees == 0);
  CHECK(health.dropped_records == 0);
  CHECK(health.swallowed_exceptions == 0);
  if (is_malloc_async()) return;
  const auto statistics = device_statistics(kCuda0);
  const auto blocks = device_blocks(kCuda0);
  REQUIRE(statistics.has_value());
  REQUIRE(blocks.has_value());
  REQUIRE(snapshot.total_bytes(kCuda0) + blocks->awaiting_free_requested_bytes ==
          statistics->requested_bytes.current);
}

at::Tensor megabytes(int64_t count) {
  return at::empty({count * kMiB}, at::TensorOptions(kCuda0).dtype(at::kByte));
}

TEST_CASE("a captured graph keeps its pool until it is reset") {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  at::Tensor input = at::zeros({256, 1024}, kCuda0);
  at::Tensor weight = at::zeros({1024, 1024}, kCuda0);
  at::mm(input, weight);  // makes cuBLAS's workspace before the capture
  check_books();

  at::cuda::CUDAGraph graph;
  at::Tensor output;
  graph.capture_begin();
  {
    const at::Tensor hidden = at::relu(at::mm(input, weight));
    output = at::mm(hidden, weight);
  }
  graph.capture_end();
  check_books();
  const c10::MempoolId_t pool = graph.pool();
  CHECK(pool != c10::MempoolId_t{0, 0});
  bool is_row = false;
  for (const StorageInfo& storage : registry().snapshot().storages(kCuda0)) {
    if (storage.id != registry().storage_id(output)) continue;
    is_row = true;
    CHECK(storage.nbytes == 256 * 1024 * 4);
  }
  CHECK(is_row);
  graph.replay();
  graph.replay();
  stream.synchronize();
  check_books();

  const auto reserved = [] { return device_statistics(kCuda0)->reserved_bytes.current; };
  // From LibTorch 2.15 on cuBLAS has given its workspace back.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const int64_t with_graph = reserved();
  output.reset();
  c10::cuda::CUDACachingAllocator::emptyCache();
  check_books();
  if (!is_malloc_async()) CHECK(reserved() >= with_graph - 20 * kMiB);
  graph.reset();
  c10::cuda::CUDACachingAllocator::emptyCache();
  check_books();
  if (!is_malloc_async()) CHECK(reserved() < with_graph);
}

TEST_CASE("random numbers in a graph") {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::Tensor output = at::zeros({1000}, kCuda0);
  // LibTorch 2.15 makes its generator when it is first used, and refuses to in a capture.
  output.uniform_();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  output.uniform_();
  graph.capture_end();
  graph.replay();
  output.uniform_();
  check_books();
}

TEST_CASE("a block that another stream still uses is not given out again, on a device that lags") {
  if (is_malloc_async() || has_expandable_segments()) return;  // other steps of growth
  c10::cuda::device_synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const auto reserved = [] { return device_statistics(kCuda0)->reserved_bytes.current; };
  const int64_t before = reserved();
  {
    const at::Tensor first = megabytes(64);
    const c10::cuda::CUDAStreamGuard guard(side);
    const at::Tensor used = at::bitwise_not(first.slice(0, 0, 16));
    c10::cuda::CUDACachingAllocator::recordStream(first.storage().data_ptr(), side);
  }
  {
    const at::Tensor second = megabytes(64);
    // Besides the two: one segment of 2 MiB for the small tensor.
    CHECK(reserved() - before == (is_late() ? 130 : 66) * kMiB);
    check_books();
  }
  side.synchronize();
  const at::Tensor third = megabytes(64), fourth = megabytes(64);
  CHECK(reserved() - before == 130 * kMiB);
  check_books();
}

// Allocations, frees, streams, events, captures and replays at random.
void run_random_program(unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int bound) { return static_cast<int>(random() % bound); };
  std::vector<c10::cuda::CUDAStream> streams = {c10::cuda::getDefaultCUDAStream(),
                                                c10::cuda::getStreamFromPool(),
                                                c10::cuda::getStreamFromPool()};
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs;
  const auto allocate = [&] {
    tensors.push_back(at::empty({1 + draw(3) * 300 * 1024 + draw(1000)}, kCuda0));
  };
  for (int step = 0; step < 30; ++step) {
    const c10::cuda::CUDAStream stream = streams[draw(3)];
    const c10::cuda::CUDAStreamGuard guard(stream);
    switch (draw(8)) {
      case 0:
      case 1:
      case 2:
        allocate();
        break;
      case 3:
        if (!tensors.empty()) tensors.erase(tensors.begin() + draw(tensors.size()));
        break;
      case 4:
        if (!tensors.empty()) {
          const at::Tensor& tensor = tensors[draw(tensors.size())];
          c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
        }
        break;
      case 5: {
        at::cuda::CUDAEvent event;
        event.record(stream);
        event.block(streams[draw(3)]);
        if (draw(2)) stream.synchronize();
        break;
      }
      case 6: {
        if (stream == streams[0]) break;  // the legacy stream cannot capture
        auto graph = std::make_unique<at::cuda::CUDAGraph>();
        graph->capture_begin();
        const size_t before = tensors.size();
        for (int i = 0; i < 3; ++i) allocate();
        tensors.back().fill_(1);
        if (draw(2)) tensors.erase(tensors.begin() + before);
        graph->capture_end();
        graph->replay();
        graphs.push_back(std::move(graph));
        break;
      }
      case 7:
        if (!graphs.empty() && draw(2)) graphs.erase(graphs.begin() + draw(graphs.size()));
        if (draw(4) == 0) c10::cuda::CUDACachingAllocator::emptyCache();
        break;
      default:
        FAIL("there are eight");
    }
    check_books();
  }
  tensors.clear();
  graphs.clear();
  check_books();
}

TEST_CASE("random programs of allocations, streams, captures and frees") {
  const unsigned programs = std::getenv("MEMLEDGER_FULL") != nullptr ? 1000 : 60;
  for (unsigned seed = 0; seed < programs; ++seed) {
    CAPTURE(seed);
    run_random_program(seed);
  }
}

// The last one, as LibTorch does not get over it, on a real device either: its random generator and
// its allocator go on as if the capture went on.
TEST_CASE("a capture that fails is told to LibTorch, and CUDA goes on working") {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const at::Tensor input = at::ones({10}, kCuda0);
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    CHECK_THROWS(at::add(input, input).item<float>());
    CHECK_THROWS(stream.synchronize());
    CHECK_THROWS(graph.capture_end());
  }
  const at::Tensor sum = at::add(input, input);
  stream.synchronize();
  c10::cuda::device_synchronize();
  check_books();

  // A capture that succeeds repairs LibTorch's generator of random numbers. Its allocator on
  // cudaMallocAsync takes no second capture.
  if (is_malloc_async()) return;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    const at::Tensor again = at::add(input, input);
    graph.capture_end();
    graph.replay();
  }
  CHECK_NOTHROW(at::zeros({10}, kCuda0).uniform_());
  check_books();
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  const memledger::ScopedTracking tracking;
  return doctest::Context(argc, argv).run();
}
