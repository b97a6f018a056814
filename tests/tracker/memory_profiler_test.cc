// The iteration profiler against sizes worked out by hand, and against who is alive by LibTorch's
// own word.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tracker/memory_profiler.h"

#include <ATen/Functions.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "examples/models/models.h"
#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/temporary_folder.h"

namespace memledger {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;

std::string scratch;  // a folder for this run

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

MemoryProfilerOptions quiet(std::ostream& out) {
  MemoryProfilerOptions options;
  options.out = &out;
  return options;
}

TEST_SUITE_BEGIN("memory profiler");

TEST_CASE("the frame of pytorch_mem_profiler's README") {
  IterationStats stats;
  stats.epoch = 1;
  stats.iteration = 85;
  stats.peak_cached_bytes = stats.current_cached_bytes = 857000000;
  stats.feature_map_bytes = 301000000;
  stats.feature_maps = {{"mlp.0", 300600000}, {"final", 400000}};
  stats.weights = {{"mf_user_embed.weight", 35454208}, {"mlp.0.bias", 1024}};
  stats.weight_gradients = {{"mf_user_embed.weight grad", 35454208}, {"mlp.0.bias grad", 0}};
  stats.intermediate_gradient_bytes = 34400000;
  CHECK(to_string(stats) ==
        "*******************************************\n"
        "Memory Usage for Iteration 85 of Epoch 1\n"
        "*******************************************\n"
        "Peak cached..........................857 MB\n"
        "Current cached.......................857 MB\n"
        "Total feature map usage..............301 MB\n"
        "  mlp.0 feature maps.................301 MB\n"
        "  final feature maps...................0 MB\n"
        "\n"
        "Total layer weight usage..............35 MB\n"
        "  mf_user_embed.weight................35 MB\n"
        "  mlp.0.bias...........................0 MB\n"
        "\n"
        "Total layer weight gradient usage.....35 MB\n"
        "  mf_user_embed.weight grad...........35 MB\n"
        "  mlp.0.bias grad......................0 MB\n"
        "Intermediate gradients................34 MB\n");
  CHECK(to_csv(stats).find("dropped_events") == std::string::npos);
  stats.dropped_events = 3;
  CHECK(to_string(stats).find("(3 events were dropped:") != std::string::npos);
  CHECK(to_csv(stats).find("1,85,dropped_events,3,\n") != std::string::npos);
  stats.weights[0].name = "a,\"b\"";
  CHECK(to_csv(stats).find("1,85,weight,\"a,\"\"b\"\"\",35454208\n") != std::string::npos);
}

TEST_CASE("what the registry could not tell is unknown, not 0") {
  IterationStats stats;
  stats.device = c10::Device(c10::kCUDA, 0);
  stats.peak_cached_bytes = stats.current_cached_bytes = 857000000;
  stats.weights = {{"final.weight", 0}};
  stats.tracking_is_off = true;
  CHECK(to_string(stats).find("Peak cached..........................857 MB\n") !=
        std::string::npos);
  CHECK(to_string(stats).find("Total feature map usage................? MB\n") !=
        std::string::npos);
  CHECK(to_string(stats).find("  final.weight.........................? MB\n") !=
        std::string::npos);
  CHECK(to_string(stats).find("..0 MB") == std::string::npos);
  CHECK(to_csv(stats).find("0,0,peak_cached,,857000000\n") != std::string::npos);
  CHECK(to_csv(stats).find("0,0,weight,final.weight,\n") != std::string::npos);
  stats.device = c10::Device(c10::kCPU);  // whose cache is the registry's bytes
  CHECK(to_string(stats).find("Peak cached............................? MB\n") !=
        std::string::npos);
}

// Two Linears and a ReLU: everything can be counted by hand.
struct Net : nn::Module {
  Net() {
    one = register_module("one", nn::Linear(32, 64));
    two = register_module("two", nn::Linear(64, 64));
    norm = register_module("norm", nn::BatchNorm1d(64));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = one(x);
    hidden = at::relu(hidden);
    hidden = two(hidden);
    return norm(hidden);
  }
  nn::Linear one = nullptr, two = nullptr;
  nn::BatchNorm1d norm = nullptr;
};

TEST_CASE("figures of one step, by hand") {
  auto net = std::make_shared<Net>();
  std::ostringstream out;
  MemoryProfiler profiler(*net, quiet(out));
  for (int iteration = 1; iteration <= 3; ++iteration) {
    const at::Tensor batch = torch::ones({8, 32});  // born before the first layer: no feature map
    net->zero_grad();
    net->forward(batch).sum().backward();
    profiler.record_stats();
    const IterationStats& stats = profiler.last();
    CHECK(stats.epoch == 1);
    CHECK(stats.iteration == iteration);
    std::map<std::string, int64_t> weights, gradients, maps;
    for (const NamedBytes& row : stats.weights) weights[row.name] = row.bytes;
    for (const NamedBytes& row : stats.weight_gradients) gradients[row.name] = row.bytes;
    for (const NamedBytes& row : stats.feature_maps) maps[row.name] = row.bytes;
    CHECK(weights == std::map<std::string, int64_t>{{"one.weight", 32 * 64 * 4},
                                                    {"one.bias", 64 * 4},
                                                    {"two.weight", 64 * 64 * 4},
                                                    {"two.bias", 64 * 4},
                                                    {"norm.weight", 256},
                                                    {"norm.bias", 256}});
    for (const auto& [name, bytes] : weights) CHECK(gradients[name + " grad"] == bytes);
    // relu's result, as the first addmm's is gone before the second's is there; addmm's; norm's,
    // its mean and inverse deviation, and what the kernel takes for itself.
    CHECK(maps["one"] == 8 * 64 * 4);
    CHECK(maps["two"] == 8 * 64 * 4);
    CHECK(maps["norm"] >= 8 * 64 * 4 + 2 * 64 * 4);
    CHECK(maps["norm"] <= 8 * 64 * 4 + 2 * 64 * 4 + 1024);
    CHECK(stats.feature_map_bytes == maps["one"] + maps["two"] + maps["norm"]);
    // The gradient of addmm's result, at least, and never more than all that backward makes at
    // once.
    CHECK(stats.intermediate_gradient_bytes >= 8 * 64 * 4);
    CHECK(stats.intermediate_gradient_bytes <= 3 * 8 * 64 * 4);
    CHECK(stats.dropped_events == 0);
  }
  CHECK(out.str().find("Memory Usage for Iteration 3 of Epoch 1") != std::string::npos);
}

TEST_CASE(
    "periods and epochs; a period below one and a module without parameters are errors that say "
    "so") {
  nn::Linear net(4, 4);
  std::ostringstream out;
  MemoryProfilerOptions options = quiet(out);
  options.print_period = 3;
  MemoryProfiler profiler(net, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 7; ++i) profiler.record_stats();
    profiler.epoch_end();
  }
  std::string told;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("Memory Usage", 0) == 0) told += line.substr(13) + "; ";
  }
  CHECK(told ==
        "for Iteration 3 of Epoch 1; for Iteration 6 of Epoch 1; for Iteration 3 of Epoch 2; for "
        "Iteration 6 of Epoch 2; ");

  for (const int period : {0, -5}) {
    options.print_period = period;
    CHECK_THROWS_WITH_AS(MemoryProfiler(net, options), doctest::Contains("print_period is"),
                         c10::Error);
  }
  options.print_period = 1;
  nn::ReLU none;
  CHECK_THROWS_WITH_AS(MemoryProfiler(none, options), doctest::Contains("has no parameters"),
                       c10::Error);
  options.csv = true;
  std::ofstream(scratch + "/file") << "not a folder";
  options.csv_folder = scratch + "/file/csv";
  CHECK_THROWS_WITH_AS(MemoryProfiler(net, options),
                       doctest::Contains((scratch + "/file/csv").c_str()), c10::Error);
}

