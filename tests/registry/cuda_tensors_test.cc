// CUDA tensors as programs make them, with the whole of LibTorch's CUDA code: on the virtual GPU or
// a real one.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/ops/resize.h>
#include <dlfcn.h>

#include <string>

#include "registry/device_statistics.h"
#include "registry/registry.h"
#include "tests/support/kept_workspaces.h"
#include "tests/support/printed_values.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

const c10::Device kCuda0(c10::kCUDA, 0);

int64_t rows(c10::Device device = kCuda0) { return registry().snapshot().total_bytes(device); }

void check_figures() {
  const Snapshot snapshot = registry().snapshot();
  const auto statistics = device_statistics(kCuda0);
  REQUIRE(statistics.has_value());
  const auto blocks = device_blocks(kCuda0);
  REQUIRE(blocks.has_value());
  CHECK(snapshot.total_bytes(kCuda0) == blocks->requested_bytes);
  CHECK(snapshot.total_bytes(kCuda0) + blocks->awaiting_free_requested_bytes ==
        statistics->requested_bytes.current);
  CHECK(blocks->allocated_bytes() == statistics->allocated_bytes.current);
  CHECK(blocks->reserved_bytes() == statistics->reserved_bytes.current);
  CHECK(snapshot.counters(kCuda0).current_bytes == snapshot.total_bytes(kCuda0));
  const HookHealth health = registry().health();
  CHECK(health.unknown_frees == 0);
  CHECK(health.dropped_records == 0);
  CHECK(health.swallowed_exceptions == 0);
}

at::Tensor made_early;

TEST_CASE("before the first CUDA tensor, and before activation") {
  CHECK_FALSE(device_statistics(kCuda0).has_value());
  CHECK(library_workspaces().empty());
  REQUIRE(pinned_statistics().has_value());
  CHECK(pinned_statistics()->reserved_bytes.current == 0);
  made_early = at::zeros({100}, kCuda0);
  REQUIRE(registry().activate().ok());
  CHECK(rows() == 0);
  CHECK(registry().snapshot().unseen_before_tracking(c10::kCUDA));
}

TEST_CASE("an operator's inputs are adopted, and a resize of one is followed") {
  { const at::Tensor sum = at::neg(made_early); }
  CHECK(rows() == 400);
  made_early.resize_({1000});
  CHECK(rows() == 4000);
  check_figures();
  made_early = at::Tensor();
  CHECK(rows() == 0);
  check_figures();
}

TEST_CASE("rows say where tensors come from") {
  const at::Tensor tensor = at::ones({3, 5}, at::device(kCuda0).dtype(at::kDouble));
  const Snapshot snapshot = registry().snapshot();
  const StorageInfo* const row = snapshot.find(registry().storage_id(tensor));
  REQUIRE(row != nullptr);
  CHECK(row->op == "aten::ones");
  CHECK(row->shape == c10::DimVector{3, 5});
  CHECK((row->dtype == at::kDouble));
  CHECK(row->nbytes == 120);
  CHECK_FALSE(row->raw_block);
  CHECK_FALSE(row->adopted);
  check_figures();
}

TEST_CASE("views, lazy clones, resizes and copies between devices") {
  at::Tensor tensor = at::empty({1000}, kCuda0);
  const at::Tensor view = tensor.slice(0, 10, 20);
  CHECK(rows() == 4000);
  tensor.resize_({5000});
  CHECK(rows() == 20000);
  at::Tensor lazy = at::_lazy_clone(tensor);
  CHECK(rows() == 20000);
  lazy.fill_(1);
  CHECK(rows() == 40000);
  const at::Tensor moved = at::ones({100}).to(kCuda0);
  CHECK(rows() == 40400);
  const at::Tensor back = moved.cpu();
  CHECK(rows() == 40400);
  check_figures();
}

TEST_CASE("library workspaces have names") {
  CHECK(library_workspaces().empty());
  {
    const at::Tensor a = at::ones({64, 64}, kCuda0);
    const at::Tensor product = at::mm(a, a);
  }
  const auto workspaces = library_workspaces();
  if (!testing::keeps_workspaces()) {
    CHECK(workspaces.empty());
    CHECK(rows() == 0);
    check_figures();
    return;
  }
  REQUIRE(workspaces.size() == 1);
  CHECK(workspaces[0].library == "cuBLAS");
  CHECK(workspaces[0].name() == "cuBLAS workspace (stream 0)");
  CHECK((workspaces[0].device == kCuda0));
  const Snapshot snapshot = registry().snapshot();
  const StorageInfo* const row =
      snapshot.find_address(kCuda0, reinterpret_cast<const void*>(workspaces[0].address));
  REQUIRE(row != nullptr);
  CHECK(row->nbytes == rows());
  CHECK(row->op == "aten::mm");
  CHECK_FALSE(row->dtype.has_value());
  check_figures();
  auto* const clear =
      reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv"));
  REQUIRE((clear != nullptr));
  clear();
  CHECK(library_workspaces().empty());
  CHECK(rows() == 0);
  check_figures();
}

TEST_CASE("a workspace's name tells streams apart") {
  LibraryWorkspace workspace;
  workspace.library = "cuBLASLt";
  workspace.stream = 0x7f12;
  CHECK(workspace.name() == "cuBLASLt workspace (stream 0x7f12)");
}

TEST_CASE("pinned memory has its own line, and is in no row") {
  const int64_t cpu = rows(at::kCPU);
  {
    const at::Tensor pinned = at::empty({1000}, at::TensorOptions().pinned_memory(true));
    const auto statistics = pinned_statistics();
    REQUIRE(statistics.has_value());
    CHECK(statistics->in_use_bytes.current >= 4000);
    CHECK(statistics->in_use_blocks.current == 1);
    CHECK(statistics->reserved_bytes.current >= statistics->in_use_bytes.current);
    CHECK(statistics->driver_allocations >= 1);
    CHECK(rows(at::kCPU) == cpu);
    CHECK(registry().storage_id(pinned) == 0);
  }
  const auto statistics = pinned_statistics();
  if (statistics->in_use_is_exact) CHECK(statistics->in_use_bytes.current == 0);
  CHECK(statistics->in_use_bytes.peak >= 4000);
  CHECK(statistics->reserved_bytes.current >= 4000);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
