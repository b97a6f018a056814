// The example of TRUMPY's README, in C++: what a ResNet-50 keeps for the backward pass, estimated
// from the graph, and measured.
//
//   ./bazelw run //examples:trumpy      # on the CPU, and on a GPU if there is one
//   ./bazelw build //:memledger_cli //examples:trumpy
//   bazel-bin/runner/memledger run -q --virtual-gpu=h200 -- bazel-bin/examples/trumpy
//
// The original printed, on the CPU
//   estimated memory usage for backward related tensors in cpu: 1.2881765365600586 GB
// and on a GPU
//   estimated memory usage for backward related tensors in cuda:0: 1.2881765365600586 GB
//   ground-truth memory usage for backward related tensors in gpu: 1.28438138961792 GB
//
// What is different here:
// - The estimate is smaller by 8404480 bytes: 8192000 for `fc.weight`, which the original took for
//   an activation because the graph holds its transposed view, and 212480 for the running
//   statistics of the batch norms, which are buffers.
// - The input is in the estimate, as there, but not in what is measured, as it was made before.
//   The lines below the sentences lead from the one figure to the other, to the byte.
// - On a GPU LibTorch keeps workspaces for cuBLAS and cuBLASLt from the first matrix product on,
//   and takes memory in blocks: on an H200 1417530880 bytes for the 1365130756 requested.

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <cstdint>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/models/models.h"
#include "memledger.h"

ABSL_FLAG(int, batch, 16, "Images in the batch.");
ABSL_FLAG(int, size, 224, "Height and width of an image, in pixels.");

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Memory {
  int64_t requested = 0;  // of the allocator
  int64_t allocated = 0;  // in its blocks
};

// On a GPU LibTorch's own statistics; on the CPU, where it keeps none, memledger's counter.
Memory memory_of(at::Device device) {
  if (device.is_cpu()) {
    const int64_t bytes = memledger::Registry::global().counters(device).current_bytes;
    return {bytes, bytes};
  }
  const auto statistics = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {statistics.requested_bytes[all].current, statistics.allocated_bytes[all].current};
}

int64_t workspaces_of(at::Device device) {
  memledger::ReportOptions options;
  options.device = device;
  int64_t bytes = 0;
  for (const memledger::DeviceReport& report : memledger::MemReporter().collect(options).devices) {
    for (const memledger::ReportItem& item : report.items) {
      if (item.kind == memledger::ReportItemKind::kLibraryWorkspace) bytes += item.bytes;
    }
  }
  return bytes;
}

void line(std::string_view sign, int64_t bytes, std::string_view what) {
  fmt::print("  {:1} {:>11}  {}\n", sign, bytes, what);
}

// False if something could not be explained.
bool run_on(at::Device device, int batch, int size) {
  memledger::models::ResNet net = memledger::models::resnet50();
  net->to(device);
  const at::Tensor input = at::rand({batch, 3, size, size}, device);
  const Memory before = memory_of(device);
  const int64_t workspaces_before = workspaces_of(device);

  const at::Tensor loss =
      net->forward(input).sum();  // loss is the starting point of the backward computation graph
  const int64_t saved_memory = memledger::memory_for_backward(net, loss);
  fmt::print("estimated memory usage for backward related tensors in {}: {} GB\n", device.str(),
             static_cast<double>(saved_memory) / kGiB);

  const Memory after = memory_of(device);
  const int64_t growth = after.allocated - before.allocated;
  fmt::print("ground-truth memory usage for backward related tensors in {}: {} GB\n",
             device.is_cpu() ? "cpu" : "gpu", static_cast<double>(growth) / kGiB);

  const auto input_bytes = static_cast<int64_t>(input.nbytes());
  const auto loss_bytes = static_cast<int64_t>(loss.nbytes());
  const int64_t workspaces = workspaces_of(device) - workspaces_before;
  const int64_t rounding = growth - (after.requested - before.requested);
  const int64_t explained = saved_memory - input_bytes + loss_bytes + workspaces + rounding;
  line("", saved_memory, "bytes estimated");
  line("-", input_bytes, "the input, which was there before");
  line("+", loss_bytes, "the loss");
  if (!device.is_cpu()) {
    line("+", workspaces, "library workspaces");
    line("+", rounding, "what blocks are larger than was asked for");
  }
  line("=", explained,
       fmt::format("bytes; measured {} ({} unexplained)", growth, growth - explained));
  return explained == growth;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "What a ResNet-50 keeps for the backward pass: estimated and measured, on the CPU and on "
      "cuda:0 if there is one.");
  absl::ParseCommandLine(argc, argv);
  const int batch = absl::GetFlag(FLAGS_batch);
  const int size = absl::GetFlag(FLAGS_size);
  if (batch < 2 || size < 32) {
    std::cerr << "trumpy: --batch must be at least 2 (batch norm in train mode) and --size at "
                 "least 32; got --batch="
              << batch << " --size=" << size << "\n";
    return 1;
  }
  const memledger::ScopedTracking tracking;
  try {
    bool explained = run_on(at::kCPU, batch, size);
    if (torch::cuda::is_available())
      explained = run_on(at::Device("cuda:0"), batch, size) && explained;
    return explained ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "trumpy: " << error.what() << "\n";
    return 1;
  }
}
