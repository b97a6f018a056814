// A second activation: what its peaks are of, and that what it asks for holds or is refused. Own
// binary: it is a state of the process.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <string>

#include "registry/registry.h"

namespace memledger {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHundred = 100 * kMiB;

Registry& registry() { return Registry::global(); }

// Nobody touches it, so it costs nothing.
at::Tensor of_bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }

int64_t peak() { return registry().counters(at::kCPU).peak_bytes; }

void check_that_the_peak_is(int64_t bytes) {
  CHECK(peak() == bytes);
  const Snapshot at_peak = registry().peak_snapshot(at::kCPU);
  int64_t rows = 0;
  for (const StorageInfo& storage : at_peak.storages(at::kCPU)) rows += storage.nbytes;
  CHECK(rows == bytes);
  CHECK(at_peak.total_bytes(at::kCPU) == bytes);
}

TEST_CASE(
    "peaks are of the present activation: what was born in the gap was not alive at the peak of "
    "the one before") {
  REQUIRE(registry().activate().ok());
  { const auto came_and_went = of_bytes(kHundred); }
  check_that_the_peak_is(kHundred);
  registry().deactivate();
  CHECK(peak() == kHundred);  // still that of the activation that ended
  auto in_gap = of_bytes(kHundred);
  REQUIRE(registry().activate().ok());
  CHECK(peak() == 0);
  CHECK(registry().storage_id(in_gap) != 0);
  check_that_the_peak_is(kHundred);
  {
    const auto more = of_bytes(kMiB);
    check_that_the_peak_is(kHundred + kMiB);
  }
  check_that_the_peak_is(kHundred + kMiB);
  CHECK(registry().counters(at::kCPU).current_bytes == kHundred);
  in_gap.reset();
  registry().deactivate();
}

TEST_CASE(
    "what is alive over the gap is part of the new peak, seen or adopted, and what died in it is "
    "not") {
  REQUIRE(registry().activate().ok());
  const auto seen = of_bytes(3 * kMiB);
  auto dies_in_gap = of_bytes(kHundred);
  registry().deactivate();
  const auto in_gap = of_bytes(5 * kMiB);
  dies_in_gap.reset();
  REQUIRE(registry().activate().ok());
  { const auto made = of_bytes(kMiB); }
  CHECK(registry().storage_id(in_gap) != 0);  // adopted after the peak, and alive since before it
  check_that_the_peak_is(9 * kMiB);
  registry().deactivate();
}

TEST_CASE("an activation inside another one leaves the peak alone") {
  REQUIRE(registry().activate().ok());
  { const auto came_and_went = of_bytes(kHundred); }
  { const ScopedTracking inner; }
  check_that_the_peak_is(kHundred);
  registry().deactivate();
}

