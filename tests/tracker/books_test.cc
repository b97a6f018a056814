// One program under all of the books at once: what one calls a tensor, a workspace or a raw block,
// the others call the same.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/tracker/books_test.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/mem_reporter.h"
#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/kept_workspaces.h"
#include "tests/support/sanitizers.h"
#include "tracker/courtesy.h"
#include "tracker/line_profiler.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_profiler.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

namespace nn = torch::nn;

// The CPU, unless books_cuda.cc is linked in.
c10::Device device() {
  return testing::books_on_cuda() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

TrackerOptions options_here() {
  const char* const folder = std::getenv("TEST_TMPDIR");
  TrackerOptions options;
  options.path = folder != nullptr ? folder : "/tmp";
  options.device = device();
  return options;
}

// The tables that LibTorch keeps.
int64_t workspaces_of_libtorch() {
  const Snapshot snapshot = Registry::global().snapshot();
  int64_t bytes = 0;
  for (const LibraryWorkspace& one : library_workspaces()) {
    const StorageInfo* const storage =
        snapshot.find_address(one.device, reinterpret_cast<const void*>(one.address));
    REQUIRE(storage != nullptr);
    bytes += storage->nbytes;
  }
  return bytes;
}

TEST_SUITE_BEGIN("books");

TEST_CASE(
    "the iteration profiler's feature maps and intermediate gradients are activations, on CUDA as "
    "on the CPU") {
  struct Net : nn::Module {
    Net() {
      one = register_module("one", nn::Linear(1024, 1024));
      two = register_module("two", nn::Linear(1024, 1024));
    }
    at::Tensor forward(const at::Tensor& x) { return two(at::relu(one(x))); }
    nn::Linear one = nullptr, two = nullptr;
  };
  const auto net = std::make_shared<Net>();
  net->to(device());
  std::ostringstream out;
  MemoryProfilerOptions options;
  options.out = &out;
  MemoryProfiler profiler(*net, options);
  for (int iteration = 1; iteration <= 3; ++iteration) {
    CAPTURE(iteration);
    const at::Tensor batch = at::ones({512, 1024}, device());
    net->zero_grad();
    net->forward(batch).sum().backward();
    profiler.record_stats();
    // The first Linear's result goes when relu's is there, or is kept until two's is there.
    constexpr int64_t kResult = 512 * 1024 * 4;
    CHECK(profiler.last().feature_map_bytes >= 2 * kResult);
    CHECK(profiler.last().feature_map_bytes <= 3 * kResult + 4);
    CHECK(profiler.last().intermediate_gradient_bytes >= kResult);
    CHECK(profiler.last().intermediate_gradient_bytes <= 3 * kResult + 4);
    CHECK(profiler.last().other_bytes == kResult);
    CHECK(profiler.last().workspace_bytes ==
          (testing::books_on_cuda() ? workspaces_of_libtorch() : 0));
    CHECK((out.str().find("\nWorkspaces.....") != std::string::npos) == testing::books_on_cuda());
  }
}

TEST_CASE("the tracker's tensors are tensors") {
  MemTracker tracker(options_here());
  const at::Tensor input = at::ones({8, 8}, device());
  const at::Tensor weight = at::ones({8, 8}, device());
  const at::Tensor bias = at::ones({8}, device());
  const at::Tensor result = at::linear(input, weight, bias);
  const SnapshotDiff diff = tracker.track();
  CHECK(diff.tensor_bytes == 3 * 256 + 32);
  std::ostringstream out;
  tracker.print_all_gpu_tensor(out);
  CAPTURE(diff);
  CHECK(out.str().find("(?)") == std::string::npos);
}

// What one book says: bytes by what they are for.
struct Sums {
  int64_t parameters = 0, buffers = 0, gradients = 0, optimizer_state = 0, tensors = 0,
          workspaces = 0, raw_blocks = 0;

  int64_t of_tensors() const {
    return parameters + buffers + gradients + optimizer_state + tensors;
  }
  int64_t all() const { return of_tensors() + workspaces + raw_blocks; }
  int64_t& of(Role role) {
    switch (role) {
      case Role::kParameter:
        return parameters;
      case Role::kBuffer:
        return buffers;
      case Role::kGradient:
        return gradients;
      case Role::kOptimizerState:
        return optimizer_state;
      default:
        return tensors;
    }
  }
};

std::string text_of(const Sums& sums) {
  std::ostringstream out;
  out << "parameters " << sums.parameters << ", buffers " << sums.buffers << ", gradients "
      << sums.gradients << ", optimizer's state " << sums.optimizer_state << ", other tensors "
      << sums.tensors << ", workspaces " << sums.workspaces << ", raw blocks " << sums.raw_blocks;
  return out.str();
}

struct Net : nn::Module {
  Net() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(16));
    linear = register_module("linear", nn::Linear(16 * 32 * 32, 10));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(at::relu(norm(conv(x))).flatten(1)); }
  nn::Conv2d conv = nullptr;
  nn::BatchNorm2d norm = nullptr;
  nn::Linear linear = nullptr;
};

