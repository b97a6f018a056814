// Growth at one of two lines that make the same tensors in the same operator. Built with -g.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/ones.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "registry/registry.h"
#include "tests/support/printed_values.h"
#include "tests/support/text_matchers.h"
#include "tracker/growth_finder.h"

namespace program {

constexpr int kLineOfLeak = __LINE__ + 1;
__attribute__((noinline)) at::Tensor remember() { return at::ones({1024}); }

__attribute__((noinline)) at::Tensor recycle() { return at::ones({1024}); }

}  // namespace program

namespace memledger {
namespace {

using testing::contains;

GrowthReport after_steps(const StackOptions& stacks, GrowthOptions growth = {}) {
  RegistryOptions options;
  options.stacks = stacks;
  const ScopedTracking tracking(options);
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> pool;
  for (int i = 0; i < 10; ++i) pool.push_back(program::recycle());
  GrowthFinder finder(std::move(growth));
  for (int step = 0; step < 40; ++step) {
    pool[static_cast<size_t>(step) % pool.size()] = program::recycle();
    kept.push_back(program::remember());
    finder.step();
  }
  return finder.report();
}

TEST_CASE("every stack is taken: the row names the line that leaks") {
  const GrowthReport report = after_steps(StackOptions::all());
  CAPTURE(to_string(report));
  REQUIRE(report.rows.size() == 1);
  const GrowthRow& row = report.rows[0];
  CHECK(row.level == GrowthLevel::kStack);
  CHECK(row.count == 40);
  CHECK(row.growth.bytes_per_step == doctest::Approx(4096));
  const StackFrame frame = program_frame(row.group.stack);
  CHECK(std::abs(frame.line - program::kLineOfLeak) <= 1);
  CHECK(contains(frame.function, "remember"));
  CHECK(contains(row.where(),
                 "aten::ones [forward] (1024,) torch.float32 on cpu at growth_by_stack_test.cc:"));
  CHECK(contains(report.to_json(), "\"level\":\"stack\""));
  CHECK(contains(report.to_json(), "\"where\":\"growth_by_stack_test.cc:"));
}

TEST_CASE("stacks beyond max_groups count in their group") {
  GrowthOptions growth;
  growth.max_groups = 1;
  const GrowthReport report = after_steps(StackOptions::all(), growth);
  CAPTURE(to_string(report));
  REQUIRE(report.rows.size() == 1);
  CHECK(report.rows[0].growth.bytes_per_step == doctest::Approx(4096));
  // The pool's stack came first and has the one place.
  CHECK(report.rows[0].level == GrowthLevel::kGroup);
  CHECK(report.rows[0].count == 50);
}

TEST_CASE("sampled, but so large that all are taken: by line") {
  const GrowthReport report = after_steps(StackOptions::sampled(64));
  CAPTURE(to_string(report));
  REQUIRE(report.rows.size() == 1);
  CHECK(report.rows[0].level == GrowthLevel::kStack);
  CHECK(report.rows[0].count == 40);
}

TEST_CASE("sampled or small: by operator and shape") {
  for (const StackOptions& stacks :
       {StackOptions::sampled(1 << 20), StackOptions::from(1 << 20), StackOptions::none()}) {
    const GrowthReport report = after_steps(stacks);
    CAPTURE(to_string(report));
    REQUIRE(report.rows.size() == 1);
    CHECK(report.rows[0].level == GrowthLevel::kGroup);
    CHECK(report.rows[0].group.stack == 0);
    CHECK(contains(report.to_json(), "\"where\":null"));
  }
}

}  // namespace
}  // namespace memledger
