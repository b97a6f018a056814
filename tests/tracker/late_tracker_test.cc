// A tracker that comes when the tensors are already there. Whether tracking ever was on is of the
// whole process, so this has a binary to itself.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/temporary_folder.h"
#include "tracker/mem_tracker.h"

namespace memledger {
namespace {

std::string in_words(const SnapshotDiff& diff) {
  std::string text;
  for (const DiffRow& row : diff.rows) text += to_string(row) + "\n";
  return text;
}

TEST_CASE(
    "tensors born before tracking are found through what is registered, and their rows say so") {
  const at::Tensor unseen = torch::ones({100});
  torch::nn::Linear net(8, 16);
  at::Tensor mine = torch::ones({10, 10}, torch::kLong);

  const testing::TemporaryFolder folder;
  TrackerOptions options;
  options.path = folder.path();
  options.device = at::kCPU;
  MemTracker tracker(options);
  tracker.add_module("net", net).add_tensor("mine", mine);
  const SnapshotDiff first = tracker.track();
  CHECK(in_words(first) ==
        "+ | 1 * Size:(10, 10)             | Memory: 0.0007 M | Tensor               | torch.int64 "
        "| mine (before tracking)\n"
        "+ | 1 * Size:(16, 8)              | Memory: 0.0004 M | Parameter            | "
        "torch.float32 | net.weight (before "
        "tracking)\n"
        "+ | 1 * Size:(16,)                | Memory: 6.104e-05 M | Parameter            | "
        "torch.float32 | net.bias (before "
        "tracking)\n");
  CHECK(first.tensor_bytes == 800 + 16 * 8 * 4 + 16 * 4);
  CHECK(first.unseen_before_tracking);
  mine.reset();
  const SnapshotDiff second = tracker.track();
  CHECK(in_words(second) ==
        "- | 1 * Size:(10, 10)             | Memory: 0.0007 M | Tensor               | torch.int64 "
        "| mine\n");
  CHECK(second.tensor_bytes == 16 * 8 * 4 + 16 * 4);
}

}  // namespace
}  // namespace memledger
