// What a report advises against fragmentation, by whose allocator it is and what was asked of it:
// run once for each.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <c10/core/AllocatorConfig.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/registry.h"
#include "reporter/out_of_memory.h"
#include "tests/support/text_matchers.h"

namespace memledger {
namespace {

using testing::contains;

constexpr int64_t kGiB = int64_t{1} << 30;
const c10::Device kCuda0(c10::kCUDA, 0);

std::string asked_for(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST_CASE(
    "expandable segments are advised where they are off, and to LibTorch's own allocator only") {
  const ScopedTracking tracking;
  const at::TensorOptions bytes = at::TensorOptions(kCuda0).dtype(at::kByte);
  // 1 GiB in two pieces between others.
  std::vector<at::Tensor> pieces;
  { const at::Tensor whole = at::empty({2 * kGiB}, bytes); }
  for (int i = 0; i < 4; ++i) pieces.push_back(at::empty({kGiB / 2}, bytes));
  pieces[0] = at::Tensor();
  pieces[2] = at::Tensor();
  AllocationFailure failure;
  failure.device = kCuda0;
  failure.requested_bytes = kGiB;
  std::string text = out_of_memory_report(failure);
  CAPTURE(text);
  const std::string asked = asked_for("PYTORCH_CUDA_ALLOC_CONF") + asked_for("PYTORCH_ALLOC_CONF");
  const std::string advice = "would be enough, but the largest has 512.00M: the cache ";
  if (contains(asked, "cudaMallocAsync")) {
    REQUIRE(device_statistics(kCuda0).value().allocator == "cudaMallocAsync");
    // Enough is free, and in one piece for all that anybody knows.
    REQUIRE(device_statistics(kCuda0)->reserved_bytes.current -
                device_statistics(kCuda0)->active_bytes.current >=
            kGiB);
    CHECK_FALSE(contains(text, "fragment"));
    CHECK_FALSE(contains(text, "largest free block"));
    CHECK_FALSE(contains(text, "xpandable"));
  } else if (contains(asked, "expandable_segments")) {
    CHECK(contains(text, advice + "is fragmented. Expandable segments are on already.\n"));
    CHECK_FALSE(contains(text, "PYTORCH_CUDA_ALLOC_CONF"));
  } else {
    CHECK(contains(
        text,
        advice +
            "is fragmented. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets blocks grow.\n"));
    // Asked for by the program itself.
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
    text = out_of_memory_report(failure);
    CHECK(contains(text, advice + "is fragmented. Expandable segments are on already.\n"));
  }
  CHECK(contains(
      text,
      "Who holds it, by role, as far as operators show it:\n       1.00G       2 x  Tensor "
      "[forward]\n"));
}

TEST_CASE("weights that do not fit are told to be smaller, in the dtype that they have") {
  const ScopedTracking tracking;
  AllocationFailure failure;
  failure.device = kCuda0;
  failure.requested_bytes = kGiB;
  const auto report_with = [&](at::ScalarType dtype) {
    const at::TensorOptions options = at::TensorOptions(kCuda0).dtype(dtype);
    const at::Tensor weight =
        at::empty({6 * kGiB / static_cast<int64_t>(c10::elementSize(dtype))}, options);
    const at::Tensor input = at::ones({kGiB / 8}, options);
    return out_of_memory_report(failure);
  };
  CHECK(contains(report_with(at::kFloat),
                 "Advice: 6.00G look like weights, of float32: as bfloat16 they take half; or "));
  CHECK(contains(report_with(at::kBFloat16),
                 "Advice: 6.00G look like weights: quantized to 8 or 4 bits they take less; or "));
  CHECK_FALSE(contains(report_with(at::kByte), "weights"));
  // They are not what a graph holds.
  failure.phase = Phase::kForward;
  CHECK_FALSE(contains(report_with(at::kFloat), "made in a forward pass"));
  failure.phase = Phase::kOther;
  // Half of the device, and more that is asked for as weights are.
  failure.op = "aten::to";
  const at::Tensor half = at::empty({kGiB}, at::TensorOptions(kCuda0).dtype(at::kFloat));
  CHECK(contains(out_of_memory_report(failure),
                 "Advice: 5.00G look like weights, with what was asked for, of float32"));
}

}  // namespace
}  // namespace memledger