TEST_CASE("the CSV file has exact bytes, and adds up to the registry's") {
  models::NeuMfOptions small;
  small.num_users = 1000;
  small.num_items = 500;
  models::NeuMf net(small);
  torch::optim::Adam adam(net->parameters());
  std::ostringstream out;
  MemoryProfilerOptions options = quiet(out);
  options.csv = true;
  options.csv_folder = scratch + "/csv";
  std::string path;
  {
    MemoryProfiler profiler(net, options);
    profiler.add_optimizer(adam);
    path = profiler.csv_path();
    for (int i = 0; i < 3; ++i) {
      adam.zero_grad();
      const at::Tensor users = at::randint(1000, {64}, torch::kLong),
                       items = at::randint(500, {64}, torch::kLong);
      net->forward(users, items).sum().backward();
      adam.step();
      profiler.record_stats();
      // Each figure against the tensors themselves.
      int64_t weights = 0, gradients = 0;
      for (const at::Tensor& parameter : net->parameters()) {
        weights += static_cast<int64_t>(parameter.storage().nbytes());
        gradients += static_cast<int64_t>(parameter.grad().storage().nbytes());
      }
      CHECK(profiler.last().weight_bytes() == weights);
      CHECK(profiler.last().weight_gradient_bytes() == gradients);
      // The batch and nothing else; the graph has gone.
      CHECK(profiler.last().other_bytes == 2 * 64 * 8);
      CHECK(profiler.last().current_bytes == Registry::global().counters(at::kCPU).current_bytes);
      CHECK(profiler.last().current_cached_bytes == profiler.last().current_bytes);
    }
  }
  CHECK(fs::path(path).parent_path() == scratch + "/csv");
  std::istringstream rows(contents(path));
  std::string line;
  std::getline(rows, line);
  CHECK(line == "epoch,iteration,kind,name,bytes");
  std::map<std::string, int64_t> sums;  // of the last iteration
  while (std::getline(rows, line)) {
    std::vector<std::string> cells;
    std::istringstream columns(line);
    for (std::string cell; std::getline(columns, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 5);
    if (cells[1] == "3") sums[cells[2]] += std::stoll(cells[4]);
  }
  CHECK(sums.size() == 12 - 1);  // NeuMF has no buffers
  CHECK(sums["optimizer_state"] == 2 * sums["weight"]);
  CHECK(sums["weight"] + sums["weight_grad"] + sums["buffer"] + sums["optimizer_state"] +
            sums["workspace"] + sums["other"] ==
        sums["current_bytes"]);
  CHECK(sums["current_cached"] == sums["current_bytes"]);
  CHECK(sums["peak_cached"] >= sums["current_cached"] + sums["feature_map"] - sums["weight_grad"]);
  CHECK(sums["feature_map"] > 0);
  CHECK(sums["intermediate_grad"] > 0);
}

TEST_CASE("feature maps that are kept show in the next iteration, until they go") {
  nn::Linear net(4, 1000);
  std::ostringstream out;
  MemoryProfiler profiler(net, quiet(out));
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 3; ++i) {
    kept.push_back(net(torch::ones({1, 4})));
    profiler.record_stats();
    CHECK(profiler.last().feature_map_bytes == (i + 1) * 4000);
  }
  kept.clear();
  profiler.record_stats();
  profiler.record_stats();
  CHECK(profiler.last().feature_map_bytes == 0);
}

