// Reports, tracks and diffs while memory runs out, at every allocation in turn; and a report while
// memory is lent back. Own binary: it replaces operator new.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/support/failing_new.h"
#include "tracker/courtesy.h"
#include "tracker/growth_finder.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_expectations.h"

namespace memledger {
namespace {

Registry& registry() { return Registry::global(); }

// Returns how often `read` failed.
template <typename Read>
int until_it_succeeds(const Read& read) {
  return testing::until_it_succeeds(read, [](int failing) { REQUIRE(failing < 20000); });
}

struct Scene {
  Scene() {
    x = at::ones({8, 16});
    loss = net->forward(x).pow(2).sum();
  }
  torch::nn::Linear net{16, 32};
  at::Tensor x, loss;
  at::Tensor nobodys = at::empty({1000});
};

std::string text_of(const MemReporter& reporter) {
  std::ostringstream out;
  reporter.report(out, /*verbose=*/true);
  return out.str();
}

TEST_CASE(
    "snapshots, peaks and diffs of the registry: std::bad_alloc, and the next call tells all") {
  const ScopedTracking tracking;
  const Scene scene;
  const int64_t total = registry().snapshot().total_bytes(at::kCPU);
  Snapshot snapshot, peak;
  CHECK(until_it_succeeds([&] { snapshot = registry().snapshot(); }) > 5);
  CHECK(snapshot.total_bytes(at::kCPU) == total);
  CHECK(until_it_succeeds([&] { peak = registry().peak_snapshot(at::kCPU); }) > 3);
  CHECK(peak.total_bytes(at::kCPU) == registry().counters(at::kCPU).peak_bytes);

  Cursor cursor;
  Changes changes;
  until_it_succeeds([&] { changes = registry().changes_since(cursor); });
  CHECK(changes.from_snapshot);
  CHECK(changes.born.size() == snapshot.storages(at::kCPU).size());
  auto dies = at::ones({77, 1});
  registry().changes_since(cursor);
  dies.reset();
  std::vector<at::Tensor> born;
  for (int i = 0; i < 10; ++i) born.push_back(at::ones({1, 2, 3, 4, 5, 6, 7, 1}));
  CHECK(until_it_succeeds([&] { changes = registry().changes_since(cursor); }) > 10);
  CHECK_FALSE(changes.from_snapshot);
  CHECK(changes.born.size() == 10);
  CHECK(changes.died.size() == 1);
  changes = registry().changes_since(cursor);
  CHECK(changes.born.empty());
  CHECK(changes.died.empty());
  CHECK(registry().snapshot().total_bytes(at::kCPU) == registry().counters(at::kCPU).current_bytes);
}

TEST_CASE(
    "track(): the diff that could not be told is told by the next call, and stands in the log "
    "once") {
  const Scene scene;
  TrackerOptions options;
  options.device = at::kCPU;
  options.path = std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : "/tmp";
  options.file_name = "without_memory.txt";
  MemTracker tracker(options);
  tracker.add_module("net", *scene.net);
  tracker.track();
  const auto kept = at::ones({123, 45});
  SnapshotDiff diff;
  CHECK(until_it_succeeds([&] { diff = tracker.track(); }) > 5);
  CHECK(diff.tensor_bytes == registry().snapshot().total_bytes(at::kCPU));
  std::ifstream log(tracker.log_path());
  const std::string text((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  size_t told = 0;
  for (size_t at = 0; (at = text.find("(123, 45)", at)) != std::string::npos; ++at) ++told;
  CHECK_MESSAGE(told == 1, text);
  CHECK(registry().health().dropped_records == 0);
}

TEST_CASE(
    "reports, peaks and saved tensors: std::bad_alloc, and the next report is as if nothing had "
    "been") {
  const Scene scene;
  MemReporter reporter(scene.net);
  reporter.add_input("x", scene.x).add_graph(scene.loss);
  const std::string before = text_of(reporter);
  CHECK(before.find("net") == std::string::npos);
  CHECK(before.find("weight") != std::string::npos);
  Report report;
  CHECK(until_it_succeeds([&] { report = reporter.collect(); }) > 5);
  CHECK(text_of(reporter) == before);
  CHECK(until_it_succeeds([&] { report = reporter.collect_peak(at::kCPU); }) > 5);
  CHECK(text_of(reporter) == before);
  // What a stream cannot print it drops, and says so by its state: report() throws nothing then.
  until_it_succeeds([&] {
    std::ostringstream out;
    reporter.report(out, /*verbose=*/true);
  });
  CHECK(text_of(reporter) == before);
  size_t rows = 0;
  CHECK(until_it_succeeds([&] { rows = saved_for_backward(scene.loss).rows().size(); }) > 5);
  CHECK(rows == saved_for_backward(scene.loss).rows().size());
  CHECK(until_it_succeeds([&] { rows = reporter.saved_for_backward(scene.loss).rows().size(); }) >
        5);
  scene.loss.backward();  // no node was left locked
  CHECK(scene.net->weight.grad().defined());
}

TEST_CASE(
    "names: what could not be added or removed can be the next time, and nothing else has "
    "changed") {
  const Scene scene;
  MemReporter reporter;
  CHECK(until_it_succeeds([&] { reporter.add_module("net", *scene.net); }) > 1);
  CHECK(until_it_succeeds([&] { reporter.add_input("x", scene.x); }) > 1);
  CHECK(until_it_succeeds([&] { reporter.add_input("x", scene.x); }) >
        1);  // takes the name from itself
  until_it_succeeds([&] { reporter.add_graph(scene.loss); });
  MemReporter other;
  other.add_module("net", *scene.net).add_input("x", scene.x).add_graph(scene.loss);
  CHECK(text_of(reporter) == text_of(other));
  until_it_succeeds([&] { reporter.remove("net"); });
  until_it_succeeds([&] { reporter.remove("x"); });
  CHECK_THROWS_AS(reporter.remove("net"), c10::Error);
  CHECK_THROWS_AS(reporter.remove("x"), c10::Error);
}

TEST_CASE(
    "growth: a step that had no memory was no step, and the next one counts what it could not") {
  const ScopedTracking tracking;
  GrowthOptions options;
  options.max_groups = 40;
  GrowthFinder hungry(options);
  GrowthFinder fed(options);
  std::vector<at::Tensor> leak;
  std::deque<at::Tensor> recent;
  int failed = 0;
  for (int step = 0; step < 25; ++step) {
    leak.push_back(at::ones({100 + step % 2}));
    // New shapes in each step, more than there is room for, that end two steps later.
    for (int64_t i = 0; i < 12; ++i) recent.push_back(at::empty({step + 1, i + 1, 3}));
    while (recent.size() > 24) recent.pop_front();
    fed.step();
    failed += until_it_succeeds([&] { hungry.step(); });
  }
  CHECK(failed > 200);
  GrowthReport report;
  CHECK(until_it_succeeds([&] { report = hungry.report(); }) > 5);
  CHECK(report.growing());
  CHECK(report.groups_left_out == fed.report().groups_left_out);
  CHECK(report.to_json() == fed.report().to_json());
  leak.clear();
  recent.clear();
  fed.step();
  until_it_succeeds([&] { hungry.step(); });
  CHECK(hungry.report().to_json() == fed.report().to_json());
}

TEST_CASE("leaks: a check without memory tells nothing, and the next one everything") {
  const ScopedTracking tracking;
  std::vector<at::Tensor> leaked;
  NoLeak hungry;
  NoLeak fed;
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < 12; ++i) leaked.push_back(at::ones({round + 1, i + 1}));
    leaked.erase(leaked.begin());
    TestVerdict verdict;
    CHECK(until_it_succeeds([&] { verdict = hungry.check(); }) > 10);
    CHECK_FALSE(verdict);
    const TestVerdict expected = fed.check();
    // But for the line where it was made.
    CHECK(verdict.message().substr(verdict.message().find('\n')) ==
          expected.message().substr(expected.message().find('\n')));
    CHECK(verdict.message().substr(0, 40) == expected.message().substr(0, 40));
  }
  CHECK(until_it_succeeds([&] { hungry.keep(leaked[0]); }) > 0);
}

// The last failure's message; it has its memory beforehand.
std::string told;
int times_told = 0;

TEST_CASE("a scope that ends without memory says that it could not look") {
  const ScopedTracking tracking;
  told.reserve(1000);
  const FailureHandler before = set_failure_handler([](const ExpectationFailure& failure) {
    told = failure.message;
    ++times_told;
  });
  const at::Tensor kept = at::ones({3});
  for (int64_t failing = 0; failing < 400; ++failing) {
    std::vector<at::Tensor> leaked;
    std::optional<NoLeak> no_leak(std::in_place);
    std::optional<PeakAtMost> peak(std::in_place, at::kCPU, 8, PeakOver::kStart);
    for (int64_t i = 0; i < 12; ++i) leaked.push_back(at::ones({1, i + 1}));
    times_told = 0;
    {
      const testing::OneFailingAllocation one(failing);
      peak.reset();
    }
    {
      const testing::OneFailingAllocation one(failing);
      no_leak.reset();
    }
    CHECK_MESSAGE(times_told == 2, failing);
  }
  set_failure_handler(before);
  CHECK_MESSAGE(told.find("no leak expected") == 0, told);
}

TEST_CASE("peaks: a check without memory tells nothing, and the next one who was alive") {
  const ScopedTracking tracking;
  std::optional<PeakAtMost> hungry;
  CHECK(until_it_succeeds([&] { hungry.emplace(at::kCPU, 100, PeakOver::kStart); }) > 2);
  {
    std::vector<at::Tensor> held;
    for (int64_t i = 0; i < 12; ++i) held.push_back(at::ones({7, i + 1}));
  }
  TestVerdict verdict;
  CHECK(until_it_succeeds([&] { verdict = hungry->check(); }) > 10);
  CHECK_FALSE(verdict);
  CHECK_MESSAGE(verdict.message().find("aten::ones") != std::string::npos, verdict.message());
  // Another one's beginning notes the peaks of all before it starts again.
  PeakAtMost outer(at::kCPU, 100, PeakOver::kStart);
  {
    std::vector<at::Tensor> held;
    for (int64_t i = 0; i < 12; ++i) held.push_back(at::ones({9, i + 1}));
  }
  std::optional<PeakAtMost> inner;
  until_it_succeeds([&] { inner.emplace(at::kCPU, 100, PeakOver::kStart); });
  CHECK(inner->check());
  verdict = outer.check();
  CHECK_FALSE(verdict);
  CHECK_MESSAGE(verdict.message().find("(9, 12)") != std::string::npos, verdict.message());
}

TEST_CASE("storages by address: found the next time") {
  const ScopedTracking tracking;
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < 100; ++i) all.push_back(at::ones({1, i + 1}));
  const Snapshot snapshot = registry().snapshot();
  const StorageInfo* found = nullptr;
  CHECK(until_it_succeeds([&] { found = snapshot.find_address(at::kCPU, all[50].data_ptr()); }) >
        0);
  REQUIRE(found != nullptr);
  CHECK(found->nbytes == 51 * 4);
  for (const at::Tensor& one : all) {
    found = snapshot.find_address(at::kCPU, one.data_ptr());
    REQUIRE(found != nullptr);
    CHECK(found->id == registry().storage_id(one));
  }
  CHECK(snapshot.find_address(at::kCPU, &snapshot) == nullptr);
}

TEST_CASE("while memory is lent back a report says so of each tensor, and counts it nowhere") {
  const Scene scene;
  MemReporter reporter(scene.net);
  reporter.add_graph(scene.loss);
  CourtesyOptions options;
  options.device = at::kCPU;
  options.place = CourtesyOptions::Place::kFile;
  Courtesy courtesy(options);
  const std::string before = text_of(reporter);
  REQUIRE(courtesy.yield_memory().ok());
  const Report report = reporter.collect();
  REQUIRE(report.devices.size() == 1);
  int lent = 0;
  for (const ReportRow& row : report.devices[0].rows) {
    CAPTURE(row.name);
    CHECK(row.kind != RowKind::kExternal);
    if (row.kind != RowKind::kLent) continue;
    ++lent;
    CHECK(row.nbytes == 0);
    CHECK(row.external_bytes == 0);
    if (row.name == "weight") CHECK(row.claimed_bytes == 16 * 32 * 4);
  }
  CHECK(lent >= 3);  // weight, bias, and what the graph saved
  CHECK(report.devices[0].external_bytes == 0);
  const std::string text = text_of(reporter);
  CHECK_MESSAGE(text.find("lent back (Courtesy)") != std::string::npos, text);
  CHECK_MESSAGE(text.find("external") == std::string::npos, text);
  CHECK(report.to_json().find("\"kind\":\"lent\"") != std::string::npos);
  REQUIRE(courtesy.restore().ok());
  CHECK(text_of(reporter).find("lent back") == std::string::npos);
}

}  // namespace
}  // namespace memledger
