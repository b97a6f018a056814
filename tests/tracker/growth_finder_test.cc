// Growth in real programs on the CPU: leaks of the field are found and named, healthy programs are
// not accused.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/growth_finder.h"

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <list>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"
#include "tests/support/printed_values.h"
#include "tests/support/text_matchers.h"
#include "text/bytes.h"

namespace memledger {
namespace {

using testing::contains;

// The report after that many steps of the program.
template <typename Program>
GrowthReport watched(int steps, Program program, const GrowthOptions& options = {}) {
  GrowthFinder finder(options);
  for (int step = 1; step <= steps; ++step) {
    program(step);
    finder.step();
  }
  return finder.report();
}

const GrowthRow* row_like(const GrowthReport& report, const std::string& part) {
  for (const GrowthRow& row : report.rows) {
    if (contains(row.where(), part)) return &row;
  }
  return nullptr;
}

TEST_SUITE_BEGIN("growth finder: leaks");

TEST_CASE("a replay buffer that is never trimmed") {
  std::vector<at::Tensor> replay;
  const GrowthReport report = watched(60, [&](int step) {
    const ScopedLabel label("replay");
    if (step >= 40) replay.push_back(at::rand({3, 1024}));
  });
  CHECK(report.verdict() == "growing 12.0 KiB per step since step 40");
  REQUIRE(report.rows.size() == 1);
  CHECK(to_string(report) ==
        "growing 12.0 KiB per step since step 40\n"
        "  12.0 KiB per step since step 40: aten::rand [replay, forward] (3, 1024) torch.float32 "
        "on cpu, "
        "252.0 KiB in 21 storages");
  CHECK(report.rows[0].growth.grown_bytes == 21 * 3 * 1024 * 4);
  CHECK_FALSE(no_growth(report));
}

TEST_CASE("sequences of all lengths, and a label for each request, are seen together") {
  std::vector<at::Tensor> kept;
  SUBCASE("lengths") {
    const GrowthReport report = watched(60, [&](int step) {
      kept.push_back(at::zeros({64 + step * 7 % 61, 16}));
    });
    REQUIRE(report.rows.size() == 1);
    CHECK(report.rows[0].level == GrowthLevel::kOperator);
    CHECK(report.rows[0].where() == "aten::zeros [forward] of several shapes or labels on cpu");
    CHECK(report.rows[0].growth.since_step == 6);
  }
  SUBCASE("labels") {
    GrowthOptions options;
    options.unit = "request";
    const GrowthReport report = watched(
        60,
        [&](int step) {
          const ScopedLabel label("request " + std::to_string(step));
          kept.push_back(at::zeros({256}));
        },
        options);
    REQUIRE(report.rows.size() == 1);
    CHECK(report.verdict() == "growing 1.0 KiB per request since request 6");
    CHECK(report.rows[0].where() == "aten::zeros [forward] of several shapes or labels on cpu");
  }
  SUBCASE("operators, too") {
    const GrowthReport report = watched(200, [&](int step) {
      const at::Tensor base = at::ones({16});
      switch (step % 4) {
        case 0:
          kept.push_back(at::zeros({16}));
          break;
        case 1:
          kept.push_back(base + 1);
          break;
        case 2:
          kept.push_back(base * 2);
          break;
        default:
          kept.push_back(base.exp());
      }
    });
    // Each of the four is enough of a row.
    CHECK(report.rows.size() == 4);
    CHECK(report.verdict() == "growing 64.0 B per step since step 6");
  }
}

TEST_CASE("losses summed without detach, in an evaluation that keeps its graphs") {
  torch::nn::Linear layer(16, 16);
  at::Tensor total = at::zeros({});
  const GrowthReport report = watched(40, [&](int) {
    const ScopedLabel label("evaluation");
    total = total + layer(at::ones({8, 16})).relu().sum();
  });
  CHECK_FALSE(no_growth(report));
  // What the graph holds of each step: the input, and relu's result.
  CHECK(row_like(report, "aten::ones [evaluation, forward] (8, 16) torch.float32") != nullptr);
  const GrowthRow* const relu =
      row_like(report, "aten::relu [evaluation, forward] (8, 16) torch.float32");
  REQUIRE(relu != nullptr);
  CHECK(verdict_text(relu->growth) == "growing 512.0 B per step since step 6");
}

TEST_CASE("retain_graph, and the losses kept for a plot") {
  torch::nn::Linear layer(16, 16);
  std::vector<at::Tensor> losses;
  const GrowthReport report = watched(40, [&](int) {
    const at::Tensor loss = layer(at::ones({8, 16})).tanh().pow(2).sum();
    loss.backward({}, /*retain_graph=*/true);
    losses.push_back(loss);
  });
  const GrowthRow* const row = row_like(report, "aten::tanh [forward] (8, 16) torch.float32");
  REQUIRE(row != nullptr);
  CHECK(verdict_text(row->growth) == "growing 512.0 B per step since step 6");
  // The losses themselves: 4 bytes a step, 16 MB of which would take a day's work to see in a
  // total.
  const GrowthRow* const loss = row_like(report, "aten::sum [forward] () torch.float32");
  REQUIRE(loss != nullptr);
  CHECK(verdict_text(loss->growth) == "growing 4.0 B per step since step 6");
}

TEST_CASE("views of 40 bytes, each of which pins 16 MiB") {
  std::vector<at::Tensor> heads;
  const GrowthReport report = watched(20, [&](int) {
    const ScopedLabel label("logits");
    heads.push_back(at::empty({2048, 2048}).flatten().narrow(0, 0, 10));
  });
  REQUIRE(report.rows.size() == 1);
  CHECK(report.verdict() == "growing 16.0 MiB per step since step 6");
  CHECK(report.rows[0].where() ==
        "aten::empty [logits, forward] (2048, 2048) torch.float32 on cpu");
}

TEST_CASE("state of short-lived threads that outlives them") {
  std::mutex lock;
  std::unordered_map<std::thread::id, std::list<at::Tensor>> state;
  const GrowthReport report = watched(30, [&](int) {
    std::thread([&] {
      const ScopedLabel label("worker");
      const at::NoGradGuard no_grad;
      const at::Tensor scratch = at::zeros({100, 10});
      const std::lock_guard<std::mutex> hold(lock);
      state[std::this_thread::get_id()].push_back(scratch.clone());
    }).join();
  });
  REQUIRE(report.rows.size() == 1);
  CHECK(report.verdict() == "growing 3.9 KiB per step since step 6");
  CHECK(report.rows[0].where() == "aten::clone [worker] (100, 10) torch.float32 on cpu");
}

TEST_CASE("4 bytes a step beside a training loop of varying size") {
  torch::nn::Linear layer(64, 64);
  torch::optim::Adam adam(layer->parameters());
  const at::Tensor ballast = at::empty({100 << 20});
  std::vector<at::Tensor> losses;
  at::Tensor last;
  const GrowthReport report = watched(40, [&](int step) {
    adam.zero_grad();
    last = layer(at::ones({1 + step * 13 % 17, 64}));
    const at::Tensor loss = last.mean();
    loss.backward();
    adam.step();
    losses.push_back(loss.detach());
  });
  REQUIRE(report.rows.size() == 1);
  CHECK(report.verdict() == "growing 4.0 B per step since step 6");
  CHECK(contains(report.rows[0].where(), "aten::mean [forward] ()"));
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("growth finder: healthy programs");

at::Tensor loss_of(torch::nn::Sequential& net, int64_t batch) {
  return net->forward(at::ones({batch, 8})).pow(2).mean();
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 4));
}

TEST_CASE("training with Adam; gradients come at step 1, their states as well") {
  torch::nn::Sequential net = small_net();
  torch::optim::Adam adam(net->parameters());
  CHECK(no_growth(watched(40, [&](int) {
    adam.zero_grad();
    loss_of(net, 4).backward();
    adam.step();
  })));
}

TEST_CASE("training on batches of varying size, whose last output stays") {
  torch::nn::Sequential net = small_net();
  torch::optim::SGD sgd(net->parameters(), 0.01);
  at::Tensor last;
  CHECK(no_growth(watched(60, [&](int step) {
    sgd.zero_grad();
    last = loss_of(net, 1 + step * 7 % 11);
    last.backward();
    sgd.step();
  })));
}

TEST_CASE("an evaluation every fifth step that collects its outputs, and a best model kept") {
  torch::nn::Sequential net = small_net();
  torch::optim::SGD sgd(net->parameters(), 0.01);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> best;
  CHECK(no_growth(watched(63, [&](int step) {
    sgd.zero_grad();
    loss_of(net, 4).backward();
    sgd.step();
    if (step % 5 == 0) outputs.clear();
    const at::NoGradGuard no_grad;
    outputs.push_back(net->forward(at::ones({2, 8})));
    if (step % 10 == 0) {
      best.clear();
      for (const at::Tensor& parameter : net->parameters()) best.push_back(parameter.clone());
    }
  })));
}

TEST_CASE("an LRU cache that has filled") {
  std::list<at::Tensor> cache;
  CHECK(no_growth(watched(60, [&](int) {
    cache.push_back(at::zeros({100}));
    if (cache.size() > 20) cache.pop_front();
  })));
}

TEST_CASE("an LRU cache of entries of all shapes, by bytes") {
  std::deque<at::Tensor> cache;
  int64_t bytes = 0;
  CHECK(no_growth(watched(200, [&](int step) {
    cache.push_back(at::zeros({1 + step * 31 % 23}));
    bytes += cache.back().numel();
    while (bytes > 300) {
      bytes -= cache.front().numel();
      cache.pop_front();
    }
  })));
}

TEST_CASE("a cache by key, filled as keys come by chance") {
  std::unordered_map<int64_t, at::Tensor> cache;
  uint32_t random = 1;
  CHECK(no_growth(watched(250, [&](int) {
    random = random * 1664525 + 1013904223;
    at::Tensor& entry = cache[random >> 27];
    if (!entry.defined()) entry = at::zeros({64});
  })));
}

TEST_CASE("a buffer that grows and is trimmed") {
  std::vector<at::Tensor> buffer;
  CHECK(no_growth(watched(77, [&](int) {
    buffer.push_back(at::zeros({100}));
    if (buffer.size() == 25) buffer.clear();
  })));
}

TEST_CASE("inference in short-lived threads, four at a time") {
  torch::nn::Sequential net = small_net();
  CHECK(no_growth(watched(25, [&](int) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&net, i] {
        thread_local at::Tensor state;
        const at::NoGradGuard no_grad;
        const ScopedLabel label("worker " + std::to_string(i));
        state = net->forward(at::ones({2, 8}));
      });
    }
    for (std::thread& thread : threads) thread.join();
  })));
}

