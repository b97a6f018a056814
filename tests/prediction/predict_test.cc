// Predictions of steps, on the virtual h100 that this program is linked with. LibTorch's own
// statistics of the same steps are the truth.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "memledger.h"
#include "prediction/expectations_doctest.h"

namespace memledger {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// With one order of addresses, for what does not depend on it: half the runs.
const PredictOptions kOneOrder = {"h100,addresses=down"};

c10::CachingDeviceAllocator::DeviceStats statistics() {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  REQUIRE(allocator != nullptr);
  return allocator->getDeviceStats(0);
}

// LibTorch's peaks of the step, run here.
struct Peaks {
  int64_t allocated = 0, reserved = 0;
};
Peaks run_here(const std::function<void()>& step) {
  dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA))->resetPeakStats(0);
  for (int run = 0; run < 4; ++run) step();
  const auto figures = statistics();
  return {figures.allocated_bytes[0].peak, figures.reserved_bytes[0].peak};
}

at::Tensor bytes_on_gpu(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

struct Mlp {
  torch::nn::Sequential net{torch::nn::Linear(1024, 4096), torch::nn::ReLU(),
                            torch::nn::Linear(4096, 1024)};
  at::Tensor input = at::ones({256, 1024}, at::kCUDA);
  std::optional<torch::optim::Adam> adam;

  Mlp() {
    net->to(at::kCUDA);
    adam.emplace(net->parameters());
  }
  void step() {
    adam->zero_grad();
    net->forward(input).square().sum().backward();
    adam->step();
  }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// First, as what the others leave here for cuBLAS counts in this process, and not in one that runs
// this test alone.
TEST_CASE("the peaks of a convolutional network's step hold LibTorch's own") {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)),
                            torch::nn::BatchNorm2d(64), torch::nn::ReLU(),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1)));
  net->to(at::kCUDA);
  const at::Tensor images = at::ones({8, 3, 64, 64}, at::kCUDA);
  const auto step = [&] {
    net->zero_grad();
    net->forward(images).sum().backward();
  };
  const auto prediction = predict(step);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  const Interval allocated = prediction->devices.front().allocated_peak;
  const Peaks truth = run_here(step);
  // This process has the expected workspaces, of which the low end has nine tenths.
  CHECK(allocated.low <= truth.allocated);
  CHECK(allocated.low >= truth.allocated / 10 * 9);
  CHECK(allocated.high >= truth.allocated);
  // On another kind of device.
  const TestVerdict verdict = fits_on("t4", step);
  CHECK_MESSAGE(verdict, verdict);
  CHECK(verdict.message() == "t4: fits through run 2 of the step; no evaluation was seen");
}

TEST_CASE("the peaks of an MLP's step are LibTorch's own, and nothing happens here") {
  // What is cached of other tests would be reserved here, and not in a new process.
  dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA))->emptyCache();
  Mlp mlp;
  const auto step = [&] { mlp.step(); };
  const auto before = statistics();
  const auto prediction = predict(step);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  const auto after = statistics();
  CHECK(after.allocation[0].allocated == before.allocation[0].allocated);
  CHECK(after.allocated_bytes[0].peak == before.allocated_bytes[0].peak);
  CHECK(prediction->verdict == Verdict::kFits);
  CHECK(prediction->sentence().rfind("fits through run ", 0) == 0);
  CHECK_FALSE(prediction->whole_run);
  CHECK_FALSE(prediction->saw_evaluation);
  REQUIRE(prediction->devices.size() == 1);
  const DevicePrediction& device = prediction->devices.front();
  const Peaks truth = run_here(step);
  CHECK(device.allocated_peak.low == truth.allocated);
  CHECK(device.allocated_peak.high == truth.allocated);
  CHECK(device.reserved_peak.low == truth.reserved);
  REQUIRE(prediction->peak);
  CHECK_FALSE(prediction->peak->largest.empty());
}

