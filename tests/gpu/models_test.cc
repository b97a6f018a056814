// Training steps of real networks on cuda:0, on the virtual GPU or a real one: the report against
// LibTorch's own statistics, and against sizes worked out by hand from published parameter counts.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/gpu/training_step.h"
#include "tests/support/kept_workspaces.h"
#include "tests/support/named_share.h"
#include "tests/support/printed_values.h"
#include "tests/support/script_resnet.h"

namespace memledger {
namespace {

using testing::PhaseFigures;
using testing::StandardModel;
using testing::Training;

const c10::Device kCuda0(c10::kCUDA, 0);

constexpr int64_t kFloat = 4, kLong = 8;

struct ByHand {
  int64_t parameters;     // elements, as published
  int64_t buffers_bytes;  // ResNet-50: 53 batch norms of 26560 channels in all, two floats each,
                          // and 53 counters
  int64_t inputs_bytes;
};

const std::map<std::string, ByHand> kByHand = {
    {"ResNet-50",
     {25557032, 26560 * 2 * kFloat + 53 * kLong, 16 * 3 * 224 * 224 * kFloat + 16 * kLong}},
    {"VGG-19", {143667240, 0, 16 * 3 * 224 * 224 * kFloat + 16 * kLong}},
    {"LSTM", {8396800, 0, 128 * 32 * 1024 * kFloat}},
    {"GRU", {6297600, 0, 128 * 32 * 1024 * kFloat}},
    {"Transformer", {18914304, 0, 128 * 32 * 512 * kFloat}},
    {"NeuMF", {31832577, 0, 4096 * (2 * kLong + kFloat)}},
    {"MLP", {263168, 0, 64 * 256 * kFloat}},
};

// Storages that are at rest between phases, each once, found through the network alone.
struct AtRest {
  int64_t requested = 0;
  int64_t rounded = 0;  // to 512 bytes each, as LibTorch's allocator does

  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() != kCuda0 ||
        !seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
      return;
    const auto nbytes = static_cast<int64_t>(tensor.storage().nbytes());
    requested += nbytes;
    rounded += (nbytes + 511) / 512 * 512;
  }

