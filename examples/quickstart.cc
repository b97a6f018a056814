// Watches one training step of a real ResNet-50 and says, to the byte, where its memory is.
//
//   ./bazelw run //examples:quickstart
//   ./bazelw run //examples:quickstart -- --batch=4 --size=128
//   ./bazelw run //examples:quickstart -- --verbose        # every row, the whole block of the log

#include <fmt/format.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
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
ABSL_FLAG(bool, verbose, false, "Prints every row of the reports and of the log.");

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

// Returns the last block of a log: what changed before its last `At` line, the first `max_changes`
// of it, and that line.
std::string last_block(const std::string& path, size_t max_changes) {
  std::ifstream log(path);
  std::string line, last;
  std::vector<std::string> changes;
  while (std::getline(log, line)) {
    if (line.rfind("At ", 0) != 0) {
      if (!line.empty()) changes.push_back(line);
      continue;
    }
    last.clear();
    const size_t shown = std::min(max_changes, changes.size());
    for (size_t i = 0; i < shown; ++i) last += changes[i] + "\n";
    if (shown < changes.size()) last += fmt::format("… and {} more\n", changes.size() - shown);
    last += line + "\n";
    changes.clear();
  }
  return last;
}

// A table of a few rows fits a screen.
memledger::ReportOptions table(bool verbose, size_t rows) {
  memledger::ReportOptions options;
  options.verbose = verbose;
  options.max_rows = rows;
  options.group = verbose ? memledger::GroupBy::kAlike : memledger::GroupBy::kModule;
  return options;
}

int run(int batch, int size, bool verbose) {
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
  reporter.report(std::cout, table(verbose, 10));
  if (const std::string page = absl::GetFlag(FLAGS_html); !page.empty())
    std::ofstream(page) << reporter.collect().to_html();

  headline("Saved for the backward pass");
  const int64_t saved = memledger::memory_for_backward(net, loss);
  memledger::SavedTensorOptions without_input;
  without_input.exclude = {images};
  fmt::print("{} bytes; {} without the images, which the program holds anyway\n\n", saved,
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
  reporter.report(std::cout, table(verbose, 6));

  headline("What the optimizer's step has added, by the log");
  std::cout << last_block(tracker.log_path(), verbose ? std::string::npos : 5) << "\n"
            << tracker.log_path() << " has all of it";
  std::cout << (verbose ? ".\n" : "; --verbose prints every row.\n");
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
    return run(batch, size, absl::GetFlag(FLAGS_verbose));
  } catch (const std::exception& error) {
    std::cerr << "quickstart: " << error.what() << "\n";
    return 1;
  }
}