TEST_CASE("a recurrent state carried on, detached") {
  torch::nn::GRUCell cell(8, 8);
  at::Tensor state = at::zeros({2, 8});
  CHECK(no_growth(watched(40, [&](int) {
    state = cell(at::ones({2, 8}), state.detach());
    state.sum().backward();
  })));
}

TEST_CASE("losses summed with item(), retain_graph for two losses of one graph") {
  torch::nn::Sequential net = small_net();
  double total = 0;
  CHECK(no_growth(watched(40, [&](int) {
    const at::Tensor out = net->forward(at::ones({2, 8}));
    out.sum().backward({}, /*retain_graph=*/true);
    const at::Tensor loss = out.pow(2).sum();
    loss.backward();
    total += loss.item<double>();
  })));
}

TEST_CASE(
    "gradients accumulated over four steps and then dropped; a moving average of the weights") {
  torch::nn::Sequential net = small_net();
  std::vector<at::Tensor> average;
  CHECK(no_growth(watched(43, [&](int step) {
    loss_of(net, 4).backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> next;
    size_t i = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      next.push_back(average.empty() ? parameter.clone() : average[i] * 0.9 + parameter * 0.1);
      if (step % 4 == 0) parameter.mutable_grad().reset();
      ++i;
    }
    average = std::move(next);
  })));
}

