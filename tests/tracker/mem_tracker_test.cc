// The tracker on real tensors of the CPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tracker/mem_tracker.h"

#include <c10/core/TensorImpl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"
#include "tests/support/temporary_folder.h"

namespace memledger {
namespace {

namespace fs = std::filesystem;

std::string scratch;  // a folder for this run

std::chrono::system_clock::time_point sample_time() {
  return std::chrono::system_clock::from_time_t(1619814329);
}

// In a folder of its own, with a clock that stands still.
TrackerOptions options_here() {
  static int number = 0;
  TrackerOptions options;
  options.path = scratch + "/" + std::to_string(++number);
  options.device = at::kCPU;
  options.clock = &sample_time;
  return options;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t change_of(const SnapshotDiff& diff) { return diff.born_bytes() - diff.died_bytes(); }

std::string in_words(const SnapshotDiff& diff) {
  std::string text;
  for (const DiffRow& row : diff.rows) text += to_string(row) + "\n";
  return text;
}

TEST_SUITE_BEGIN("tracker");

TEST_CASE("on a device that nobody follows the total of tensors is ?, not zero") {
  SnapshotDiff diff;
  diff.where = SourceLocation::current("main.cpp", "main", 10);
  diff.tensor_bytes.reset();
  CHECK(
      diff.at_line().find(" Total Tensor Used Memory:?      Mb Total Allocated Memory:0.0    Mb") !=
      std::string::npos);
  CHECK(diff.to_json().find("\"tensor_bytes\":null") != std::string::npos);
}

TEST_CASE("header, rows and At lines of a small program") {
  MemTracker tracker(options_here());
  const double before = tracker.get_tensor_usage();
  const SnapshotDiff nothing = tracker.track();
  CHECK(nothing.rows.empty());
  const at::Tensor a = torch::zeros({256, 1024});
  const at::Tensor b = torch::zeros({256, 1024});
  const SnapshotDiff two = tracker.track("after b");
  REQUIRE(two.rows.size() == 1);
  CHECK(in_words(two) ==
        "+ | 2 * Size:(256, 1024)          | Memory: 2.0 M | Tensor               | torch.float32 "
        "| aten::zeros\n");
  CHECK(two.tensor_bytes.value() - nothing.tensor_bytes.value() == 2 * 256 * 1024 * 4);
  CHECK(tracker.get_tensor_usage() - before == 2.0);
  CHECK(tracker.get_allocate_usage() * 1048576.0 ==
        static_cast<double>(two.allocated_bytes.value()));

  std::ostringstream whole;
  whole << two;
  const std::string log = contents(tracker.log_path());
  CHECK(log.substr(0, 40) == "GPU Memory Track | 30-Apr-21-20:25:29 | ");
  CHECK(log.substr(log.find('\n')) == "\n\n\n" + nothing.at_line() + "\n\n" + whole.str() + "\n");
}

TEST_CASE("the location is that of the call") {
  MemTracker tracker(options_here());
  const SnapshotDiff plain = tracker.track();
  CHECK(plain.where.line() == __LINE__ - 1);
  const SnapshotDiff with_label = tracker.track("warm");
  CHECK(with_label.where.line() == __LINE__ - 1);
  CHECK(with_label.label == "warm");
  CHECK(fs::path(plain.where.file()).filename() == "mem_tracker_test.cc");
  CHECK(std::string(plain.where.function()) == static_cast<const char*>(__FUNCTION__));
  CHECK(with_label.at_line().rfind("At mem_tracker_test.cc line " +
                                       std::to_string(with_label.where.line()) + ": " +
                                       static_cast<const char*>(__FUNCTION__) + " [warm] ",
                                   0) == 0);
}

TEST_CASE("by identity") {
  MemTracker tracker(options_here());
  std::vector<at::Tensor> held;
  for (int i = 0; i < 3; ++i) held.push_back(torch::ones({10, 10}));
  CHECK(tracker.track().rows.size() == 1);
  SUBCASE("three, then five: + 2") {
    for (int i = 0; i < 2; ++i) held.push_back(torch::ones({10, 10}));
    CHECK(in_words(tracker.track()) ==
          "+ | 2 * Size:(10, 10)             | Memory: 0.0007 M | Tensor               | "
          "torch.float32 | aten::ones\n");
  }
  SUBCASE("freed and replaced: one + and one -") {
    held[1].reset();
    held[1] = torch::ones({10, 10});
    const SnapshotDiff diff = tracker.track();
    CHECK(in_words(diff) ==
          "+ | 1 * Size:(10, 10)             | Memory: 0.0003 M | Tensor               | "
          "torch.float32 | aten::ones\n"
          "- | 1 * Size:(10, 10)             | Memory: 0.0003 M | Tensor               | "
          "torch.float32 | aten::ones\n");
    CHECK(change_of(diff) == 0);
  }
  SUBCASE("a view adds nothing, and keeps what it views") {
    at::Tensor view = held[0].view({100}).slice(0, 0, 5);
    CHECK(tracker.track().rows.empty());
    held[0].reset();
    CHECK(tracker.track().rows.empty());
    view.reset();
    CHECK(tracker.track().died_bytes() == 400);
  }
  SUBCASE("born and freed in between is nothing") {
    torch::ones({1000}).add_(1);
    CHECK(tracker.track().rows.empty());
  }
  SUBCASE("a resize is a - of the old and a + of the new") {
    held[2].resize_({1000});
    const SnapshotDiff diff = tracker.track();
    CHECK(diff.born_bytes() == 4000);
    CHECK(diff.died_bytes() == 400);
  }
}

TEST_CASE(
    "a resize says so: the old size goes, the new one comes, and the name tells that it is the "
    "same tensor") {
  MemTracker tracker(options_here());
  at::Tensor mine = torch::ones({100});
  tracker.add_tensor("mine", mine);
  tracker.track();
  mine.resize_({1000});
  CHECK(in_words(tracker.track()) ==
        "+ | 1 * Size:(1000,)              | Memory: 0.0038 M | Tensor               | "
        "torch.float32 | mine (resized)\n"
        "- | 1 * Size:(100,)               | Memory: 0.0003 M | Tensor               | "
        "torch.float32 | mine\n");
  const at::Tensor other = torch::ones({100});
  tracker.track();
  other.resize_({2000});
  CHECK(in_words(tracker.track()).find("| torch.float32 | aten::resize_\n") != std::string::npos);
  // Into what it has already: nothing happens to its memory.
  other.resize_({10});
  CHECK(tracker.track().rows.empty());
}

TEST_CASE("an echo on standard output, a name without colons") {
  TrackerOptions options = options_here();
  options.echo = true;
  options.colons = false;
  std::ostringstream captured;
  std::streambuf* const before = std::cout.rdbuf(captured.rdbuf());
  MemTracker tracker(options);
  const at::Tensor a = torch::ones({100});
  tracker.track("echoed");
  std::cout.rdbuf(before);
  CHECK(captured.str() == contents(tracker.log_path()));
  CHECK(captured.str().find("[echoed]") != std::string::npos);
  CHECK(fs::path(tracker.log_path()).filename() == "30-Apr-21-20-25-29-gpu_mem_track.txt");
}

TEST_CASE("without registration, parameters and gradients have their roles") {
  MemTracker tracker(options_here());
  torch::nn::Linear net(torch::nn::LinearOptions(123, 7).bias(false));
  net->forward(torch::ones({2, 123})).sum().backward();
  int64_t parameters = 0, gradients = 0;
  for (const DiffRow& row : tracker.track().rows) {
    if (row.role == Role::kParameter) parameters += row.bytes;
    if (row.role == Role::kGradient) gradients += row.bytes;
  }
  CHECK(parameters == 4 * 123 * 7);
  CHECK(gradients == 4 * 123 * 7);
}

TEST_CASE("after fork the child goes on in a log of its own, with what it did itself") {
  MemTracker tracker(options_here());
  const at::Tensor a = torch::ones({100});
  const int64_t total = tracker.track().tensor_bytes.value();
  const std::string before = contents(tracker.log_path());
  const pid_t child = ::fork();
  if (child == 0) {
    const at::Tensor b = torch::ones({25});
    const SnapshotDiff diff = tracker.track();
    const bool right = diff.born_bytes() == 100 && diff.died_bytes() == 0 &&
                       diff.tensor_bytes == total + 100 &&
                       contents(tracker.log_path()).find("| 1 * Size:(25,)") != std::string::npos;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(contents(tracker.log_path()) == before);
  CHECK(tracker.track().rows.empty());
}

TEST_CASE("fork while another thread tracks: the child can, too" *
          doctest::skip(testing::kChildrenMayHang)) {
  TrackerOptions options = options_here();
  options.file_name = "shared.txt";
  MemTracker tracker(options);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) tracker.track("other");
  });
  int good = 0;
  constexpr int kForks = 20;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      tracker.track("child");
      ::_exit(0);
    }
    int status = 1;
    good += ::waitpid(child, &status, 0) == child && status == 0;
    if (good <= i) break;
  }
  stop = true;
  other.join();
  CHECK(good == kForks);
}