TEST_CASE("the verdict turns within 4 MiB of the low end, and 28 of the high one") {
  Mlp mlp;
  const auto step = [&] { mlp.step(); };
  const auto prediction = predict(step, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  const DevicePrediction& device = prediction->devices.front();
  // A device of less than 2 GiB has no context of its own.
  PredictOptions options;
  options.capacity_bytes = device.process_peak.high - device.context.high + 28 * kMiB;
  const TestVerdict enough = fits_on(kOneOrder.gpu, step, options);
  CHECK_MESSAGE(enough, enough);
  options.capacity_bytes = device.allocated_peak.low - 4 * kMiB;
  const TestVerdict too_small = fits_on(kOneOrder.gpu, step, options);
  CHECK_FALSE(too_small);
  CHECK_MESSAGE(has(too_small.message(), ": does not fit: "), too_small);
}

TEST_CASE("what is alive before the call counts, what is gone does not") {
  bytes_on_gpu(512 * kMiB);
  const at::Tensor weights = bytes_on_gpu(96 * kMiB);
  const auto prediction = predict([&] { bytes_on_gpu(32 * kMiB); }, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(prediction->devices.front().allocated_peak.low == 128 * kMiB);
  CHECK(prediction->devices.front().allocated_peak.high == 128 * kMiB);
}

TEST_CASE("an allocation that fails in the step does not fit") {
  const auto prediction = predict([] { bytes_on_gpu(int64_t{2} << 40); }, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(prediction->verdict == Verdict::kDoesNotFit);
  REQUIRE(prediction->failure);
  CHECK(prediction->failure->requested_bytes == int64_t{2} << 40);
  CHECK(prediction->failure->op == "aten::empty");
}

TEST_CASE("a failed allocation before the call does not fit either") {
  Mlp mlp;
  PredictOptions options;
  options.capacity_bytes = 64 * kMiB;
  const at::Tensor large = bytes_on_gpu(128 * kMiB);
  const TestVerdict verdict = fits_on(
      "h100", [&] { mlp.step(); }, options);
  CHECK_FALSE(verdict);
  CHECK_MESSAGE(has(verdict.message(), "does not fit"), verdict);
}

TEST_CASE("what the step throws is the reason") {
  const auto prediction = predict(
      [] {
        bytes_on_gpu(kMiB);
        throw std::runtime_error("no such layer: head");
      },
      kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(prediction->verdict == Verdict::kFailed);
  CHECK(prediction->sentence() == "failed: the step threw: no such layer: head");
}

TEST_CASE("a size that only a device knows is an interval, and between its ends nothing is known") {
  const at::Tensor mask = at::randn({16, 1024, 1024}, at::kCUDA).gt(0);
  const auto step = [&] { mask.nonzero(); };
  const auto prediction = predict(step, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  const Interval allocated = prediction->devices.front().allocated_peak;
  // Three coordinates of eight bytes for each element, or for none.
  CHECK(allocated.high - allocated.low >= int64_t{16} * kMiB * 3 * 8);
  REQUIRE_FALSE(prediction->unknown_reads.empty());
  CHECK(has(prediction->unknown_reads.front().op, "aten::nonzero"));
  PredictOptions options;
  options.capacity_bytes = allocated.low + 256 * kMiB;
  const TestVerdict verdict = fits_on(kOneOrder.gpu, step, options);
  CHECK_FALSE(verdict);
  CHECK_MESSAGE(has(verdict.message(), "not known"), verdict);
}

TEST_CASE("a size without a largest value is not known") {
  const at::Tensor counts = at::empty({64}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  const auto prediction = predict([&] { at::repeat_interleave(counts); }, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(prediction->verdict == Verdict::kNotKnown);
}

TEST_CASE("a step that takes more each time is not said to fit") {
  std::vector<at::Tensor> kept;
  const auto step = [&] { kept.push_back(bytes_on_gpu(4 * kMiB)); };
  const auto prediction = predict(step, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(prediction->verdict == Verdict::kNotKnown);
  CHECK(has(prediction->sentence(), "still moved"));
  CHECK(prediction->devices.front().allocated_peak.high == 40 * kMiB);  // ten runs
  CHECK(kept.empty());
}

TEST_CASE("what was predicted before steers the new processes, too") {
  int64_t largest = 0;
  PredictOptions options = kOneOrder;
  options.capacity_bytes = 320 * kMiB;
  for (int64_t blocks = 1; blocks <= 4; ++blocks) {
    const auto prediction = predict([&] { bytes_on_gpu(blocks * 96 * kMiB); }, options);
    REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
    if (prediction->verdict != Verdict::kFits) break;
    largest = blocks;
  }
  CHECK(largest == 3);
}

TEST_CASE("a program that does not come to the call again, or uses no GPU, has failed") {
  if (std::getenv("MEMLEDGER_PREDICT_CALL") == nullptr) {
    const auto prediction = predict([] { bytes_on_gpu(kMiB); }, kOneOrder);
    REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
    CHECK(has(prediction->sentence(), "failed: this program, started anew, ended before it came"));
  }
  const auto prediction = predict([] { at::ones({3}); }, kOneOrder);
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK(has(prediction->sentence(), "failed: it used no GPU"));
}

TEST_CASE("one prediction at a time") {
  const auto step = [] {
    const auto inner = predict([] { bytes_on_gpu(kMiB); });
    if (!absl::IsFailedPrecondition(inner.status())) throw std::logic_error("it predicts");
    bytes_on_gpu(kMiB);
  };
  absl::Status other;
  absl::StatusOr<Prediction> prediction;
  std::thread predicts([&] { prediction = predict(step, kOneOrder); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  other = predict(step).status();
  predicts.join();
  CHECK(absl::IsFailedPrecondition(other));
  REQUIRE_MESSAGE(prediction.ok(), prediction.status().message());
  CHECK_MESSAGE(prediction->verdict == Verdict::kFits, prediction->sentence());
}

TEST_CASE("what cannot be is refused") {
  const auto step = [] {};
  CHECK(absl::IsInvalidArgument(predict(step, {"h1000"}).status()));
  CHECK(has(fits_on("h1000", step).message(), "is not a known device"));
  PredictOptions options;
  options.least_runs = 3;
  options.most_runs = 2;
  CHECK(absl::IsInvalidArgument(predict(step, options).status()));
  options = {};
  options.capacity_bytes = 1;
  CHECK(has(std::string(predict(step, options).status().message()), "at least 64MiB"));
}

}  // namespace
}  // namespace memledger