// A program's own allocator, with nothing below it.
class MallocAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* const data = nbytes == 0 ? nullptr : std::malloc(nbytes);
    return {data, data, raw_deleter(), c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

TEST_CASE(
    "what came unseen through the program's own allocator is not added to a peak that may be "
    "older") {
  REQUIRE(registry().activate().ok());
  { const auto came_and_went = of_bytes(kHundred); }
  c10::Allocator* const before = c10::GetAllocator(at::kCPU);
  c10::SetAllocator(at::kCPU, new MallocAllocator);
  const auto unseen = of_bytes(kHundred);
  registry().snapshot();  // puts a wrapper before that allocator
  CHECK(registry().storage_id(unseen) != 0);
  CHECK(registry().counters(at::kCPU).current_bytes == kHundred);
  check_that_the_peak_is(kHundred);
  c10::SetAllocator(at::kCPU, before);
  registry().deactivate();
}

const StorageInfo& row_of(const Snapshot& snapshot, const at::Tensor& tensor) {
  const StorageInfo* const row = snapshot.find(registry().storage_id(tensor));
  REQUIRE(row != nullptr);
  return *row;
}

RegistryOptions with(StackOptions stacks) {
  RegistryOptions options;
  options.stacks = stacks;
  return options;
}

TEST_CASE("a second activation that asks for more gets it") {
  RegistryOptions little;
  little.operators = little.adopt_inputs = little.peaks = false;
  const auto early = at::ones({100});
  REQUIRE(registry().activate(little).ok());
  const auto nameless = at::add(early, 1);
  CHECK(row_of(registry().snapshot(), nameless).op.empty());

  SUBCASE("operators, and the adoption of their inputs") {
    RegistryOptions more = little;
    more.operators = true;
    REQUIRE(registry().activate(more).ok());
    const int64_t before = registry().counters(at::kCPU).current_bytes;
    const auto named = at::add(early, 1);
    CHECK(row_of(registry().snapshot(), named).op == "aten::add");
    CHECK(registry().counters(at::kCPU).current_bytes == before + 400);
    more.adopt_inputs = true;
    const auto another_early = [] {
      registry().deactivate();
      registry().deactivate();
      auto made = at::ones({1000});
      REQUIRE(registry().activate().ok());
      return made;
    }();
    REQUIRE(registry().activate(more).ok());
    const int64_t now = registry().counters(at::kCPU).current_bytes;
    { const auto sum = at::add(another_early, 1); }
    CHECK(registry().counters(at::kCPU).current_bytes == now + 4000);
  }
  SUBCASE("peaks") {
    REQUIRE(registry().activate().ok());
    { const auto came_and_went = of_bytes(kHundred); }
    const Snapshot at_peak = registry().peak_snapshot(at::kCPU);
    CHECK(at_peak.total_bytes(at::kCPU) == peak());
    CHECK(at_peak.complete());
  }
  SUBCASE("stacks") {
    REQUIRE(registry().activate(with(StackOptions::from(1000))).ok());
    const auto small = at::ones({10});
    const auto large = at::ones({1000});
    CHECK(row_of(registry().snapshot(), small).stack == 0);
    CHECK(row_of(registry().snapshot(), large).stack != 0);
    SUBCASE("all of them") {
      REQUIRE(registry().activate(with(StackOptions::all())).ok());
      const auto small_again = at::ones({10});
      CHECK(row_of(registry().snapshot(), small_again).stack != 0);
      registry().deactivate();
    }
    SUBCASE("of smaller storages") {
      REQUIRE(registry().activate(with(StackOptions::from(40))).ok());
      const auto small_again = at::ones({10});
      CHECK(row_of(registry().snapshot(), small_again).stack != 0);
      registry().deactivate();
    }
  }
  registry().deactivate();
  // Widened as it is until the last one ends: nobody knows whose the rest is.
  CHECK(registry().active());
  registry().deactivate();
  CHECK_FALSE(registry().active());
}

TEST_CASE("a second activation that asks for no more is fine, and changes nothing") {
  REQUIRE(registry().activate(with(StackOptions::all())).ok());
  RegistryOptions little;
  little.operators = little.adopt_inputs = little.peaks = false;
  for (const RegistryOptions& asked :
       {RegistryOptions(), little, with(StackOptions::from(1000)),
        with(StackOptions::sampled(1 << 20)), with(StackOptions::all())}) {
    REQUIRE(registry().activate(asked).ok());
    const auto made = at::ones({10});
    CHECK(row_of(registry().snapshot(), made).stack != 0);
    CHECK(row_of(registry().snapshot(), made).op == "aten::ones");
    registry().deactivate();
  }
  registry().deactivate();
  CHECK_FALSE(registry().active());
}

TEST_CASE(
    "stacks that cannot be had beside those that are taken are refused by name, and nothing is "
    "activated") {
  const auto refused = [](StackOptions present, StackOptions asked) {
    REQUIRE(registry().activate(with(present)).ok());
    const absl::Status status = registry().activate(with(asked));
    CHECK(absl::IsFailedPrecondition(status));
    CHECK_MESSAGE(status.message().find("stacks") != absl::string_view::npos,
                  std::string(status.message()));
    {
      const ScopedTracking scope(with(asked));
      CHECK(scope.status() == status);
    }
    CHECK(registry().active());
    registry().deactivate();
    CHECK_FALSE(registry().active());
  };
  refused(StackOptions::from(1000), StackOptions::sampled(1 << 20));
  refused(StackOptions::sampled(1 << 20), StackOptions::from(1000));
}

TEST_CASE(
    "names only: operators, labels, threads and bytes, no shapes and no layers; a later activation "
    "changes nothing") {
  const auto weight = at::ones({8, 8}).requires_grad_();
  CHECK_FALSE(registry().snapshot().names_only());
  RegistryOptions names;
  names.detail = RegistryOptions::Detail::kNames;
  REQUIRE(registry().activate(names).ok());
  const Counters before = registry().counters(at::kCPU);
  const auto make = [&] {
    const ScopedLabel label("serving");
    return at::add(weight, 1);
  };
  const auto check_row = [&](const at::Tensor& made) {
    const StorageInfo row = row_of(registry().snapshot(), made);
    CHECK(row.op == "aten::add");
    CHECK(row.label == "serving");
    CHECK(row.nbytes == 8 * 8 * 4);
    CHECK(row.thread != 0);
    CHECK(row.phase == Phase::kForward);
    CHECK(row.kind == StorageKind::kTensor);
    CHECK_FALSE(row.dtype.has_value());
    CHECK(row.parameter == 0);
    CHECK(row.stack == 0);
  };
  const auto made = make();
  check_row(made);
  REQUIRE(registry().activate().ok());
  const auto made_later = make();
  check_row(made_later);
  // What backward makes names the operator of the forward pass.
  at::exp(weight).sum().backward();
  CHECK(row_of(registry().snapshot(), weight.grad()).forward_op == "aten::exp");
  const Snapshot snapshot = registry().snapshot();
  CHECK(snapshot.names_only());
  CHECK(registry().counters(at::kCPU).current_bytes == before.current_bytes + 3 * 8 * 8 * 4);
  { const auto came_and_went = of_bytes(kMiB); }
  CHECK(registry().peak_snapshot(at::kCPU).total_bytes(at::kCPU) == peak());
  registry().deactivate();
  registry().deactivate();

  REQUIRE(registry().activate().ok());
  const auto whole = at::add(weight, 1);
  CHECK(row_of(registry().snapshot(), whole).dtype == at::kFloat);
  CHECK(registry().snapshot().names_only());  // of those that are still there
  registry().deactivate();
}

TEST_CASE("the next first activation has its own options again") {
  REQUIRE(registry().activate(with(StackOptions::all())).ok());
  registry().deactivate();
  REQUIRE(registry().activate().ok());
  const auto made = at::ones({10});
  CHECK(row_of(registry().snapshot(), made).stack == 0);
  CHECK(row_of(registry().snapshot(), made).op == "aten::ones");
  registry().deactivate();
}

}  // namespace
}  // namespace memledger
