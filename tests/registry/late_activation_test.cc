// What a program made before it began to watch, and in gaps: a binary of its own, as activation is
// a state of the process.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "registry/registry.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fork_beside_threads.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

struct BornEarly {
  at::Tensor reached = torch::ones({100});
  at::Tensor operand = torch::ones({200});
  at::Tensor list_operand = torch::ones({400});
  at::Tensor resized = torch::ones({10});
  at::Tensor unreached = torch::ones({800});
};

// One after the other: the state of the process goes forward only.
TEST_CASE("before, on, off, on") {
  { auto nothing = torch::empty({0}); }
  CHECK_FALSE(registry().snapshot().unseen_before_tracking());
  auto early = std::make_unique<BornEarly>();
  CHECK_FALSE(registry().active());
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 0);

  REQUIRE(registry().activate().ok());
  CHECK(registry().active());
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry().snapshot().unseen_before_tracking());
  CHECK_FALSE(registry().snapshot().tracking_was_off());

  // Reached by name.
  const uint64_t id = registry().storage_id(early->reached);
  CHECK(id != 0);
  CHECK(registry().storage_id(early->reached) == id);
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400);
  CHECK(registry().snapshot().find(id)->adopted);

  // Reached as an operator's input, also in a list.
  { auto sum = early->operand + 1; }
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800);
  { auto joined = torch::cat({early->list_operand, early->list_operand}); }
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600);

  // A resize of an adopted storage is followed.
  early->resized.resize_({1000});
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600 + 4000);
  early->resized = at::Tensor();
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600);

  const Snapshot snapshot = registry().snapshot();
  REQUIRE(snapshot.devices().size() == 1);
  CHECK(snapshot.devices()[0].adopted_bytes == 400 + 800 + 1600);
  CHECK(snapshot.devices()[0].counters.current_bytes == snapshot.total_bytes(at::kCPU));

  // A report that adopts has not made anything, and what it adopts was there at the peak.
  const Counters before = registry().counters(at::kCPU);
  {
    auto another = torch::empty({50});
    const Counters now = registry().counters(at::kCPU);
    CHECK((now - before).allocated_bytes == 200);
    CHECK(now.peak_bytes >= now.current_bytes);
  }
  CHECK(registry().storage_id(early->unreached) != 0);
  const Counters after = registry().counters(at::kCPU);
  CHECK((after - before).allocated_bytes == 200);
  CHECK((after - before).current_bytes == 3200);
  CHECK(after.peak_bytes == before.peak_bytes + 3200);
  early->unreached = at::Tensor();

  // Activations are counted.
  {
    const ScopedTracking inner;
    CHECK(registry().active());
  }
  CHECK(registry().active());

  // Off: what was seen is followed to its end, what is new goes unseen and is adopted later.
  auto seen = torch::ones({1000});
  registry().deactivate();
  CHECK_FALSE(registry().active());
  CHECK_FALSE(registry().snapshot().tracking_was_off());
  auto in_gap = torch::ones({5000});
  CHECK(registry().snapshot().tracking_was_off());
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600 + 4000);
  CHECK(registry().storage_id(in_gap) == 0);
  seen = at::Tensor();
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600);
  {
    const ScopedTracking scope;
    CHECK(registry().storage_id(in_gap) != 0);
    CHECK(registry().snapshot().total_bytes(at::kCPU) == 400 + 800 + 1600 + 20000);
  }
  CHECK_FALSE(registry().active());
  registry().deactivate();  // one too many: nothing happens
  early.reset();
  in_gap = at::Tensor();
  CHECK(registry().snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry().health().unknown_frees == 0);
  CHECK(registry().health().dropped_records == 0);
}

TEST_CASE("a child of fork goes on by itself") {
  const ScopedTracking scope;
  auto mine = torch::empty({1000});
  const int64_t before = registry().snapshot().total_bytes(at::kCPU);
  const pid_t child = fork();
  if (child == 0) {
    auto more = torch::empty({10});
    const bool right = registry().snapshot().total_bytes(at::kCPU) == before + 40;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(registry().snapshot().total_bytes(at::kCPU) == before);
}

TEST_CASE("fork while another thread adopts and reads: the child can do the same" *
          doctest::skip(testing::kChildrenMayHang)) {
#if defined(__SANITIZE_ADDRESS__)
  MESSAGE(
      "skipped: the address sanitizer's own allocator may be locked in a child of a threaded "
      "program");
  return;
#endif
  std::vector<at::Tensor> early;
  for (int i = 0; i < 2000; ++i) early.push_back(torch::ones({4}));
  const ScopedTracking scope;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (size_t i = 0; !stop; i = (i + 1) % early.size()) {
      registry().storage_id(early[i]);
      registry().snapshot();
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a lock that nobody holds any more would end here, with a signal
      registry().storage_id(early[1999]);
      registry().snapshot();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
  }
  stop = true;
  other.join();
}

TEST_CASE("deactivating twice as often as activating leaves the registry off") {
  CHECK_FALSE(registry().active());
  registry().deactivate();
  REQUIRE(registry().activate().ok());
  CHECK(registry().active());
  registry().deactivate();
  CHECK_FALSE(registry().active());
}

TEST_CASE("a program that makes up labels without end still has its operators named") {
  const ScopedTracking scope;
  REQUIRE(registry().keep_label_peak("encoder").ok());
  {
    const ScopedLabel encoder("encoder");
    const auto known = torch::ones({1000});
    const Snapshot peak = registry().peak_snapshot(at::kCPU, "encoder");
    CHECK(peak.counters(at::kCPU).peak_bytes == 4000);
    CHECK(peak.complete());
  }
  for (int i = 0; i < 70000; ++i) const ScopedLabel label("request " + std::to_string(i));
  const ScopedLabel label("one more");
  auto tensor = torch::linspace(0, 1, 7);
  const Snapshot snapshot = registry().snapshot();
  CHECK(snapshot.find(registry().storage_id(tensor))->op == "aten::linspace");
  CHECK(snapshot.find(registry().storage_id(tensor))->label == "(too many names)");

  const ScopedLabel encoder("encoder");
  const auto lost = torch::ones({1 << 20});
  const Snapshot peak = registry().peak_snapshot(at::kCPU, "encoder");
  CHECK(peak.counters(at::kCPU).peak_bytes == 4000);
  CHECK_FALSE(peak.complete());  // there is more
  CHECK_FALSE(peak.labels_known());
  CHECK(registry().peak_snapshot(at::kCPU).complete());
}

// Freed after main by the static destructor below: must not crash or hang.
at::Tensor& outlives_main() {
  static at::Tensor tensor;
  return tensor;
}

TEST_CASE("a tensor may be freed after main") {
  const ScopedTracking scope;
  outlives_main() = torch::ones({1 << 16});
  CHECK(registry().storage_id(outlives_main()) != 0);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
