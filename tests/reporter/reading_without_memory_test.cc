// Reports, tracks and diffs while memory runs out, at every allocation in turn; and a report while memory is lent back. Own binary: it
// replaces operator new.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/support/failing_new.h"
#include "tracker/courtesy.h"
#include "tracker/mem_tracker.h"

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

TEST_CASE("snapshots, peaks and diffs of the registry: std::bad_alloc, and the next call tells all") {
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

TEST_CASE("track(): the diff that could not be told is told by the next call, and stands in the log once") {
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

TEST_CASE("reports, peaks and saved tensors: std::bad_alloc, and the next report is as if nothing had been") {
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
  CHECK(until_it_succeeds([&] { rows = reporter.saved_for_backward(scene.loss).rows().size(); }) > 5);
  scene.loss.backward();  // no node was left locked
  CHECK(scene.net->weight.grad().defined());
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
