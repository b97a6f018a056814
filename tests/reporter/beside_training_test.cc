// Reports while other threads train as programs do: gradients set to none, optimizers and modules
// made and dropped, forks.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graph/counted_hooks.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "tests/reporter/report_parts.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fork_beside_threads.h"
#include "tests/support/refcounts_beside_tsan.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_profiler.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

using testing::cpu;
using testing::find_row;
using testing::truth;

using Net = torch::nn::Sequential;

Net make_net() {
  return Net(torch::nn::Linear(64, 48), torch::nn::ReLU(), torch::nn::Linear(48, 40));
}

at::Tensor loss_of(Net net) { return net->forward(at::ones({8, 64})).square().sum(); }

// Bytes by the parameter's name, by hand.
const std::map<std::string, int64_t> kParameters = {{"net.0.weight", 48 * 64 * 4},
                                                    {"net.0.bias", 48 * 4},
                                                    {"net.2.weight", 40 * 48 * 4},
                                                    {"net.2.bias", 40 * 4}};

// Many parameters of one number: to read names is most of a report, and to set gradients to none
// much of a step. So each report and each step come to where the other is.
struct ManySmall : torch::nn::Module {
  ManySmall() {
    for (int i = 0; i < 256; ++i) register_parameter("p" + std::to_string(i), at::ones({1}));
  }
  at::Tensor loss() const { return at::cat(parameters()).sum(); }
};

std::string scratch_folder() {
  return ::getenv("TEST_TMPDIR") == nullptr ? "/tmp" : ::getenv("TEST_TMPDIR");
}