constexpr size_t kRawBytes = 3000000;

// All that the program holds.
struct Program {
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Adam> adam;
  at::Tensor input, kept, loss;
  void* raw = nullptr;

  ~Program() {
    if (raw != nullptr) testing::books_raw_blocks->give_back(raw);
  }
};

using Profiler = std::unique_ptr<MemoryProfiler>;

// The one program.
__attribute__((noinline, used)) void run_one_program(Program& program, Profiler& profiler,
                                                     std::ostream& out) {
  program.net = std::make_shared<Net>();
  program.net->to(device());
  program.adam = std::make_unique<torch::optim::Adam>(program.net->parameters());
  if (testing::books_on_cuda()) program.raw = testing::books_raw_blocks->take(kRawBytes);
  MemoryProfilerOptions options;
  options.out = &out;
  profiler = std::make_unique<MemoryProfiler>(*program.net, options);
  profiler->add_optimizer(*program.adam);
  program.input = at::ones({8, 3, 32, 32}, device());
  for (int iteration = 0; iteration < 2; ++iteration) {
    program.adam->zero_grad();
    program.kept = program.net->forward(program.input);
    program.loss = program.kept.sum();
    program.loss.backward();
    program.adam->step();
    profiler->record_stats();
  }
  // Without the graph.
  program.kept = program.kept.detach();
  program.loss = program.loss.detach();
  asm volatile("");  // not a tail call
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.storage().nbytes());
}

// From sizes, and what LibTorch itself counted.
Sums by_hand(const Program& program, int64_t requested_of_libtorch) {
  Sums sums;
  for (const at::Tensor& parameter : program.net->parameters()) {
    sums.parameters += bytes_of(parameter);
    sums.gradients += bytes_of(parameter.grad());
  }
  for (const at::Tensor& buffer : program.net->buffers()) sums.buffers += bytes_of(buffer);
  sums.optimizer_state = 2 * sums.parameters;
  sums.tensors = bytes_of(program.input) + bytes_of(program.kept) + bytes_of(program.loss);
  sums.raw_blocks = testing::books_on_cuda() ? static_cast<int64_t>(kRawBytes) : 0;
  sums.workspaces = requested_of_libtorch - sums.of_tensors() - sums.raw_blocks;
  return sums;
}

Sums of_report(const Report& report) {
  Sums sums;
  for (const DeviceReport& one : report.devices) {
    if (one.device != device()) continue;
    for (size_t role = 0; role < one.bytes_by_role.size(); ++role)
      sums.of(static_cast<Role>(role)) += one.bytes_by_role[role];
    for (const ReportItem& item : one.items) {
      if (item.kind == ReportItemKind::kLibraryWorkspace) sums.workspaces += item.bytes;
      if (item.kind == ReportItemKind::kRawBlocks) sums.raw_blocks += item.bytes;
    }
    CHECK(one.unexplained_bytes == 0);
  }
  return sums;
}