TEST_CASE("the last twenty losses, a queue of prefetched batches, and a head added at step 30") {
  torch::nn::Sequential net = small_net();
  std::deque<at::Tensor> losses;
  std::deque<at::Tensor> queue;
  torch::nn::Linear head{nullptr};
  CHECK(no_growth(watched(60, [&](int step) {
    while (queue.size() < static_cast<size_t>(2 + step % 3)) queue.push_back(at::ones({4, 8}));
    queue.pop_front();
    losses.push_back(loss_of(net, 4).detach());
    if (losses.size() > 20) losses.pop_front();
    if (step == 30) head = torch::nn::Linear(8, 8);
  })));
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("growth finder");

TEST_CASE("too few steps are no verdict") {
  const GrowthReport report = watched(14, [](int) {});
  CHECK(report.verdict() == "unknown: 14 of at least 15 steps");
  CHECK_FALSE(no_growth(report));
  CHECK(no_growth(report).message() ==
        "too few steps to tell whether memory grows: 14 of at least 15");
  CHECK(to_string(watched(15, [](int) {})) == "steady");
}

TEST_CASE("a warm-up of all kinds, and a tolerance for a cache that is still filling") {
  GrowthOptions options;
  options.rule.warm_up_steps = 20;
  std::vector<at::Tensor> kept;
  CHECK(no_growth(watched(
      40, [&](int step) { step <= 20 ? kept.push_back(at::zeros({step})) : void(); }, options)));
  options.rule = {};
  options.rule.tolerance_bytes = 100 * 400;
  CHECK(no_growth(watched(
      60, [&](int) { kept.push_back(at::zeros({100})); }, options)));
  CHECK_FALSE(no_growth(watched(
      130, [&](int) { kept.push_back(at::zeros({100})); }, options)));
}

TEST_CASE("only the device asked for") {
  GrowthOptions options;
  options.device = c10::Device(c10::kCUDA, 0);
  std::vector<at::Tensor> kept;
  const GrowthReport report = watched(
      30, [&](int) { kept.push_back(at::zeros({100})); }, options);
  CHECK(report.verdict() == "steady");
  CHECK(report.groups == 0);
}

TEST_CASE("groups are bounded: empty ones make room, the rest shows in sums") {
  GrowthOptions options;
  options.max_groups = 16;
  SUBCASE("labels that pass") {
    std::vector<at::Tensor> leak;
    at::Tensor passing;  // alive at the end of its step, gone at the next
    const GrowthReport report = watched(
        200,
        [&](int step) {
          const ScopedLabel label("request " + std::to_string(step));
          passing = at::zeros({64});
          leak.push_back(at::ones({2}));
        },
        options);
    CHECK(report.groups <= 16);
    REQUIRE(report.rows.size() == 1);
    CHECK(verdict_text(report.rows[0].growth) == "growing 8.0 B per step since step 6");
  }
  SUBCASE("more alive than there is place for") {
    std::vector<at::Tensor> leak;
    const GrowthReport report = watched(
        60, [&](int step) { leak.push_back(at::ones({step})); }, options);
    CHECK(report.groups == 16);
    CHECK(report.groups_left_out == 60 - 16);
    REQUIRE(report.rows.size() == 1);
    CHECK(report.rows[0].level == GrowthLevel::kOperator);
    CHECK(report.rows[0].count == 60);
    leak.clear();
  }
}

TEST_CASE("steps may end on any thread, side by side") {
  GrowthFinder finder;
  std::mutex lock;
  std::vector<at::Tensor> kept;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 25; ++j) {
        const at::Tensor passing = at::ones({100});
        {
          const std::lock_guard<std::mutex> hold(lock);
          kept.push_back(at::zeros({8}));
        }
        finder.step();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const GrowthReport report = finder.report();
  CHECK(report.steps == 100);
  CHECK_FALSE(no_growth(report));
  CHECK(row_like(report, "aten::zeros") != nullptr);
}

TEST_CASE("fork while another thread steps: the child can, too" *
          doctest::skip(testing::kChildrenMayHang)) {
  GrowthFinder finder;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) finder.step();
  });
  int good = 0;
  constexpr int kForks = 20;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      finder.step();
      ::_exit(finder.report().steps > 0 ? 0 : 1);
    }
    int status = 1;
    good += ::waitpid(child, &status, 0) == child && status == 0;
    if (good <= i) break;
  }
  stop = true;
  other.join();
  CHECK(good == kForks);
}