// What another thread does, and its turn to do it.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    give([] {}, /*last=*/true);
    thread_.join();
  }
  void operator()(std::function<void()> work) { give(std::move(work), false); }

 private:
  void give(std::function<void()> work, bool last) {
    std::unique_lock<std::mutex> hold(lock_);
    work_ = std::move(work);
    last_ = last;
    changed_.notify_all();
    changed_.wait(hold, [this] { return work_ == nullptr; });
  }
  void run() {
    const testing::AllocationCount::Scope scope(truth());
    std::unique_lock<std::mutex> hold(lock_);
    for (bool last = false; !last;) {
      changed_.wait(hold, [this] { return work_ != nullptr; });
      work_();
      last = last_;
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool last_ = false;
  std::thread thread_;
};

// Trains until it is stopped, without ever waiting for anybody.
class Trainer {
 public:
  explicit Trainer(std::function<void()> step)
      : thread_([this, step = std::move(step)] {
          const testing::AllocationCount::Scope scope(truth());
          while (!stop_) {
            step();
            ++steps_;
          }
        }) {}
  ~Trainer() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int steps() const { return steps_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> steps_{0};
  std::thread thread_;
};

// Every byte has a row, and whoever is named is what the name says.
void check_rows(const Report& report) {
  int64_t sum = 0;
  for (const ReportRow& row : cpu(report).rows) {
    sum += row.nbytes.value_or(0);
    if (row.anonymous || row.kind != RowKind::kStorage) continue;
    CAPTURE(row.name);
    for (const auto& [name, bytes] : kParameters) {
      if (row.name != name && row.name != name + ".grad" &&
          row.name.find("." + name + ".") == std::string::npos)
        continue;
      CHECK(row.nbytes == bytes);
      CHECK(row.role == (row.name == name             ? Role::kParameter
                         : row.name == name + ".grad" ? Role::kGradient
                                                      : Role::kOptimizerState));
    }
  }
  CHECK(sum == cpu(report).total_bytes);
  CHECK(sum == cpu(report).allocator_bytes);
  CHECK(cpu(report).unexplained_bytes == 0);
  CHECK(cpu(report).external_bytes == 0);
}

size_t count_of(const Report& report, Role role) {
  size_t count = 0;
  for (const ReportRow& row : cpu(report).rows) {
    if (!row.anonymous && row.role == role) {
      CAPTURE(row.name);
      CHECK(row.kind == RowKind::kStorage);
      ++count;
    }
  }
  return count;
}

std::string text_of(const Report& report) {
  std::ostringstream out;
  out << report;
  return out.str();
}

TEST_CASE("a gradient set by hand beside other threads is a row that says so, unless promised") {
  auto parameter = at::ones({10}).set_requires_grad(true);
  MemReporter reporter;
  reporter.add_tensor("parameter", parameter);
  Worker trainer;
  trainer([&] { parameter.square().sum().backward(); });
  REQUIRE(find_row(reporter.collect(), "parameter.grad") != nullptr);
  CHECK(find_row(reporter.collect(), "parameter.grad")->nbytes == 40);
  trainer([&] { parameter.mutable_grad() = at::zeros({10}); });
  const auto check_unread = [&] {
    const Report report = reporter.collect();
    const ReportRow* const row = find_row(report, "parameter.grad");
    REQUIRE(row != nullptr);
    CHECK(row->kind == RowKind::kUnread);
    CHECK(row->role == Role::kGradient);
    CHECK_FALSE(row->nbytes.has_value());
    check_rows(report);
    CHECK(cpu(report).total_bytes == truth().live_bytes());
    CHECK(text_of(report).find("training_paused") != std::string::npos);
    CHECK(report.to_json().find("\"unread\"") != std::string::npos);
  };
  check_unread();
  trainer(check_unread);  // the main thread may be setting it
  const auto check_read = [&](const Report& report) {
    const ReportRow* const row = find_row(report, "parameter.grad");
    REQUIRE(row != nullptr);
    CHECK(row->kind == RowKind::kStorage);
    CHECK(row->nbytes == 40);
  };
  ReportOptions options;
  options.training_paused = true;
  check_read(reporter.collect(options));
  {
    const ScopedTrainingPaused paused;
    check_read(reporter.collect());
  }
  check_unread();
  trainer([&] { parameter.mutable_grad() = at::Tensor(); });
  CHECK(find_row(reporter.collect(), "parameter.grad") == nullptr);
}

// The thread sanitizer has a thread of its own, which is not known to be none of the program's.
#ifndef __SANITIZE_THREAD__
TEST_CASE("a thread that has ended is none: what it set by hand is read") {
  auto parameter = at::ones({10}).set_requires_grad(true);
  MemReporter reporter;
  reporter.add_tensor("parameter", parameter);
  for (int i = 0; i < 100; ++i) {
    std::thread([&] { parameter.mutable_grad() = at::zeros({10}); }).join();
    const Report report = reporter.collect();
    REQUIRE(find_row(report, "parameter.grad") != nullptr);
    CHECK(find_row(report, "parameter.grad")->nbytes == 40);
  }
}

// The address sanitizer starts all threads with a routine of its own.
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("workers of OpenMP are no threads of the program's, but in a parallel region") {
  auto parameter = at::ones({10}).set_requires_grad(true);
  MemReporter reporter;
  reporter.add_tensor("parameter", parameter);
  at::set_num_threads(4);
  std::atomic<int> workers{0};
  RowKind kind = RowKind::kStorage;
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t /*end*/) {
    ++workers;
    if (begin != 0) return;
    parameter.mutable_grad() = at::zeros({10});
    const Report report = reporter.collect();
    if (const ReportRow* const row = find_row(report, "parameter.grad")) kind = row->kind;
  });
  at::set_num_threads(1);
  if (workers > 1) CHECK(kind == RowKind::kUnread);
  const Report report = reporter.collect();
  REQUIRE(find_row(report, "parameter.grad") != nullptr);
  CHECK(find_row(report, "parameter.grad")->nbytes == 40);
}
#endif  // __SANITIZE_ADDRESS__

TEST_CASE("a child of fork reads what was set by hand only if its parent had no other thread" *
          doctest::skip(testing::kChildrenMayHang)) {
  auto parameter = at::ones({10}).set_requires_grad(true);
  MemReporter reporter;
  reporter.add_tensor("parameter", parameter);
  parameter.mutable_grad() = at::zeros({10});
  const auto kind_in_child = [&] {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20);
      const Report report = reporter.collect();
      const ReportRow* const row = find_row(report, "parameter.grad");
      _exit(row == nullptr || cpu(report).unexplained_bytes != 0 ? 99
                                                                 : static_cast<int>(row->kind));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
  };
  const auto exit_with = [](RowKind kind) { return static_cast<int>(kind) << 8; };
  CHECK(kind_in_child() == exit_with(RowKind::kStorage));
  {
    Worker other;
    CHECK(kind_in_child() == exit_with(RowKind::kUnread));
  }
  CHECK(kind_in_child() == exit_with(RowKind::kStorage));
}
#endif  // __SANITIZE_THREAD__