TEST_CASE(
    "what is kept over the end of an epoch keeps its layer, or is the module's if the layer has "
    "gone") {
  struct Changing : nn::Module {
    Changing() {
      one = register_module("one", nn::Linear(4, 100));
      two = register_module("two", nn::Linear(100, 1000));
    }
    using nn::Module::unregister_module;
    nn::Linear one = nullptr, two = nullptr;
  };
  auto net = std::make_shared<Changing>();
  std::ostringstream out;
  MemoryProfiler profiler(*net, quiet(out));
  const at::Tensor middle = net->one(torch::ones({1, 4}));
  const at::Tensor kept = net->two(middle);
  profiler.record_stats();
  const auto maps = [&] {
    std::map<std::string, int64_t> result;
    for (const NamedBytes& row : profiler.last().feature_maps) result[row.name] = row.bytes;
    return result;
  };
  using Maps = std::map<std::string, int64_t>;
  CHECK(maps() == Maps{{"one", 400}, {"two", 4000}});
  net->unregister_module("two");
  profiler.epoch_end();
  profiler.record_stats();
  CHECK(profiler.last().feature_map_bytes == 4400);
  CHECK(maps() == Maps{{"one", 400}, {"", 4000}});

  // Others before it: the same layer has another number.
  net->unregister_module("one");
  net->register_module("zero", nn::Linear(2, 2));
  net->register_module("one", net->one);
  profiler.epoch_end();
  profiler.record_stats();
  CHECK(maps() == Maps{{"zero", 0}, {"one", 400}, {"", 4000}});
}