Sums of_tracker(const SnapshotDiff& diff) {
  Sums sums;
  for (const DiffRow& row : diff.rows) {
    const int64_t bytes = row.sign == '+' ? row.bytes : -row.bytes;
    if (row.kind == StorageKind::kLibraryWorkspace) {
      sums.workspaces += bytes;
      CHECK(to_string(row).find("| LibraryWorkspace     | ? |") != std::string::npos);
    } else if (row.kind == StorageKind::kRawBlock) {
      sums.raw_blocks += bytes;
      CHECK(to_string(row).find("| RawBlock             | ? |") != std::string::npos);
    } else {
      sums.of(row.role) += bytes;
    }
  }
  return sums;
}

Sums of_profiler(const IterationStats& stats) {
  Sums sums;
  sums.parameters = stats.weight_bytes();
  sums.gradients = stats.weight_gradient_bytes();
  for (const NamedBytes& row : stats.buffers) sums.buffers += row.bytes;
  for (const NamedBytes& row : stats.optimizer_state) sums.optimizer_state += row.bytes;
  sums.tensors = stats.other_bytes;
  sums.raw_blocks = testing::books_on_cuda() ? static_cast<int64_t>(kRawBytes) : 0;
  sums.workspaces = stats.workspace_bytes - sums.raw_blocks;
  return sums;
}

Sums of_timeline(const TimelineData& data) {
  Sums sums;
  for (const Lifetime& life : data.recording.lifetimes) {
    if (life.storage.device != device() || life.died_ns.has_value()) continue;
    const std::string series = series_of(life, data);
    int64_t& bytes = series == "library workspace" ? sums.workspaces
                     : series == "raw block"       ? sums.raw_blocks
                     : series == "Parameter"       ? sums.parameters
                     : series == "Buffer"          ? sums.buffers
                     : series == "Gradient"        ? sums.gradients
                     : series == "OptimizerState"  ? sums.optimizer_state
                                                   : sums.tensors;
    bytes += life.storage.nbytes;
    CHECK(series != "scratch");
  }
  return sums;
}