TEST_CASE("a tracker, a timeline and a profiler say what they did not read, unless promised") {
  const auto linear = std::make_shared<torch::nn::LinearImpl>(4, 4);
  Worker other;
  for (const bool promised : {false, true}) {
    CAPTURE(promised);
    TrackerOptions tracker_options;
    tracker_options.device = c10::Device(c10::kCPU);
    tracker_options.path = scratch_folder();
    tracker_options.file_name = "unread_gradients.txt";
    tracker_options.training_paused = promised;
    MemTracker tracker(tracker_options);
    tracker.add_module("net", *linear);
    TimelineOptions timeline_options;
    timeline_options.training_paused = promised;
    Timeline timeline(timeline_options);
    timeline.add_module("net", *linear);
    std::ostringstream printed;
    MemoryProfilerOptions profiler_options;
    profiler_options.out = &printed;
    profiler_options.training_paused = promised;
    MemoryProfiler profiler(*linear, profiler_options);
    other([&] { linear->weight.mutable_grad() = at::zeros({4, 4}); });
    const SnapshotDiff diff = tracker.track();
    CHECK(diff.unread_gradients ==
          (promised ? std::vector<std::string>() : std::vector<std::string>{"net.weight.grad"}));
    CHECK((diff.to_json().find("unread_gradients") != std::string::npos) == !promised);
    int named = 0;
    for (const auto& [id, name] : timeline.read().names) named += name.name == "net.weight.grad";
    CHECK(named == (promised ? 1 : 0));
    profiler.record_stats();
    CHECK(profiler.last().unread_gradients == (promised ? 0 : 1));
    CHECK(profiler.last().weight_gradients.at(0).bytes == (promised ? 64 : 0));
    CHECK((printed.str().find("training_paused") != std::string::npos) == !promised);
    linear->zero_grad();
  }
}

// Threads that do what they like with gradients, ordered by a mutex of the program's that reports
// know nothing of.
class GradientStorm {
 public:
  GradientStorm() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this, i] { run(i); });
  }
  ~GradientStorm() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  const torch::nn::LinearImpl& net() const { return *net_; }
  torch::optim::Adam& optimizer() { return optimizer_; }

 private:
  static constexpr int kThreads = 8;

  void run(int number) {
    const testing::AllocationCount::Scope scope(truth());
    std::mt19937 random(static_cast<uint32_t>(number));
    while (!stop_) {
      const std::lock_guard<std::mutex> hold(lock_);
      at::Tensor& weight = net_->weight.mutable_grad();
      at::Tensor& bias = net_->bias.mutable_grad();
      switch (random() % 8) {
        case 0:
          weight.reset();
          bias.reset();
          break;
        case 1:
          weight = at::ones({8, 8});
          break;
        case 2:
          bias = at::ones({8});
          break;
        case 3:
          std::swap(weight, other_weight_.mutable_grad());
          break;
        case 4:
          other_weight_.mutable_grad().reset();
          break;
        case 5:
          net_->zero_grad();
          break;
        case 6:
          optimizer_.step();
          break;
        default:
          (net_->forward(at::ones({2, 8})).sum() + other_weight_.sum()).backward();
      }
    }
  }

  const std::shared_ptr<torch::nn::LinearImpl> net_ = std::make_shared<torch::nn::LinearImpl>(8, 8);
  at::Tensor other_weight_ = at::ones({8, 8}).set_requires_grad(true);
  torch::optim::Adam optimizer_{net_->parameters()};
  std::mutex lock_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST_CASE("reports of all kinds beside eight threads that set, clear, swap and add to gradients") {
  GradientStorm storm;
  MemReporter reporter;
  reporter.add_module("net", storm.net()).add_optimizer(storm.optimizer());
  TrackerOptions options;
  options.device = c10::Device(c10::kCPU);
  options.path = scratch_folder();
  options.file_name = "storm.txt";
  options.detail = false;
  MemTracker tracker(options);
  tracker.add_module("net", storm.net());
  tracker.add_optimizer(storm.optimizer());
  Timeline timeline;
  timeline.add_module("net", storm.net()).add_optimizer(storm.optimizer());
  std::ostringstream printed;
  MemoryProfilerOptions profiler_options;
  profiler_options.out = &printed;
  MemoryProfiler profiler(storm.net(), profiler_options);
  profiler.add_optimizer(storm.optimizer());
  const auto seconds =
      std::chrono::seconds(std::getenv("MEMLEDGER_FULL") != nullptr ? 50 * 60 : 15);
  const auto end = std::chrono::steady_clock::now() + seconds;
  for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
    check_rows(reporter.collect());
    switch (i % 8) {
      case 0:
        tracker.track();
        break;
      case 2:
        timeline.mark("mark");
        break;
      case 4:
        profiler.record_stats();
        printed.str("");
        break;
      case 6: {
        std::ostringstream out;
        reporter.report(out, /*verbose=*/true);
        CHECK(out.str().find("(0.00B unexplained)") != std::string::npos);
        break;
      }
      default:
        break;
    }
  }
}