TEST_CASE("a validation pass before the end of the epoch is in no iteration") {
  nn::Linear net(4, 1000);
  std::ostringstream out;
  MemoryProfiler profiler(net, quiet(out));
  const auto pass = [&](int64_t batch) {
    net->zero_grad();
    net(torch::ones({batch, 4})).sum().backward();
  };
  pass(1);
  profiler.record_stats();
  const int64_t features = profiler.last().feature_map_bytes,
                gradients = profiler.last().intermediate_gradient_bytes;
  CHECK(features >= 4000);
  pass(50);
  profiler.epoch_end();
  pass(1);
  profiler.record_stats();
  CHECK(profiler.last().epoch == 2);
  CHECK(profiler.last().iteration == 1);
  CHECK(profiler.last().feature_map_bytes == features);
  CHECK(profiler.last().intermediate_gradient_bytes == gradients);
}

TEST_CASE("the prototype layer in a Transformer's options is no optimizer's state") {
  nn::TransformerEncoderLayer prototype(
      nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32));
  nn::TransformerEncoder net(nn::TransformerEncoderOptions(prototype, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  int64_t bytes = 0;
  for (const at::Tensor& parameter : prototype->parameters())
    bytes += static_cast<int64_t>(parameter.storage().nbytes());
  std::ostringstream out;
  MemoryProfiler profiler(net, quiet(out));
  profiler.add_optimizer(sgd);
  net(torch::ones({5, 2, 16})).sum().backward();
  sgd.step();
  profiler.record_stats();
  const auto all_of = [&] {
    int64_t sum = profiler.last().weight_bytes() + profiler.last().weight_gradient_bytes() +
                  profiler.last().other_bytes;
    for (const NamedBytes& row : profiler.last().buffers) sum += row.bytes;
    return sum;
  };
  CHECK(profiler.last().optimizer_state.empty());
  CHECK(profiler.last().other_bytes == bytes);
  CHECK(all_of() == profiler.last().current_bytes);
  // Gradients of the prototype have no weight next to which they would stand.
  for (const at::Tensor& parameter : prototype->parameters())
    parameter.mutable_grad() = torch::zeros_like(parameter);
  profiler.record_stats();
  CHECK(profiler.last().other_bytes == 2 * bytes);
  CHECK(all_of() == profiler.last().current_bytes);
}

TEST_CASE("a full disk leaves no half row, and a child of fork none at all") {
  nn::Linear net(4, 4);
  std::ostringstream out;
  MemoryProfilerOptions options = quiet(out);
  options.csv = true;
  options.csv_folder = scratch + "/full";
  MemoryProfiler profiler(net, options);
  profiler.record_stats();
  const std::string before = contents(profiler.csv_path());
  CHECK(before.back() == '\n');
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old;
  ::getrlimit(RLIMIT_FSIZE, &old);
  struct rlimit tight = old;
  tight.rlim_cur = before.size() + 10;
  ::setrlimit(RLIMIT_FSIZE, &tight);
  profiler.record_stats();
  ::setrlimit(RLIMIT_FSIZE, &old);
  CHECK(contents(profiler.csv_path()) == before);
  profiler.record_stats();
  const std::string after = contents(profiler.csv_path());
  CHECK(after.rfind(before + "1,3,", 0) == 0);

  const pid_t child = ::fork();
  if (child == 0) {
    profiler.record_stats();
    ::_exit(0);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(contents(profiler.csv_path()) == after);
}

TEST_CASE("the registry is active while a profiler lives") {
  nn::Linear net(4, 4);
  std::ostringstream out;
  CHECK_FALSE(Registry::global().active());
  {
    MemoryProfiler profiler(net, quiet(out));
    CHECK(Registry::global().active());
  }
  CHECK_FALSE(Registry::global().active());
}

TEST_CASE("under no_grad nothing is a feature map, and what was dropped is said") {
  nn::Linear net(4, 4);
  std::ostringstream out;
  MemoryProfilerOptions options = quiet(out);
  options.max_events = 32;
  MemoryProfiler profiler(net, options);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor result = net(torch::ones({2, 4}));
    profiler.record_stats();
    CHECK(profiler.last().feature_map_bytes == 0);
  }
  for (int i = 0; i < 1000; ++i) net(torch::ones({2, 4}));
  profiler.record_stats();
  CHECK(profiler.last().dropped_events > 0);
  CHECK(out.str().find("events were dropped") != std::string::npos);
  profiler.record_stats();
  CHECK(profiler.last().dropped_events == 0);
  CHECK(profiler.last().feature_map_bytes == 0);
}

// tanh by hand.
struct Tanh : torch::autograd::Function<Tanh> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = at::tanh(x);
    context->save_for_backward({y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * (1 - context->get_saved_variables()[0].square())};
  }
};