TEST_CASE("names, roles and last known names") {
  MemTracker tracker(options_here());
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(8, 8));
  net->push_back(torch::nn::BatchNorm1d(8));
  torch::optim::Adam adam(net->parameters());
  tracker.add_module("net", net).add_optimizer(adam);
  const std::string made = in_words(tracker.track());
  CHECK(made.find("| 1 * Size:(8, 8)               | Memory: 0.0002 M | Parameter            | "
                  "torch.float32 | net.0.weight\n") != std::string::npos);
  CHECK(made.find("| 3 * Size:(8,)                 | Memory: 9.155e-05 M | Parameter            | "
                  "torch.float32 | net.0.bias …\n") != std::string::npos);
  CHECK(made.find("| Buffer               | torch.float32 | net.1.running_mean …\n") !=
        std::string::npos);
  CHECK(made.find("| Buffer               | torch.int64 | net.1.num_batches_tracked\n") !=
        std::string::npos);

  net->forward(torch::ones({4, 8})).sum().backward();
  CHECK(in_words(tracker.track())
            .find("| Gradient             | torch.float32 | net.0.weight.grad\n") !=
        std::string::npos);
  adam.step();
  const std::string stepped = in_words(tracker.track());
  CHECK(stepped.find("| OptimizerState       | torch.float32 | Adam.net.0.weight.exp_avg …\n") !=
        std::string::npos);

  adam.zero_grad();
  const SnapshotDiff freed = tracker.track();
  CHECK(freed.born_bytes() == 0);
  CHECK(in_words(freed).find("- | 1 * Size:(8, 8)               | Memory: 0.0002 M | Gradient      "
                             "       | torch.float32 | "
                             "net.0.weight.grad\n") != std::string::npos);

  tracker.remove_optimizer(adam);
  net = torch::nn::Sequential(nullptr);
  // The optimizer still holds the parameters; the buffers are gone.
  const std::string ended = in_words(tracker.track());
  CHECK(ended.find("- | 2 * Size:(8,)") != std::string::npos);
  CHECK(ended.find("| Buffer               | torch.float32 | net.1.running_mean …\n") !=
        std::string::npos);
  CHECK(ended.find("Parameter") == std::string::npos);
}