TEST_CASE(
    "another thread's report knows at each point of a step which gradients and states there are") {
  Net net = make_net();
  torch::optim::Adam adam(net->parameters());
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(adam);
  Worker trainer;
  for (int step = 0; step < 3; ++step) {
    at::Tensor loss;
    trainer([&] { adam.zero_grad(); });
    CHECK(count_of(reporter.collect(), Role::kGradient) == 0);
    trainer([&] { loss = loss_of(net); });
    CHECK(count_of(reporter.collect(), Role::kGradient) == 0);
    trainer([&] { loss.backward(); });
    Report report = reporter.collect();
    CHECK(count_of(report, Role::kGradient) == 4);
    CHECK(count_of(report, Role::kOptimizerState) == (step == 0 ? 0 : 8));
    trainer([&] { adam.step(); });
    report = reporter.collect();
    CHECK(count_of(report, Role::kParameter) == 4);
    CHECK(count_of(report, Role::kGradient) == 4);
    CHECK(count_of(report, Role::kOptimizerState) == 8);
    CHECK(find_row(report, "Adam.net.2.weight.exp_avg_sq") != nullptr);
    check_rows(report);
    CHECK(cpu(report).total_bytes == truth().live_bytes());
    // The thread that trains sees the same.
    trainer([&] { CHECK(count_of(reporter.collect(), Role::kOptimizerState) == 8); });
  }
}

TEST_CASE("the states of SGD, which writes to data(), and of LBFGS are known to another thread") {
  Net net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  Net other = make_net();
  torch::optim::LBFGS lbfgs(other->parameters(), torch::optim::LBFGSOptions().max_iter(2));
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(sgd).add_optimizer(lbfgs);
  Worker trainer;
  trainer([&] {
    loss_of(net).backward();
    sgd.step();
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto loss = loss_of(other);
      loss.backward();
      return loss;
    });
  });
  const Report report = reporter.collect();
  CHECK(find_row(report, "SGD.net.0.weight.momentum_buffer") != nullptr);
  CHECK(find_row(report, "SGD.net.2.bias.momentum_buffer") != nullptr);
  // What it replaced after its last write to a parameter is anonymous, and has its bytes all the
  // same.
  CHECK(cpu(report).total_bytes == truth().live_bytes());
  check_rows(report);
}

TEST_CASE(
    "gradients and states from before another thread trains are known to it, and are followed from "
    "then on") {
  Net net = make_net();
  torch::optim::Adam adam(net->parameters());
  loss_of(net).backward();
  adam.step();
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(adam);
  Worker trainer;
  Worker monitor;
  const auto counts = [&](size_t gradients, size_t states) {
    monitor([&] {
      const Report report = reporter.collect();
      CHECK(count_of(report, Role::kGradient) == gradients);
      CHECK(count_of(report, Role::kOptimizerState) == states);
      CHECK(cpu(report).total_bytes == truth().live_bytes());
    });
  };
  counts(4, 8);
  trainer([&] { adam.zero_grad(); });
  counts(0, 8);
  trainer([&] { loss_of(net).backward(); });
  counts(4, 8);
}