// The most at once of what is no tensor's, from births and deaths.
int64_t most_besides_tensors(const Recording& recording) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const Lifetime& life : recording.lifetimes) {
    if (life.storage.device != device() || life.storage.kind == StorageKind::kTensor) continue;
    if (life.born_ns) changes.emplace_back(*life.born_ns, life.storage.nbytes);
    if (life.died_ns) changes.emplace_back(*life.died_ns, -life.storage.nbytes);
  }
  std::sort(changes.begin(), changes.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

// LibTorch's own count: of CUDA its allocator's statistics, of the CPU what it reports of each
// allocation since the test began.
class OwnCount {
 public:
  OwnCount() : scope_(count_), before_(requested()) {}
  int64_t requested() const {
    if (!testing::books_on_cuda()) return count_.live_bytes();
    auto* const allocator =
        dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
    if (allocator == nullptr || !allocator->initialized()) return 0;
    constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(0).requested_bytes[kAggregate].current;
  }
  int64_t before() const { return before_; }

 private:
  testing::AllocationCount count_;
  testing::AllocationCount::Scope scope_;
  const int64_t before_;
};

TEST_CASE("one program under all books: the sums are the same, role by role, and LibTorch's") {
  const ScopedTrainingPaused paused(!testing::kWorkersAreKnown);
  const OwnCount own;
  set_target_device(device());
  const Report before = MemReporter().collect();
  MemReporter reporter;
  MemTracker tracker(options_here());
  Timeline timeline;
  LineProfiler lines;
  lines.add_function(reinterpret_cast<const void*>(&run_one_program));
  std::ostringstream out;
  Program program;
  Profiler profiler;
  {
    const auto on = lines.enable();
    run_one_program(program, profiler, out);
  }
  // From what the first case has left of LibTorch's.
  const Sums at_first = of_report(before);
  REQUIRE(at_first.of_tensors() == 0);
  const Sums truth = by_hand(program, own.requested() - own.before());
  if (testing::books_on_cuda() && testing::keeps_workspaces()) {
    CHECK(truth.workspaces + at_first.workspaces >= int64_t{32} << 20);
  } else {
    CHECK(truth.workspaces == 0);
  }

  reporter.add_module("", *program.net)
      .add_optimizer(*program.adam)
      .add_input("input", program.input);
  tracker.add_module("", *program.net).add_optimizer(*program.adam);
  timeline.add_module("", *program.net).add_optimizer(*program.adam);
  Sums reported = of_report(reporter.collect());
  reported.workspaces -= at_first.workspaces;
  CHECK(text_of(reported) == text_of(truth));
  const SnapshotDiff diff = tracker.track();
  CHECK(text_of(of_tracker(diff)) == text_of(truth));
  CHECK(diff.tensor_bytes == truth.of_tensors());
  CHECK(diff.born_bytes() == truth.of_tensors());
  CHECK(tracker.get_tensor_usage() * 1048576 == static_cast<double>(truth.of_tensors()));
  Sums profiled = of_profiler(profiler->last());
  profiled.workspaces -= at_first.workspaces;
  CHECK(text_of(profiled) == text_of(truth));
  const TimelineData data = timeline.read();
  Sums in_timeline = of_timeline(data);
  in_timeline.workspaces -= at_first.workspaces;
  CHECK(text_of(in_timeline) == text_of(truth));
  CHECK(most_besides_tensors(data.recording) ==
        profiler->last().most_workspace_bytes - at_first.workspaces);
  if (testing::books_on_cuda()) {
    CHECK(profiler->last().most_workspace_bytes >
          truth.workspaces + at_first.workspaces + truth.raw_blocks);  // cuDNN's
  }

  // Lines are of blocks, whatever they are for: what this thread made, as CUDA's backward runs on
  // another.
  int64_t made_here = 0;
  for (const Lifetime& life : data.recording.lifetimes) {
    if (life.storage.device == device() && life.storage.thread == this_thread_number() &&
        life.born_ns && !life.died_ns)
      made_here += life.storage.nbytes;
  }
  const LineProfile profile = lines.profile();
  REQUIRE(profile.tables.size() == 1);
  CHECK(profile.tables[0].total.line_left == made_here);

  std::ostringstream listing;
  tracker.print_all_gpu_tensor(listing);
  CHECK(listing.str().find("(?)") == std::string::npos);

  SUBCASE("lent away: tensors have gone, and all else is what it was") {
    CourtesyOptions away;
    away.device = device();
    away.workspaces = false;  // the other books have them still
    if (!testing::books_on_cuda()) away.place = CourtesyOptions::Place::kFile;
    Courtesy courtesy(away);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == truth.of_tensors());
    Sums unmoved;
    for (const Unmoved& one : courtesy.unmoved()) {
      CAPTURE(one.reason);
      if (one.reason.find("workspace") != std::string::npos) {
        unmoved.workspaces += one.nbytes;
      } else {
        CHECK(one.reason == "raw block, not a storage");
        unmoved.raw_blocks += one.nbytes;
      }
    }
    CHECK(unmoved.workspaces == truth.workspaces + at_first.workspaces);
    CHECK(unmoved.raw_blocks == truth.raw_blocks);
    CHECK(own.requested() - own.before() == truth.workspaces + truth.raw_blocks);
    const Sums lent = of_report(reporter.collect());
    CHECK(lent.of_tensors() == 0);
    CHECK(lent.workspaces == unmoved.workspaces);
    CHECK(lent.raw_blocks == unmoved.raw_blocks);
    const SnapshotDiff while_away = tracker.track();
    CHECK(while_away.tensor_bytes == 0);
    CHECK(while_away.died_bytes() == truth.of_tensors());
    CHECK(of_tracker(while_away).workspaces == 0);
    REQUIRE(courtesy.restore().ok());
    Sums back = of_report(reporter.collect());
    back.workspaces -= at_first.workspaces;
    CHECK(text_of(back) == text_of(truth));
    const SnapshotDiff returned = tracker.track();
    CHECK(text_of(of_tracker(returned)) == text_of([&] {
            Sums sums = truth;
            sums.workspaces = sums.raw_blocks = 0;
            return sums;
          }()));
    CHECK(returned.tensor_bytes == truth.of_tensors());
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