TEST_CASE("a tensor named after its birth has its name when it goes") {
  MemTracker tracker(options_here());
  at::Tensor tensor = torch::ones({10});
  CHECK(in_words(tracker.track()).find("aten::ones") != std::string::npos);
  tracker.add_tensor("mine", tensor);
  CHECK(tracker.track().rows.empty());
  tensor.reset();
  CHECK(in_words(tracker.track()) ==
        "- | 1 * Size:(10,)                | Memory: 3.815e-05 M | Tensor               | "
        "torch.float32 | mine\n");
}

TEST_CASE("one storage under two names is a+b; modules without a prefix have bare names") {
  struct Tied : torch::nn::Module {
    Tied() {
      const at::Tensor shared = torch::ones({16});
      encoder = register_parameter("encoder", shared);
      decoder = register_parameter("decoder", shared);
    }
    at::Tensor encoder, decoder;
  };
  MemTracker tracker(options_here());
  const Tied tied;
  tracker.add_module("", tied);
  CHECK(in_words(tracker.track()) ==
        "+ | 1 * Size:(16,)                | Memory: 6.104e-05 M | Parameter            | "
        "torch.float32 | encoder+decoder\n");
  tracker.remove("");
  CHECK_THROWS_AS(tracker.remove(""), c10::Error);
}