TEST_CASE("reports, a tracker and a timeline beside a training with zero_grad() as it comes") {
  Net net = make_net();
  torch::optim::Adam adam(net->parameters());
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(adam);
  TrackerOptions options;
  options.device = c10::Device(c10::kCPU);
  options.path = scratch_folder();
  MemTracker tracker(options);
  tracker.add_module("net", *net);
  tracker.add_optimizer(adam);
  Timeline timeline;
  timeline.add_module("net", *net).add_optimizer(adam);
  at::Tensor loss;
  std::mutex loss_lock;  // the program's
  Trainer trainer([&] {
    adam.zero_grad();
    auto mine = loss_of(net);
    {
      const std::lock_guard<std::mutex> hold(loss_lock);
      loss = mine;
    }
    mine.backward();
    adam.step();
  });
  Trainer other([&] {
    const Report report = reporter.collect();
    if (cpu(report).unexplained_bytes != 0) ADD_FAIL_AT(__FILE__, __LINE__, "bytes without a row");
  });
  for (int i = 0; i < 300 || trainer.steps() < 100; ++i) {
    {
      const std::lock_guard<std::mutex> hold(loss_lock);
      if (loss.defined()) reporter.add_graph(loss);
    }
    check_rows(reporter.collect());
    if (i % 10 == 0) {
      timeline.mark("mark");
      tracker.track();
    }
  }
  trainer.stop();
  other.stop();
  loss = at::Tensor();
  const Report report = reporter.collect();
  check_rows(report);
  CHECK(cpu(report).total_bytes == truth().live_bytes());
  CHECK(count_of(report, Role::kGradient) == 4);
  CHECK(count_of(report, Role::kOptimizerState) == 8);
}