TEST_CASE("JSON has fixed keys and escaped names") {
  std::vector<at::Tensor> kept;
  const std::string json = watched(30, [&](int) {
                             const ScopedLabel label("a \"b\"");
                             kept.push_back(at::zeros({4}));
                           }).to_json();
  CHECK(json ==
        R"({"schema":"memledger.growth/2","unit":"step","tracked":true,"steps":30,)"
        R"("steps_needed":15,"groups":1,"groups_left_out":0,)"
        R"("verdict":"growing 16.0 B per step since step 6","rows":[{"level":"group",)"
        R"("by":["device","op","autograd_node","phase","raw_block","label","shape","dtype"],)"
        R"("device":"cpu","op":"aten::zeros","autograd_node":"","phase":"forward",)"
        R"("raw_block":false,"label":"a \"b\"","shape":[4],"dtype":"torch.float32","where":null,)"
        R"("bytes_per_step":16.0,"since_step":6,"grown_bytes":400,"bytes":480,"count":30}]})");
}

TEST_CASE("JSON: several is not unknown") {
  GrowthReport report;
  GrowthRow row;
  row.level = GrowthLevel::kOperator;
  row.group.op = "aten::cat";
  report.rows.push_back(row);
  row.level = GrowthLevel::kStack;
  row.group.raw_block = true;
  report.rows.push_back(row);
  const std::string json = report.to_json();
  CHECK(json.find(R"("level":"operator","by":["device","op","autograd_node","phase","raw_block"],)"
                  R"("device":"cpu","op":"aten::cat",)") != std::string::npos);
  CHECK(json.find(R"("raw_block":false,"label":null,"shape":null,"dtype":null,"where":null,)") !=
        std::string::npos);
  CHECK(json.find(R"("raw_block","label","shape","dtype","where"],"device":"cpu",)") !=
        std::string::npos);
  CHECK(json.find(R"("raw_block":true,"label":"","shape":null,"dtype":null,"where":null,)") !=
        std::string::npos);
}

TEST_CASE("sizes in words") {
  CHECK(size_in_words(0) == "0.0 B");
  CHECK(size_in_words(0.004) == "0.004 B");
  CHECK(size_in_words(40) == "40.0 B");
  CHECK(size_in_words(1023) == "1023.0 B");
  CHECK(size_in_words(1023.99) == "1.0 KiB");
  CHECK(size_in_words(12288) == "12.0 KiB");
  CHECK(size_in_words(16 << 20) == "16.0 MiB");
  CHECK(verdict_text({}) == "steady");
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