TEST_CASE("odd tensors are rows or are said not to be read, and never end the program") {
  TrackerOptions options = options_here();
  options.verbose = true;
  MemTracker tracker(options);
  std::vector<float> foreign(100);
  const at::Tensor blob = torch::from_blob(foreign.data(), {100});
  const at::Tensor dense = torch::eye(10);
  const at::Tensor coo = dense.to_sparse();
  const at::Tensor csr = dense.to_sparse_csr();
  const at::Tensor empty = torch::empty({0, 3});
  const at::Tensor meta = torch::empty({1000}, torch::device(torch::kMeta));
  const at::Tensor half = dense.to(torch::kBFloat16);
  tracker.add_tensor("blob", blob)
      .add_tensor("coo", coo)
      .add_tensor("csr", csr)
      .add_tensor("empty", empty);
  tracker.add_tensor("meta", meta).add_tensor("half", half);
  const SnapshotDiff diff = tracker.track();
  CHECK(diff.unread == std::vector<std::string>{"blob"});
  std::set<std::string> names;
  for (const DiffRow& row : diff.rows) names.insert(row.names.begin(), row.names.end());
  CHECK(names == std::set<std::string>{"coo.indices", "coo.values", "csr.compressed_indices",
                                       "csr.plain_indices", "csr.values", "half"});
  CHECK(in_words(diff).find("torch.bfloat16 | half") != std::string::npos);
  CHECK(contents(tracker.log_path()).find("\n  not LibTorch's memory, or not to be seen: blob\n") !=
        std::string::npos);
  CHECK(contents(tracker.log_path())
            .find("\n  hooks: 0 unknown frees, 0 dropped records, 0 swallowed exceptions\n") !=
        std::string::npos);
}

TEST_CASE("several trackers have logs and changes of their own") {
  const TrackerOptions options = options_here();
  MemTracker first(options);
  const at::Tensor a = torch::ones({100});
  MemTracker second(options);
  CHECK(second.log_path() == first.log_path().substr(0, first.log_path().size() - 4) + "-2.txt");
  CHECK(first.track().born_bytes() == 400);
  CHECK(second.track().rows.empty());
  CHECK(first.track().rows.empty());
}

TEST_CASE("cpu:0 is the CPU, as in reports") {
  TrackerOptions options = options_here();
  options.device = c10::Device(c10::DeviceType::CPU, 0);
  MemTracker tracker(options);
  const at::Tensor a = torch::ones({100});
  const SnapshotDiff diff = tracker.track();
  CHECK(diff.device.str() == "cpu");
  CHECK(diff.born_bytes() == 400);
}

TEST_CASE("what is not known in MiB is no number, not zero") {
  TrackerOptions options = options_here();
  options.device = at::kMeta;
  const MemTracker tracker(options);
  CHECK(std::isnan(tracker.get_tensor_usage()));
  CHECK(std::isnan(tracker.get_allocate_usage()));
}

TEST_CASE("folder is another name of path; two folders are an error that names both") {
  TrackerOptions options = options_here();
  options.folder = std::exchange(options.path, "");
  CHECK(MemTracker(options).log_path().rfind(options.folder + "/", 0) == 0);
  options.path = options.folder;
  CHECK(MemTracker(options).log_path().rfind(options.folder + "/", 0) == 0);
  options.path = options.folder + "/else";
  CHECK_THROWS_WITH_AS(MemTracker{options}, doctest::Contains((scratch + "/").c_str()), c10::Error);
  CHECK_THROWS_WITH_AS(MemTracker{options}, doctest::Contains("::folder"), c10::Error);
}