 private:
  std::set<const void*> seen_;
};

AtRest at_rest(const Training& training) {
  AtRest result;
  for (const at::Tensor& parameter : training.net->parameters()) {
    result.add(parameter);
    result.add(parameter.grad());
  }
  for (const auto& [key, state] : training.adam->state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    result.add(adam.exp_avg());
    result.add(adam.exp_avg_sq());
  }
  for (const at::Tensor& buffer : training.net->buffers()) result.add(buffer);
  for (const auto& [name, input] : training.inputs) result.add(input);
  result.add(training.loss);
  return result;
}

int64_t of_role(const DeviceReport& report, Role role) {
  return report.bytes_by_role.at(static_cast<size_t>(role));
}

struct Items {
  int64_t workspaces = 0, rounding = 0, unsplit = 0;
};

// Nothing but these may stand between the rows and LibTorch's figures.
Items check_items(const DeviceReport& report) {
  Items items;
  for (const ReportItem& item : report.items) {
    CAPTURE(item.name);
    switch (item.kind) {
      case ReportItemKind::kLibraryWorkspace:
        CHECK((item.name.rfind("cuBLAS workspace (stream 0", 0) == 0 ||
               item.name.rfind("cuBLASLt workspace (stream 0", 0) == 0));
        CHECK(item.bytes > 0);
        items.workspaces += item.bytes;
        break;
      case ReportItemKind::kRounding:
        items.rounding += item.bytes;
        break;
      case ReportItemKind::kUnsplitRemainder:
        items.unsplit += item.bytes;
        break;
      case ReportItemKind::kRawBlocks:
      case ReportItemKind::kBeforeTracking:
        CHECK_MESSAGE(item.bytes == 0, to_string(item.kind));
        break;
    }
  }
  return items;
}

// How many times the parameters' bytes are on the device between phases: themselves, gradients,
// Adam's two averages.
int64_t copies_of_parameters(const std::string& phase) {
  if (phase == "build") return 1;
  return phase == "backward" ? 2 : 4;
}

void check(const StandardModel& model, const Training& training, const PhaseFigures& figures) {
  const ByHand& by_hand = kByHand.at(model.name);
  MemReporter reporter(*training.net);
  reporter.add_optimizer(*training.adam);
  for (const auto& [name, input] : training.inputs) reporter.add_input(name, input);
  const bool has_graph = figures.phase == "forward";
  if (has_graph) reporter.add_graph(training.loss);
  ReportOptions options;
  options.device = kCuda0;
  const Report whole = reporter.collect(options);
  REQUIRE(whole.devices.size() == 1);
  const DeviceReport& report = whole.devices[0];

  // Against LibTorch's statistics.
  REQUIRE(report.unexplained_bytes.has_value());
  REQUIRE(report.unexplained_requested_bytes.has_value());
  CHECK(*report.unexplained_bytes == 0);
  CHECK(*report.unexplained_requested_bytes == 0);
  CHECK(report.allocator_bytes == figures.allocated.current);
  CHECK(report.requested_bytes == figures.requested.current);
  CHECK(report.reserved_bytes == figures.reserved.current);
  CHECK(report.awaited_bytes == 0);
  const Items items = check_items(report);
  int64_t rows = 0;
  for (const ReportRow& row : report.rows) {
    REQUIRE(row.nbytes.has_value());
    rows += *row.nbytes;
  }
  CHECK(rows + items.workspaces == figures.requested.current);
  CHECK(rows + items.workspaces + items.rounding + items.unsplit == figures.allocated.current);
  CHECK(report.counters.peak_bytes == figures.requested.peak);
  CHECK(testing::named_share(report) >= 0.99);
  // The chain up to the device: what the driver gave, and what is taken past the allocator. On the
  // virtual GPU nothing is.
  CHECK(report.named_bytes + report.anonymous_bytes == rows);
  REQUIRE(report.device_used_bytes.has_value());
  CHECK(*report.reserved_bytes + *report.outside_allocator_bytes == *report.device_used_bytes);
  CHECK(*report.device_used_bytes <= *report.device_total_bytes);
  CHECK(*report.cached_free_bytes == *report.reserved_bytes - *report.allocator_bytes);
  CHECK(report.fragmented_bytes.has_value());
  std::ostringstream text;
  text << whole;
  CHECK(text.str().find("(0.00B unexplained)") != std::string::npos);
  // cuDNN multiplies the recurrent networks' matrices.
  const bool has_workspaces = testing::keeps_workspaces() && figures.phase != "build" &&
                              model.name != "LSTM" && model.name != "GRU";
  CHECK((items.workspaces > 0) == has_workspaces);
  CHECK((text.str().find("cuBLAS workspace (stream 0") != std::string::npos) == has_workspaces);

  // Against sizes by hand.
  CHECK(of_role(report, Role::kParameter) == by_hand.parameters * kFloat);
  CHECK(of_role(report, Role::kBuffer) == by_hand.buffers_bytes);
  CHECK(of_role(report, Role::kInput) == by_hand.inputs_bytes);
  const AtRest rest = at_rest(training);
  if (has_graph) {
    SavedTensorOptions beside_inputs;
    for (const auto& [name, input] : training.inputs) beside_inputs.exclude.push_back(input);
    beside_inputs.device = kCuda0;
    const int64_t saved = memory_for_backward(*training.net, training.loss, beside_inputs);
    CHECK(rest.requested + saved + items.workspaces == figures.requested.current);
    return;
  }
  const int64_t copies = copies_of_parameters(figures.phase);
  CHECK(of_role(report, Role::kGradient) == (copies > 1 ? by_hand.parameters * kFloat : 0));
  CHECK(of_role(report, Role::kOptimizerState) ==
        (copies > 2 ? 2 * by_hand.parameters * kFloat : 0));
  const int64_t loss_bytes = copies > 1 ? kFloat : 0;
  CHECK(rest.requested == copies * by_hand.parameters * kFloat + by_hand.buffers_bytes +
                              by_hand.inputs_bytes + loss_bytes);
  CHECK(rest.requested + items.workspaces == figures.requested.current);
  CHECK(items.rounding == rest.rounded - rest.requested);
  CHECK(items.unsplit == figures.allocated.current - rest.rounded - items.workspaces);
}

// The fifth moment, after zero_grad, and all five of a TorchScript network.
void check_explained(const MemReporter& reporter) {
  ReportOptions options;
  options.device = kCuda0;
  const Report whole = reporter.collect(options);
  REQUIRE(whole.devices.size() == 1);
  const DeviceReport& report = whole.devices[0];
  CHECK(report.unexplained_bytes == 0);
  CHECK(report.unexplained_requested_bytes == 0);
  check_items(report);
  CHECK(testing::named_share(report) >= 0.99);
}

TEST_CASE("a training step of each network is explained to the byte") {
  const c10::DeviceIndex device = kCuda0.index();
  REQUIRE(device == 0);
  REQUIRE(testing::standard_models().size() == kByHand.size());
  for (const StandardModel& model : testing::standard_models()) {
    CAPTURE(model.name);
    REQUIRE(kByHand.count(model.name) == 1);
    testing::start_clean(kCuda0);
    CHECK(Registry::global().snapshot().total_bytes(kCuda0) == 0);
    Registry::global().reset_peak(kCuda0);
    double build = 0, step = 0;
    const auto phases =
        testing::train(model, kCuda0, [&](const Training& training, const PhaseFigures& figures) {
          CAPTURE(figures.phase);
          check(model, training, figures);
          if (figures.phase == "step") {
            training.adam->zero_grad();
            MemReporter reporter(*training.net);
            reporter.add_optimizer(*training.adam);
            for (const auto& [name, input] : training.inputs) reporter.add_input(name, input);
            check_explained(reporter);
          }
          Registry::global().reset_peak(kCuda0);
        });
    for (const PhaseFigures& phase : phases) {
      if (phase.phase == "build") build = phase.seconds;
      if (phase.phase != "build" && phase.phase != "again") step += phase.seconds;
    }
    std::printf(
        "%-12s  built in %.3f s, forward + backward + Adam step %.3f s, a second step %.3f s\n",
        model.name.c_str(), build, step, phases.back().seconds);
  }
  const HookHealth health = Registry::global().health();
  CHECK(health.unknown_frees == 0);
  CHECK(health.dropped_records == 0);
  CHECK(health.swallowed_exceptions == 0);
}

TEST_CASE("a TorchScript ResNet-50 at five moments") {
  testing::start_clean(kCuda0);
  torch::jit::Module net = testing::script_resnet();
  net.to(kCuda0);
  const at::Tensor images = at::randn({16, 3, 224, 224}, kCuda0);
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::Adam adam(parameters);
  MemReporter reporter(net);
  reporter.add_optimizer(adam).add_input("images", images);
  check_explained(reporter);
  {
    const at::Tensor loss = net.forward({images}).toTensor().sum();
    reporter.add_graph(loss);
    check_explained(reporter);
    loss.backward();
    check_explained(reporter);
  }
  adam.step();
  check_explained(reporter);
  adam.zero_grad();
  check_explained(reporter);
}

TEST_CASE("pinned host memory is told apart from the program's own") {
  const at::Tensor pinned =
      at::empty({1000}, at::TensorOptions().device(at::kCPU).pinned_memory(true));
  MemReporter reporter;
  reporter.add_tensor("pinned", pinned);
  const Report report = reporter.collect();
  bool found = false;
  for (const DeviceReport& device : report.devices) {
    for (const ReportRow& row : device.rows) {
      if (row.name != "pinned") continue;
      found = true;
      CHECK(row.kind == RowKind::kExternal);
      CHECK(row.external == ExternalMemory::kPinned);
      CHECK(row.external_bytes == 4000);
    }
  }
  CHECK(found);
  REQUIRE(report.pinned_reserved_bytes.has_value());
  CHECK(*report.pinned_reserved_bytes >= 4000);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  // Its absence is a failure: a test that passes without a GPU says nothing.
  if (!at::hasCUDA()) {
    std::fprintf(stderr, "LibTorch finds no CUDA device here: the models were not tested\n");
    return 1;
  }
  if (const absl::Status status = memledger::Registry::global().activate(); !status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  return doctest::Context(argc, argv).run();
}
