// A program that loads LibTorch's CUDA library long after it began to watch, as Python does: it is
// not linked with it.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <dlfcn.h>

#include <thread>

#include "registry/device_statistics.h"
#include "registry/registry.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

const c10::Device kCuda0(c10::kCUDA, 0);

TEST_CASE("nothing of CUDA, then all of it") {
  REQUIRE(registry().activate().ok());
  { const at::Tensor warm_up = at::ones({10}); }
  CHECK_FALSE(registry().follows(kCuda0));
  CHECK_FALSE(device_statistics(kCuda0).has_value());
  CHECK_FALSE(device_blocks(kCuda0).has_value());
  CHECK_FALSE(pinned_statistics().has_value());
  CHECK(library_workspaces().empty());
  // memledger brings no CUDA library in.
  CHECK(dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr);

  // RTLD_LOCAL: its symbols are seen by nobody who does not ask this library.
  void* const library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    MESSAGE("skipped: " << dlerror());
    return;
  }
  // No snapshot comes between: the operator itself notices.
  const at::Tensor first = at::ones({1000}, kCuda0);
  CHECK(registry().counters(kCuda0).current_bytes == 4000);
  CHECK(registry().follows(kCuda0));
  CHECK_FALSE(registry().snapshot().unseen_before_tracking(c10::kCUDA));
  CHECK(registry().snapshot().find(registry().storage_id(first))->op == "aten::ones");
  REQUIRE(device_statistics(kCuda0).has_value());
  CHECK(device_statistics(kCuda0)->requested_bytes.current == 4000);
  std::thread([] { const at::Tensor other = at::ones({1000}, kCuda0); }).join();
  CHECK(registry().snapshot().total_bytes(kCuda0) == 4000);
  CHECK(registry().health().unknown_frees == 0);
  CHECK(registry().health().swallowed_exceptions == 0);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