TEST_CASE("what was removed has no name any more") {
  MemTracker tracker(options_here());
  const at::Tensor a = torch::ones({100});
  torch::nn::Linear net(4, 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  tracker.add_module("net", net).add_optimizer(sgd).add_tensor("a", a);
  tracker.remove_optimizer(sgd).remove("net").remove("a");
  std::ostringstream out;
  tracker.print_all_gpu_tensor(out);
  CHECK(out.str().find("net.weight") == std::string::npos);
  CHECK(out.str().find(" a\n") == std::string::npos);
  CHECK_THROWS_AS(tracker.remove("a"), c10::Error);
  CHECK_THROWS_AS(tracker.remove_optimizer(sgd), c10::Error);
}

TEST_CASE("a log that cannot be made is an error before anything begins") {
  std::ofstream(scratch + "/file") << "not a folder";
  TrackerOptions options = options_here();
  options.path = scratch + "/file/logs";
  const bool was_active = Registry::global().active();
  CHECK_THROWS_WITH_AS(MemTracker{options}, doctest::Contains((scratch + "/file/logs").c_str()),
                       c10::Error);
  CHECK(Registry::global().active() == was_active);
}

TEST_CASE("a full disk does not reach the program") {
  TrackerOptions options = options_here();
  options.file_name = "/dev/full";
  MemTracker tracker(options);
  const at::Tensor a = torch::ones({100});
  CHECK(tracker.track().born_bytes() == 400);
  CHECK(tracker.log_path() == "/dev/full");
}

TEST_CASE("the registry is active while a tracker is") {
  CHECK_FALSE(Registry::global().active());
  {
    const MemTracker tracker(options_here());
    CHECK(Registry::global().active());
  }
  CHECK_FALSE(Registry::global().active());
}

TEST_CASE("without detail the log has At lines only, the value has all") {
  TrackerOptions options = options_here();
  options.detail = false;
  MemTracker tracker(options);
  const at::Tensor a = torch::ones({100});
  const SnapshotDiff first = tracker.track();
  const SnapshotDiff second = tracker.track();
  CHECK(first.rows.size() == 1);
  const std::string log = contents(tracker.log_path());
  CHECK(log.substr(log.find('\n')) ==
        "\n\n\n" + first.at_line() + "\n\n\n" + second.at_line() + "\n\n");
}

TEST_CASE("print_all_gpu_tensor lists live storages as Python prints them") {
  MemTracker tracker(options_here());
  const at::Tensor a = torch::ones({64, 3, 3, 3});
  const at::Tensor scalar = torch::ones({});
  tracker.add_tensor("a", a);
  std::ostringstream out;
  tracker.print_all_gpu_tensor(out);
  CHECK(out.str().find("torch.Size([64, 3, 3, 3]) torch.float32 0.006591796875 a\n") !=
        std::string::npos);
  CHECK(out.str().find("torch.Size([]) torch.float32 3.814697265625e-06\n") != std::string::npos);
  std::ostringstream captured;
  std::streambuf* const standard = std::cout.rdbuf(captured.rdbuf());
  tracker.print_all_gpu_tensor();
  std::cout.rdbuf(standard);
  CHECK(captured.str() == out.str());
  tracker.clear_cache();
}

// Tensors that come, go, are replaced, viewed and resized at random; the rows always add up to the
// change of the totals.
TEST_CASE("rows add up to the change of the totals, to the byte") {
  const bool full = std::getenv("MEMLEDGER_FULL") != nullptr;
  const int seeds = full ? 10000 : 200;
  for (int seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    TrackerOptions options = options_here();
    options.path = scratch + "/random";
    options.file_name = "log.txt";
    MemTracker tracker(options);
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<at::Tensor> held;
    int64_t total = tracker.track().tensor_bytes.value();
    for (int block = 0; block < 5; ++block) {
      for (int step = 0; step < 20; ++step) {
        const size_t pick = held.empty() ? 0 : random() % held.size();
        const int64_t size = static_cast<int64_t>(random() % 50);
        switch (held.empty() ? 0 : random() % 6) {
          case 0:
          case 1:
            held.push_back(
                torch::zeros({size, 3}, random() % 2 != 0 ? torch::kFloat : torch::kLong));
            break;
          case 2:
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
            break;
          case 3:
            held[pick] = torch::ones_like(held[pick]);
            break;
          case 4:
            held.push_back(held[pick].view({-1}));
            break;
          default:
            if (random() % 2 == 0) {
              held[pick].resize_({size + 1});
            } else {
              tracker.add_tensor("t" + std::to_string(step), held[pick]);
            }
        }
      }
      const SnapshotDiff diff = tracker.track();
      REQUIRE(diff.tensor_bytes.value() - total == change_of(diff));
      total = diff.tensor_bytes.value();
      int64_t by_hand = 0;
      std::vector<const void*> seen;
      for (const at::Tensor& tensor : held) {
        const void* const storage = tensor.storage().unsafeGetStorageImpl();
        if (std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
        seen.push_back(storage);
        by_hand += static_cast<int64_t>(tensor.storage().nbytes());
      }
      // Nothing else is alive: what earlier cases made has gone, and neither doctest nor LibTorch
      // holds a tensor.
      REQUIRE(total == by_hand);
    }
  }
}

// A tensor that asks the program for its sizes: what a program may do while its tensors are read.
struct Meddling final : c10::TensorImpl {
  explicit Meddling(std::function<void()> on_sizes)
      : c10::TensorImpl(c10::Storage(c10::Storage::use_byte_size_t(), 64,
                                     c10::GetAllocator(c10::DeviceType::CPU)),
                        c10::DispatchKeySet(c10::DispatchKey::CPU),
                        caffe2::TypeMeta::Make<float>()),
        on_sizes(std::move(on_sizes)) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
  }
  c10::IntArrayRef sizes_custom() const override {
    on_sizes();
    return {};
  }
  std::function<void()> on_sizes;
};

TEST_CASE("a tensor may end while it is read, and call the tracker from its deleter") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    MemTracker tracker(options_here());
    std::vector<float> memory(100);
    int calls = 0;
    const auto made = [&] {
      return torch::from_blob(memory.data(), {100}, [&](void*) {
        ++calls;
        tracker.track("deleter");
        std::ostringstream out;
        tracker.print_all_gpu_tensor(out);
      });
    };
    at::Tensor blob = made();
    // A module that ends while it is read, and with it a tensor that is none of its parameters.
    struct Holder : torch::nn::Module {
      explicit Holder(at::Tensor given) : own(std::move(given)) {
        meddling = register_parameter("own", torch::ones({2}));
      }
      at::Tensor own, meddling;
    };
    auto module = std::make_shared<Holder>(made());
    tracker.add_module("module", *module).add_tensor("blob", blob);
    const at::Tensor meddling(c10::make_intrusive<Meddling>([&] {
      blob.reset();
      module.reset();
    }));
    tracker.add_tensor("meddling", meddling);
    tracker.track();
    std::ostringstream out;
    blob = made();
    tracker.add_tensor("blob", blob);
    tracker.print_all_gpu_tensor(out);
    ::_exit(calls == 3 ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("several threads may track at once, and nothing is told twice") {
  MemTracker tracker(options_here());
  std::atomic<int64_t> born{0};
  std::vector<at::Tensor> held(4 * 200);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 200; ++i) {
        held[t * 200 + i] = torch::ones({25});
        tracker.add_tensor("t" + std::to_string(t), held[t * 200 + i]);
        born += tracker.track().born_bytes();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  born += tracker.track().born_bytes();
  CHECK(born == 4 * 200 * 100);
  const std::string log = contents(tracker.log_path());
  size_t blocks = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    blocks += line.rfind("At mem_tracker_test.cc line ", 0) == 0 ? 1 : 0;
  CHECK(blocks == 4 * 200 + 1);
}

#if defined(__GLIBC__)
TEST_CASE("what has gone leaves nothing behind") {
  MemTracker tracker(options_here());
  const auto pass = [&tracker] {
    for (int i = 0; i < 2000; ++i) {
      const std::string name = "a name too long for a short string, number " + std::to_string(i);
      at::Tensor tensor = torch::ones({25});
      tracker.add_tensor(name, tensor);
      tracker.track();
      tensor.reset();
      CHECK(tracker.track().rows.size() == 1);
    }
  };
  pass();
  const auto before = static_cast<int64_t>(::mallinfo2().uordblks);
  pass();
  CHECK(static_cast<int64_t>(::mallinfo2().uordblks) - before < 50000);
}
#endif

TEST_SUITE_END();

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  const memledger::testing::TemporaryFolder folder;
  memledger::scratch = folder.path();
  return doctest::Context(argc, argv).run();
}