TEST_CASE("a metric under no_grad and a custom Function end no layer") {
  for (const std::string between : {"nothing", "metric", "function"}) {
    CAPTURE(between);
    nn::Linear first(256, 256), second(256, 256);
    nn::Sequential net(first, second);
    std::ostringstream out;
    MemoryProfiler profiler(*net, quiet(out));
    for (int step = 0; step < 2; ++step) {
      const at::Tensor gradient = torch::ones({1024, 256});
      at::Tensor x = first(torch::ones({1024, 256}));
      if (between == "metric") {
        const at::NoGradGuard no_grad;
        x.max();
      }
      x = between == "function" ? Tanh::apply(x) : at::tanh(x);
      for (int i = 0; i < 4; ++i) x = at::tanh(x);
      second(x).backward(gradient);
      profiler.record_stats();
      // 1 MiB for each result; tanh does not keep what it reads.
      REQUIRE(profiler.last().feature_maps.size() == 2);
      CHECK(profiler.last().feature_maps[0].bytes == 5 << 20);
      CHECK(profiler.last().feature_maps[1].bytes == 1 << 20);
      net->zero_grad();
    }
  }
}

TEST_CASE(
    "a module in a holder may end before its profiler: what it had is gone, and what was kept is "
    "the module's") {
  nn::Linear net(4, 100);
  std::ostringstream out;
  MemoryProfiler profiler(net, quiet(out));
  const at::Tensor kept = net(torch::ones({1, 4})).detach();
  profiler.record_stats();
  CHECK(profiler.last().feature_map_bytes == 400);
  net = nn::Linear(8, 8);
  profiler.epoch_end();
  net(torch::ones({2, 8})).sum().backward();
  profiler.record_stats();
  CHECK(profiler.last().weights.empty());
  CHECK(profiler.last().feature_map_bytes == 400);
  REQUIRE(profiler.last().feature_maps.size() == 1);
  CHECK(profiler.last().feature_maps[0].name.empty());
}

TEST_CASE("what gets the place of a parameter that has ended is no layer of the module's") {
  nn::Linear net(4, 100);
  std::ostringstream out;
  MemoryProfiler profiler(net, quiet(out));
  net = nn::Linear(4, 100);  // the first has gone, and its tensors' memory is free for others
  std::vector<at::Tensor> results;
  for (int i = 0; i < 50; ++i) {
    const nn::Linear another(4, 100);
    results.push_back(at::linear(torch::ones({1, 4}), another->weight, another->bias));
  }
  profiler.record_stats();
  CHECK(profiler.last().feature_map_bytes == 0);
}

TEST_CASE("profilers beside threads that make, run and drop modules") {
  std::atomic<bool> stop{false};
  std::mutex lock;
  std::shared_ptr<Net> shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        auto made = std::make_shared<Net>();
        made->forward(torch::ones({4, 32}));
        const std::lock_guard<std::mutex> hold(lock);
        shared = std::move(made);  // drops the one before
      }
    });
  }
  std::ostringstream out;
  nn::Linear own(4, 100);
  MemoryProfiler outer(own, quiet(out));
  for (int i = 0; i < 60; ++i) {
    std::shared_ptr<Net> net;
    while (net == nullptr) {
      const std::lock_guard<std::mutex> hold(lock);
      net = std::exchange(shared, nullptr);
    }
    MemoryProfiler profiler(*net, quiet(out));
    profiler.record_stats();
    std::thread([&] { net.reset(); }).join();
    profiler.epoch_end();
    profiler.record_stats();
    const at::Tensor result = own(torch::ones({1, 4}));
    outer.record_stats();
    CHECK(outer.last().feature_map_bytes == 400);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("forward on another thread, and two profilers at once") {
  nn::Linear net(4, 1000), other(4, 500);
  std::ostringstream out;
  MemoryProfiler first(net, quiet(out)), second(other, quiet(out));
  at::Tensor a, b;
  std::thread([&] { a = net(torch::ones({1, 4})); }).join();
  b = other(torch::ones({1, 4}));
  first.record_stats();
  second.record_stats();
  CHECK(first.last().feature_map_bytes == 4000);
  CHECK(second.last().feature_map_bytes == 2000);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  const memledger::testing::TemporaryFolder folder;
  memledger::scratch = folder.path();
  return doctest::Context(argc, argv).run();
}