TEST_CASE("reports of hundreds of gradients that another thread sets to none meanwhile") {
  const auto many = std::make_shared<ManySmall>();
  MemReporter reporter;
  reporter.add_module("many", *many);
  Trainer trainer([&] {
    many->loss().backward();
    many->zero_grad();
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < end || trainer.steps() < 20)
    check_rows(reporter.collect());
  trainer.stop();
  const Report report = reporter.collect();
  check_rows(report);
  CHECK(count_of(report, Role::kParameter) == 256);
  CHECK(count_of(report, Role::kGradient) == 0);
}

TEST_CASE("reports while a thread that was never seen to train sets gradients to none") {
  const auto many = std::make_shared<ManySmall>();
  MemReporter reporter;
  reporter.add_module("many", *many);
  std::atomic<int> trained{0}, set_to_none{0};
  Trainer other([&] {
    if (set_to_none == trained) return std::this_thread::yield();
    many->zero_grad();
    ++set_to_none;
  });
  for (int i = 0; i < 300; ++i) {
    many->loss().backward();
    ++trained;
    do {
      check_rows(reporter.collect());
    } while (set_to_none < trained);
  }
  many->loss().backward();
  CHECK(count_of(reporter.collect(), Role::kGradient) == 256);
  other.stop();
}

TEST_CASE("reports of failed allocations beside a thread that trains") {
  Net net = make_net();
  torch::optim::Adam adam(net->parameters());
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(adam);
  const auto folder = std::filesystem::path(scratch_folder()) / "beside_training";
  std::filesystem::remove_all(folder);
  OutOfMemoryOptions options;
  options.folder = folder.string();
  options.max_reports = 1000;
  options.reporter = &reporter;
  options.quiet = true;
  REQUIRE(write_out_of_memory_reports(options).ok());
  const auto fail = [] {
    try {
      at::empty({int64_t{1} << 45}, at::kByte);
    } catch (const c10::Error&) {
    }
  };
  Trainer trainer([&] {
    adam.zero_grad();
    loss_of(net).backward();
    fail();
    adam.step();
  });
  // Failures on both threads at once make one report, so the files are counted, not the failures.
  const auto files_now = [&] {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  for (int i = 0; i < 50 || trainer.steps() < 20 || files_now() < 10; ++i) {
    fail();
    AllocationFailure failure;
    failure.requested_bytes = 1;
    const std::string text = out_of_memory_report(failure, 20, &reporter);
    CHECK_MESSAGE(text.find("net.0.weight") != std::string::npos, text);
    CHECK_MESSAGE(text.find("(0.00B unexplained)") != std::string::npos, text);
  }
  trainer.stop();
  stop_out_of_memory_reports();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    CAPTURE(text);
    CHECK(text.find("net.0.weight") != std::string::npos);
    CHECK(text.find("(0.00B unexplained)") != std::string::npos);
    ++files;
  }
  CHECK(files >= 10);
  std::filesystem::remove_all(folder);
}

TEST_CASE(
    "reports beside a thread that makes, registers, removes and drops optimizers and modules") {
  Net net = make_net();
  MemReporter reporter;
  reporter.add_module("net", net);
  Trainer trainer([&] {
    {
      torch::optim::Adam adam(net->parameters());
      reporter.add_optimizer(adam);
      for (int step = 0; step < 3; ++step) {
        adam.zero_grad();
        loss_of(net).backward();
        adam.step();
      }
      reporter.remove(adam);
    }
    {
      torch::nn::LinearImpl on_the_stack(4, 4);
      reporter.add_module("stack", on_the_stack);
      on_the_stack.forward(at::ones({1, 4})).sum().backward();
      reporter.remove("stack");
    }
    torch::nn::Linear dropped(4, 4);
    reporter.add_module("dropped", dropped);
    dropped->forward(at::ones({1, 4})).sum().backward();
    net->zero_grad();
  });
  for (int i = 0; i < 300 || trainer.steps() < 30; ++i) check_rows(reporter.collect());
  trainer.stop();
  const Report report = reporter.collect();
  check_rows(report);
  CHECK(count_of(report, Role::kParameter) == 4);
  CHECK(cpu(report).total_bytes == truth().live_bytes());
}

TEST_CASE("nothing is kept alive by the notes, and a dead gradient's name goes to nobody") {
  MemReporter reporter;
  const int64_t before = truth().live_bytes();
  Worker trainer;
  for (int round = 0; round < 50; ++round) {
    Net net = make_net();
    reporter.add_module("net", net);
    trainer([&] { loss_of(net).backward(); });
    CHECK(count_of(reporter.collect(), Role::kGradient) == 4);
    std::vector<at::Tensor> strangers;
    trainer([&] {
      net->zero_grad();
      for (const auto& parameter : net->parameters())
        strangers.push_back(at::zeros_like(parameter));
    });
    CHECK(count_of(reporter.collect(), Role::kGradient) == 0);
    strangers.clear();
    net = nullptr;
    CHECK(truth().live_bytes() == before);
  }
}

// Hooks that run what they are given while a graph is read.
struct CallingHooks final : CountedHooks {
  explicit CallingHooks(std::function<void()> call) : call_(std::move(call)) {}
  void call_pack_hook(const at::Tensor& tensor) override { packed_ = tensor.detach(); }
  at::Tensor call_unpack_hook() override { return packed_; }
  std::vector<at::Tensor> packed_tensors() const override {
    call_();
    return {packed_};
  }

 private:
  std::function<void()> call_;
  at::Tensor packed_;
};

TEST_CASE("hooks and deleters that a report calls may use the reporter themselves") {
  MemReporter reporter;
  int deleted = 0;
  std::vector<float> data(100);
  at::Tensor mine = at::from_blob(
      data.data(), {100},
      [&](void*) {
        ++deleted;
        reporter.add_tensor("from a deleter", at::ones({3}));
      },
      at::kFloat);
  reporter.add_tensor("mine", mine);
  bool inside = false;
  int called = 0;
  const at::Tensor leaf = at::ones({4}).set_requires_grad(true);
  const at::Tensor loss = leaf.exp().sum();
  auto& exp = dynamic_cast<torch::autograd::generated::ExpBackward0&>(
      *loss.grad_fn()->next_edge(0).function);
  exp.result_.register_hooks(std::make_unique<CallingHooks>([&] {
    if (inside) return;
    inside = true;
    ++called;
    mine = at::Tensor();  // the report has the last reference now
    reporter.add_tensor("from hooks", leaf);
    reporter.collect();
    inside = false;
  }));
  reporter.add_graph(loss);
  const Report report = reporter.collect();
  CHECK(called > 0);
  CHECK(deleted == 1);
  CHECK(find_row(reporter.collect(), "mine") == nullptr);
}

// Ends the test where a call waits for itself.
struct NoLongerThan {
  explicit NoLongerThan(unsigned seconds) { alarm(seconds); }
  ~NoLongerThan() { alarm(0); }
};

TEST_CASE(
    "a dropped TorchScript module's deleter may use the reporter, tracker or timeline that lets go "
    "of it") {
  const NoLongerThan limit(60);
  MemReporter reporter;
  TrackerOptions options;
  options.device = at::kCPU;
  options.path = std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : "/tmp";
  options.file_name = "from_a_deleter.txt";
  MemTracker tracker(options);
  Timeline timeline;
  const at::Tensor kept = at::ones({3});
  const at::Tensor any = at::ones({2});
  std::vector<float> data(100);
  int deleted = 0;
  const auto use_all = [&](void*) {
    ++deleted;
    reporter.add_tensor("from a deleter", kept);
    CHECK(find_row(reporter.collect(), "from a deleter") != nullptr);
    reporter.remove("from a deleter");
    tracker.add_tensor("from a deleter", kept);
    tracker.track();
    tracker.remove("from a deleter");
    timeline.mark("from a deleter");
  };
  const auto drop_one = [&](auto& whose, const auto& use) {
    const int before = deleted;
    {
      torch::jit::Module script("Dropped");
      script.register_buffer("mine", at::from_blob(data.data(), {100}, use_all, at::kFloat));
      whose.add_module("script", script);
    }
    CHECK(deleted == before);  // by LibTorch, until the last weak reference goes
    use();
    CHECK(deleted == before + 1);
  };
  drop_one(reporter, [&] { CHECK(find_row(reporter.collect(), "script.mine") == nullptr); });
  drop_one(reporter, [&] { reporter.add_tensor("any", any); });
  drop_one(reporter, [&] { reporter.remove("any"); });
  drop_one(reporter, [&] { CHECK_THROWS_AS(reporter.remove("script"), c10::Error); });
}

TEST_CASE("what was removed may end at once, whatever other threads read") {
  const NoLongerThan limit(300);
  MemReporter reporter;
  Net net = make_net();
  reporter.add_module("net", net);
  Trainer first([&] { reporter.collect(); });
  Trainer second([&] { reporter.collect(); });
  for (int round = 0; round < 300 || first.steps() < 30 || second.steps() < 30; ++round) {
    torch::nn::LinearImpl on_the_stack(8, 8);
    auto adam = std::make_unique<torch::optim::Adam>(net->parameters());
    reporter.add_module("stack", on_the_stack).add_optimizer(*adam);
    if (round % 2 == 0) std::this_thread::yield();
    reporter.remove(*adam);
    adam.reset();
    reporter.remove("stack");
  }
  first.stop();
  second.stop();
  const Report report = reporter.collect();
  CHECK(find_row(report, "net.0.weight") != nullptr);
  CHECK(find_row(report, "stack.weight") == nullptr);
}

TEST_CASE("a child of fork reports, whatever other threads were doing with the reporter" *
          doctest::skip(testing::kChildrenMayHang)) {
  Net net = make_net();
  torch::optim::Adam adam(net->parameters());
  MemReporter reporter;
  reporter.add_module("net", net).add_optimizer(adam);
  Trainer trainer([&] {
    adam.zero_grad();
    loss_of(net).backward();
    adam.step();
  });
  Trainer monitor([&] { reporter.collect(); });
  for (int round = 0; round < 30; ++round) {
    while (trainer.steps() < round) std::this_thread::yield();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20);
      const Report report = reporter.collect();
      reporter.add_tensor("more", net->parameters()[0]);
      reporter.remove(adam);  // of which another thread was reading, perhaps
      _exit(cpu(report).unexplained_bytes == 0 && find_row(report, "net.0.weight") != nullptr ? 0
                                                                                              : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (!memledger::Registry::global().activate().ok()) return 1;
  memledger::testing::tell_tsan_what_refcounts_order();
  const memledger::testing::AllocationCount::Scope scope(memledger::truth());
  return doctest::Context(argc, argv).run();
}
