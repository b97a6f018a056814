// Checks who was alive at the peak of real networks against LibTorch's own memory hook with every
// event written down.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>

#include "tests/support/doctest_beside_torch.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/models/models.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"

namespace memledger {
namespace {

using Blocks = std::set<std::pair<uintptr_t, int64_t>>;

// Copies all live blocks whenever their sum is higher than ever.
class EveryEvent : public c10::MemoryReportingInfoBase {
 public:
  explicit EveryEvent(const Snapshot& alive) {
    for (const StorageInfo& storage : alive.storages(at::kCPU))
      change(storage.address, storage.nbytes);
  }
  void reportMemoryUsage(void* address, int64_t nbytes, size_t, size_t, c10::Device) override {
    change(reinterpret_cast<uintptr_t>(address), nbytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t peak_bytes = 0;
  Blocks at_peak;

 private:
  void change(uintptr_t address, int64_t nbytes) {
    bytes_ += nbytes;
    if (nbytes < 0) {
      live_.erase({address, -nbytes});
    } else {
      live_.insert({address, nbytes});
    }
    if (bytes_ > peak_bytes) {
      peak_bytes = bytes_;
      at_peak = live_;
    }
  }
  Blocks live_;
  int64_t bytes_ = 0;
};

Blocks blocks_of(const Snapshot& snapshot) {
  Blocks blocks;
  for (const StorageInfo& storage : snapshot.storages(at::kCPU)) {
    if (storage.nbytes > 0) blocks.insert({storage.address, storage.nbytes});
  }
  return blocks;
}

template <typename Step>
void check_against_hook(const Step& step) {
  Registry& registry = Registry::global();
  registry.reset_peak(at::kCPU);
  auto events = std::make_shared<EveryEvent>(registry.snapshot());
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, events);
    step();
  }
  const Snapshot peak = registry.peak_snapshot(at::kCPU);
  CHECK(peak.complete());
  CHECK(peak.counters(at::kCPU).current_bytes == events->peak_bytes);
  CHECK(peak.total_bytes(at::kCPU) == events->peak_bytes);
  CHECK(blocks_of(peak) == events->at_peak);
  CHECK(events->at_peak.size() > 10);
  CHECK(registry.counters(at::kCPU).peak_bytes == events->peak_bytes);
}

template <typename Net, typename... Inputs>
void check_training(Net net, const Inputs&... inputs) {
  torch::optim::Adam adam(net->parameters());
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    check_against_hook([&] {
      adam.zero_grad();
      net->forward(inputs...).pow(2).mean().backward();
      adam.step();
    });
  }
}

TEST_CASE("networks") {
  const ScopedTracking tracking;
  torch::manual_seed(1);
  SUBCASE("ResNet-50") { check_training(models::resnet50(), torch::randn({2, 3, 64, 64})); }
  SUBCASE("LSTM") {
    models::LstmOptions options;
    options.input_size = options.hidden_size = 64;
    check_training(models::Lstm(options), torch::randn({20, 4, 64}));
  }
  SUBCASE("Transformer") {
    models::TransformerEncoderOptions options;
    options.num_layers = 2;
    options.d_model = 64;
    options.num_heads = 4;
    options.feedforward_size = 128;
    check_training(models::TransformerEncoder(options), torch::randn({20, 4, 64}));
  }
}

TEST_CASE("a label's peak, and at most sixteen") {
  Registry& registry = Registry::global();
  const ScopedTracking tracking;
  const at::Tensor before = torch::empty({1000}, torch::kByte);
  CHECK(registry.peak_snapshot(at::kCPU, "encoder").devices().empty());
  REQUIRE(registry.keep_label_peak("encoder").ok());
  REQUIRE(registry.keep_label_peak("encoder").ok());
  std::vector<at::Tensor> kept;
  {
    const ScopedLabel epoch("epoch 3");
    kept.push_back(torch::empty({5}, torch::kByte));
    const ScopedLabel encoder("encoder");
    kept.push_back(torch::empty({100}, torch::kByte));
    {
      const ScopedLabel attention("attention");
      const at::Tensor freed = torch::empty({70}, torch::kByte);
    }
    const ScopedLabel other("decoder of the encoder");
    kept.push_back(torch::empty({10}, torch::kByte));
  }
  { const at::Tensor large = torch::empty({100000}, torch::kByte); }
  const Snapshot peak = registry.peak_snapshot(at::kCPU, "encoder");
  REQUIRE(peak.storages(at::kCPU).size() == 2);
  CHECK(peak.total_bytes(at::kCPU) == 170);
  CHECK(peak.storages(at::kCPU)[1].label == "epoch 3/encoder/attention");
  CHECK(peak.counters(at::kCPU).peak_bytes == 170);

  CHECK_FALSE(registry.keep_label_peak("").ok());
  for (int i = 1; i < 16; ++i) CHECK(registry.keep_label_peak("label " + std::to_string(i)).ok());
  const absl::Status full = registry.keep_label_peak("one more");
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(full.message().find("`one more`") != absl::string_view::npos);
  {
    const ScopedLabel last("label 15");
    kept.push_back(torch::empty({33}, torch::kByte));
  }
  CHECK(registry.peak_snapshot(at::kCPU, "label 15").total_bytes(at::kCPU) == 33);
}

TEST_CASE("the printed peak") {
  const ScopedTracking tracking;
  torch::nn::Linear net(256, 256);  // 256 KiB and 1 KiB
  MemReporter reporter(net);
  Registry::global().reset_peak(at::kCPU);
  const int64_t already = Registry::global().snapshot().total_bytes(at::kCPU);
  {
    const ScopedLabel label("scratch");
    const at::Tensor freed = torch::zeros({1 << 20}, torch::kByte);
  }
  const at::Tensor smaller = torch::zeros({1 << 10}, torch::kByte);
  const Report report = reporter.collect_peak(at::kCPU);
  REQUIRE(report.devices.size() == 1);
  CHECK(report.of_peak);
  CHECK(report.devices[0].allocator_bytes == already + (1 << 20));
  CHECK(report.devices[0].unexplained_bytes == 0);
  std::ostringstream out;
  reporter.report_peak(out, at::kCPU);
  const std::string text = out.str();
  CAPTURE(text);
  CHECK(text.find("At the peak on cpu\n") != std::string::npos);
  CHECK(text.find("aten::zeros [scratch, forward]\n") != std::string::npos);
  CHECK(text.find("weight" + std::string(44, ' ') + "(256, 256)   256.00K\n") != std::string::npos);
  CHECK(text.find("(0.00B unexplained)") != std::string::npos);
  CHECK(text.find("aten::zeros [forward]") == std::string::npos);  // born after the peak
  CHECK(report.to_json().find("\"of_peak\":true,\"complete\":true") != std::string::npos);

  // A name that the row has now stays with it in the next report.
  const Report after = reporter.collect();
  CHECK(after.devices[0].unexplained_bytes == 0);
  CHECK_FALSE(after.of_peak);
}

}  // namespace
}  // namespace memledger
