// Watches one training step of a real ResNet-50 and says, to the byte, where its memory is.
//
//   ./bazelw run //examples:quickstart
//   ./bazelw run //examples:quickstart -- --batch=4 --size=128

#include <fmt/format.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/models/models.h"
#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tracker/mem_tracker.h"

ABSL_FLAG(int, batch, 16, "Images in the batch.");
ABSL_FLAG(std::string, html, "", "File for the first report as a page; none without it.");
ABSL_FLAG(int, size, 224, "Height and width of an image, in pixels.");
ABSL_FLAG(std::string, log_dir, "",
          "Folder for the log; empty: the one the program is started from.");

namespace {

// Says what runs, and how long it took.
void timed(std::string_view what, const std::function<void()>& work) {
  std::cout << what << " … " << std::flush;
  const auto begin = std::chrono::steady_clock::now();
  work();
  fmt::print("{:.1f} s\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  std::cout << std::flush;
}

void headline(std::string_view text) { std::cout << "\n== " << text << " ==\n"; }

// The last block of a log: what changed before its last `At` line, and that line.
std::string last_block(const std::string& path) {
  std::ifstream log(path);
  std::string line, block, last;
  while (std::getline(log, line)) {
    if (!line.empty()) block += line + "\n";
    if (line.rfind("At ", 0) != 0) continue;
    last = std::exchange(block, "");
  }
  return last;
}

int run(int batch, int size) {
  const memledger::ScopedTracking tracking;  // first, so that nothing goes unseen
  memledger::TrackerOptions options;
  options.path = absl::GetFlag(FLAGS_log_dir);
  options.device = at::Device(at::kCPU);
  memledger::MemTracker tracker(options);

  memledger::models::ResNet net{nullptr};
  timed("building ResNet-50", [&] { net = memledger::models::resnet50(); });
  net->train();
  torch::optim::Adam adam(net->parameters());
  const at::Tensor images = at::randn({batch, 3, size, size});
  tracker.add_module("", net).add_optimizer(adam).add_tensor("images", images);
  memledger::MemReporter reporter(net);
  reporter.add_optimizer(adam).add_input("images", images);
  tracker.track("model and input");

  at::Tensor loss;
  timed(fmt::format("forward, {} images of {}x{}", batch, size, size),
        [&] { loss = net->forward(images).sum(); });
  tracker.track("forward");
  reporter.add_graph(loss);

  headline("After the forward pass: who holds the memory");
  reporter.report(/*verbose=*/true);
  if (const std::string page = absl::GetFlag(FLAGS_html); !page.empty())
    std::ofstream(page) << reporter.collect().to_html();

  headline("Saved for the backward pass");
  const int64_t saved = memledger::memory_for_backward(net, loss);
  memledger::SavedTensorOptions without_input;
  without_input.exclude = {images};
  fmt::print("saved for backward: {} bytes; with the input excluded: {} bytes\n\n", saved,
             memledger::memory_for_backward(net, loss, without_input));
  std::cout << std::flush;

  timed("backward", [&] { loss.backward(); });
  tracker.track("backward");
  timed("Adam step", [&] {
    const memledger::ScopedPhase phase(memledger::Phase::kOptimizer);
    adam.step();
  });
  tracker.track("Adam step");

  headline("After the optimizer's step");
  reporter.report();

  headline("The log");
  std::cout << tracker.log_path() << "\n\n" << last_block(tracker.log_path());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Runs one training step of ResNet-50 on the CPU under memledger: who holds the memory after "
      "the\nforward pass and after the optimizer's step, what autograd saved for the backward "
      "pass, and a log of\nwhat changed between the lines.\n"
      "Takes about 6 GB of memory with the default batch; a smaller --batch takes less.");
  absl::ParseCommandLine(argc, argv);
  const int batch = absl::GetFlag(FLAGS_batch);
  const int size = absl::GetFlag(FLAGS_size);
  if (batch < 2 || size < 32) {
    std::cerr << "quickstart: --batch must be at least 2 (batch norm in train mode) and --size at "
                 "least 32; got --batch="
              << batch << " --size=" << size << "\n";
    return 1;
  }
  try {
    return run(batch, size);
  } catch (const std::exception& error) {
    std::cerr << "quickstart: " << error.what() << "\n";
    return 1;
  }
}
