// On the CPU's memory, moved to a file; where there is a CUDA device (the virtual one), also on
// its.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/courtesy.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/registry.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/fork_beside_threads.h"

namespace {

using memledger::Courtesy;
using memledger::CourtesyOptions;
using memledger::ScopedCourtesy;
using memledger::Unmoved;

const bool watched = [] {
  memledger::Registry::global().activate().IgnoreError();
  return true;
}();

CourtesyOptions cpu_to_file() {
  CourtesyOptions options;
  options.place = CourtesyOptions::Place::kFile;
  options.device = at::kCPU;
  return options;
}

// What is in memory, without LibTorch's help.
std::string bits(const at::Tensor& tensor) {
  const at::Tensor all = tensor.contiguous();
  return {static_cast<const char*>(all.data_ptr()), all.nbytes()};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void* address(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()
      ->unsafe_storage()
      .unsafeGetStorageImpl()
      ->_mutable_data_ptr_no_checks()
      .get();
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(12, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 12));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = torch::dropout(torch::relu(norm(first(input))), 0.5, is_training());
    // The first layer's weight again: tied, through a view.
    return second(hidden) + hidden.matmul(first->weight);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

// Calls back before each outermost operator of this program.
thread_local int depth = 0;
std::function<void(int)> before_operator;
int operators = 0;

class Between {
 public:
  explicit Between(std::function<void(int)> callback) {
    operators = 0;
    before_operator = std::move(callback);
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
              if (depth++ == 0) before_operator(operators++);
              return nullptr;
            },
            [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~Between() { at::removeCallback(handle_); }

 private:
  at::CallbackHandle handle_;
};

std::string train() {
  torch::manual_seed(7);
  Net net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 2; ++step) {
    const at::Tensor input = torch::randn({8, 12});
    const at::Tensor loss = net->forward(input).pow(2).mean();
    adam.zero_grad();
    loss.backward();
    adam.step();
  }
  std::string result;
  for (const at::Tensor& tensor : net->parameters()) result += bits(tensor);
  for (const at::Tensor& tensor : net->buffers()) result += bits(tensor);
  return result;
}

int64_t device_bytes(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator->initialized()
             ? allocator->getDeviceStats(device.index()).requested_bytes[0].current
             : 0;
}

int64_t reserved_bytes(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator->getDeviceStats(device.index()).reserved_bytes[0].current;
}

// The sum over all devices: LibTorch's tables say where workspaces are, its allocator how large.
int64_t workspace_bytes() {
  int64_t bytes = 0;
  for (const memledger::LibraryWorkspace& one : memledger::library_workspaces()) {
    const auto blocks = memledger::device_blocks(one.device);
    REQUIRE(blocks);
    for (const memledger::DeviceSegment& segment : blocks->segments) {
      for (const memledger::DeviceBlock& block : segment.blocks) {
        if (block.address == one.address) bytes += block.requested_bytes;
      }
    }
  }
  return bytes;
}

int64_t bytes_of(const std::vector<Unmoved>& unmoved) {
  int64_t bytes = 0;
  for (const Unmoved& one : unmoved) bytes += one.nbytes;
  return bytes;
}

TEST_SUITE("courtesy on the CPU") {
  TEST_CASE("tensors of every kind come back bit for bit, views and ties with them") {
    const at::Tensor plain = torch::randn({100, 7});
    const at::Tensor view = plain.t().slice(0, 1, 4);
    const at::Tensor half = torch::randn({33}).to(at::kBFloat16);
    const at::Tensor boolean = torch::rand({5, 5}) > 0.5;
    const at::Tensor sparse = torch::eye(4).to_sparse();
    const at::Tensor empty = torch::empty({0, 3});
    const at::Tensor scalar = torch::full({}, 3.25);
    const at::Tensor large = torch::randint(0, 1 << 20, {3 << 20});
    const std::vector<at::Tensor> all = {plain,           view,  half,   boolean, sparse.indices(),
                                         sparse.values(), empty, scalar, large};
    std::vector<std::string> before;
    for (const at::Tensor& one : all) before.push_back(bits(one));
    const int64_t alive = memledger::Registry::global().counters(at::kCPU).current_bytes;
    Courtesy courtesy(cpu_to_file());
    REQUIRE_MESSAGE(courtesy.yield_memory().ok(), "yields");
    const int64_t left = memledger::Registry::global().counters(at::kCPU).current_bytes;
    CHECK(left == bytes_of(courtesy.unmoved()));
    CHECK(courtesy.yielded_bytes() == alive - left);
    CHECK(courtesy.yielded_bytes() >=
          static_cast<int64_t>(plain.nbytes() + half.nbytes() + large.nbytes()));
    CHECK(address(plain) == nullptr);
    CHECK(plain.sizes() == at::IntArrayRef({100, 7}));
    CHECK(plain.device().is_cpu());
    REQUIRE(courtesy.restore().ok());
    CHECK(courtesy.yielded_bytes() == 0);
    for (size_t i = 0; i < all.size(); ++i) CHECK(bits(all[i]) == before[i]);
    CHECK(view.storage().unsafeGetStorageImpl() == plain.storage().unsafeGetStorageImpl());
    plain.zero_();
    CHECK(view.abs().sum().item<float>() == 0);
  }

  TEST_CASE("what is asked of a yielded tensor throws, and says why") {
    const at::Tensor one = torch::ones({4});
    {
      const ScopedCourtesy away(cpu_to_file());
      for (const std::function<void()>& call : std::vector<std::function<void()>>{
               [&] { one + 1; }, [&] { one.sum().item<float>(); }, [&] { one.data_ptr<float>(); },
               [&] { one.zero_(); }, [&] { one.clone(); }, [&] { one.const_data_ptr(); }}) {
        CHECK(message_of(call).find("restore()") != std::string::npos);
      }
      CHECK(torch::ones({4}).sum().item<float>() == 4);
    }
    CHECK((one + 1).sum().item<float>() == 8);
    one.add_(1);
    CHECK(one.data_ptr<float>()[3] == 2);
  }

  TEST_CASE("a second yield moves what is new, and a second restore does nothing") {
    const at::Tensor first = torch::arange(10);
    Courtesy courtesy(cpu_to_file());
    REQUIRE(courtesy.yield_memory().ok());
    const int64_t once = courtesy.yielded_bytes();
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == once);
    const at::Tensor second = torch::arange(20);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == once + 160);
    REQUIRE(courtesy.restore().ok());
    REQUIRE(courtesy.restore().ok());
    CHECK(first[9].item<int64_t>() == 9);
    CHECK(second[19].item<int64_t>() == 19);
    // And all over again: restored storages are known.
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(address(first) == nullptr);
    REQUIRE(courtesy.restore().ok());
    CHECK(first[9].item<int64_t>() == 9);
  }

  TEST_CASE("what is back when the program's progress throws is not counted as away") {
    CourtesyOptions options = cpu_to_file();
    bool throws = false;
    options.progress = [&](const memledger::CourtesyProgress&) {
      if (throws) throw std::runtime_error("enough");
    };
    const at::Tensor tensor = torch::ones({1000});
    Courtesy courtesy(options);
    courtesy.add_tensor(tensor);
    REQUIRE(courtesy.yield_memory().ok());
    throws = true;
    CHECK_THROWS_AS(courtesy.restore().IgnoreError(), std::runtime_error);
    CHECK(courtesy.yielded_bytes() == 0);
    CHECK(tensor.sum().item<float>() == 1000);
  }

  TEST_CASE("a resize that throws while the data is away leaves no tensor beyond its storage") {
    Courtesy courtesy(cpu_to_file());
    const at::Tensor tensor = torch::ones({1000});
    courtesy.add_tensor(tensor);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK_THROWS_AS(tensor.resize_({100000}), c10::Error);
    REQUIRE(tensor.numel() == 100000);  // as LibTorch leaves it
    REQUIRE(courtesy.restore().ok());
    CHECK(tensor.storage().nbytes() >= tensor.nbytes());
    CHECK(tensor.slice(0, 0, 1000).sum().item<float>() == 1000);
    CHECK(tensor.sum().defined());
  }

  TEST_CASE(
      "what dies while it is away is not brought back, what was resized or replaced stays so") {
    at::Tensor dies = torch::ones({1000});
    const at::Tensor replaced = torch::ones({8});
    const at::Tensor resized = torch::ones({16});
    Courtesy courtesy(cpu_to_file());
    REQUIRE(courtesy.yield_memory().ok());
    const int64_t all = courtesy.yielded_bytes();
    dies.reset();
    CHECK(courtesy.yielded_bytes() == all - 4000);
    c10::StorageImpl* const storage = replaced.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::GetAllocator(at::kCPU)->allocate(32));
    static_cast<float*>(storage->_mutable_data_ptr_no_checks().get())[0] = 5;
    // What resize_(0) of a CUDA storage does; the CPU's asks for the data, and throws.
    c10::StorageImpl* const emptied = resized.storage().unsafeGetStorageImpl();
    emptied->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
    emptied->set_nbytes(0);
    REQUIRE(courtesy.restore().ok());
    CHECK(replaced.data_ptr<float>()[0] == 5);
    CHECK(address(resized) == nullptr);
    CHECK(emptied->nbytes() == 0);
    CHECK_NOTHROW(emptied->mutable_data());
  }

  TEST_CASE("only a module's tensors, with their gradients") {
    const at::Tensor other = torch::ones({10});
    Net net;
    net->forward(torch::randn({4, 12})).sum().backward();
    Courtesy courtesy(net, cpu_to_file());
    REQUIRE(courtesy.yield_memory().ok());
    // Two Linears and a BatchNorm with their gradients; running mean and variance, and the number
    // of batches.
    const int64_t parameters = (12 * 16 + 16 + 16 * 12 + 12 + 16 + 16) * 4;
    CHECK(courtesy.yielded_bytes() == 2 * parameters + 2 * 16 * 4 + 8);
    CHECK(courtesy.unmoved().empty());
    CHECK(other.sum().item<float>() == 10);
    CHECK(address(net->first->weight.grad()) == nullptr);
  }

  TEST_CASE("an undefined tensor is ignored, but only what was added moves") {
    const at::Tensor other = torch::ones({10});
    Courtesy courtesy(cpu_to_file());
    courtesy.add_tensor(at::Tensor());
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == 0);
    CHECK(courtesy.unmoved().empty());
    CHECK(other.sum().item<float>() == 10);
  }

  TEST_CASE("a child of fork restores for itself, the parent later, too" *
            doctest::skip(memledger::testing::kChildrenMayHang)) {
    const at::Tensor tensor = torch::arange(1000);
    const std::string before = bits(tensor);
    Courtesy courtesy(cpu_to_file());
    courtesy.add_tensor(tensor);
    REQUIRE(courtesy.yield_memory().ok());
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const bool restored = courtesy.restore().ok() && bits(tensor) == before;
      _exit(restored ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(courtesy.yielded_bytes() == 8000);
    REQUIRE(courtesy.restore().ok());
    CHECK(bits(tensor) == before);
  }

  TEST_CASE("a copy-on-write storage stays, and is listed") {
    const at::Tensor one = torch::ones({64});
    const at::Tensor lazy = one._lazy_clone();
    Courtesy courtesy(cpu_to_file());
    courtesy.add_tensor(one);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == 0);
    REQUIRE(courtesy.unmoved().size() == 1);
    CHECK(courtesy.unmoved()[0].nbytes == 256);
    CHECK(courtesy.unmoved()[0].reason.find("copy-on-write") != std::string::npos);
    CHECK(one.sum().item<float>() == 64);
    CHECK(lazy.sum().item<float>() == 64);
  }

  TEST_CASE("what was added and cannot be moved is listed") {
    float foreign[6] = {1, 2, 3, 4, 5, 6};
    const at::Tensor borrowed = torch::from_blob(foreign, {6});
    const at::Tensor own = torch::ones({10});
    Courtesy courtesy(cpu_to_file());
    courtesy.add_tensor(borrowed).add_tensor(own);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == 40);
    REQUIRE(courtesy.unmoved().size() == 1);
    CHECK(courtesy.unmoved()[0].device.is_cpu());
    CHECK(courtesy.unmoved()[0].nbytes == 24);
    CHECK(courtesy.unmoved()[0].reason.find("not from a watched allocator") != std::string::npos);
    CHECK(borrowed.sum().item<float>() == 21);
    // What is away already is not listed.
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.unmoved().size() == 1);
  }

  TEST_CASE("sparse tensors that were added move: their indices and values") {
    const at::Tensor coo = torch::eye(4).to_sparse();
    const at::Tensor csr = torch::eye(3).to_sparse_csr();
    const at::Tensor dense = coo.to_dense();
    Courtesy courtesy(cpu_to_file());
    courtesy.add_tensor(coo).add_tensor(csr);
    REQUIRE(courtesy.yield_memory().ok());
    for (const at::Tensor& part :
         {coo._indices(), coo._values(), csr.crow_indices(), csr.col_indices(), csr.values()}) {
      CHECK(address(part) == nullptr);
    }
    CHECK(courtesy.yielded_bytes() >= 2 * 4 * 8 + 4 * 4 + 4 * 8 + 3 * 8 + 3 * 4);
    CHECK(courtesy.unmoved().empty());
    REQUIRE(courtesy.restore().ok());
    CHECK(coo.to_dense().equal(dense));
    CHECK(csr.to_dense().equal(torch::eye(3)));
  }

  TEST_CASE("options that do not fit are refused by name") {
    CourtesyOptions options;
    options.device = at::kCPU;
    CHECK(std::string(Courtesy(options).yield_memory().message()).find("kFile") !=
          std::string::npos);
    options.device = c10::Device(at::kMeta);
    CHECK(std::string(Courtesy(options).yield_memory().message()).find("meta") !=
          std::string::npos);
    options.device = c10::Device(at::kCUDA, 77);
    CHECK(std::string(Courtesy(options).yield_memory().message()).find("cuda:77") !=
          std::string::npos);
    options = cpu_to_file();
    options.folder = "/proc/self/maps/below";
    CHECK(std::string(Courtesy(options).yield_memory().message()).find("/proc/self/maps/below") !=
          std::string::npos);
  }

  TEST_CASE("a disk that fills up half-way: all is as it was") {
    const at::Tensor small = torch::arange(100);
    const at::Tensor large = torch::arange(1 << 17);
    void* const before = address(small);
    signal(SIGXFSZ, SIG_IGN);
    rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    rlimit few = old;
    few.rlim_cur = 1 << 19;
    setrlimit(RLIMIT_FSIZE, &few);
    Courtesy courtesy(cpu_to_file());
    const absl::Status status = courtesy.yield_memory();
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(absl::IsResourceExhausted(status));
    CHECK(std::string(status.message()).find("/tmp") != std::string::npos);
    CHECK(courtesy.yielded_bytes() == 0);
    CHECK(address(small) == before);
    CHECK(large[1000].item<int64_t>() == 1000);
    REQUIRE(courtesy.yield_memory().ok());
    REQUIRE(courtesy.restore().ok());
    CHECK(large[1000].item<int64_t>() == 1000);
  }

  TEST_CASE("training with a yield and a restore before any operator ends with the same bits") {
    at::set_num_threads(1);
    const std::string bare = train();
    REQUIRE(bare == train());
    int all = 0;
    {
      const Between count([](int) {});
      train();
      all = operators;
    }
    REQUIRE(all > 100);
    const int stride = std::getenv("MEMLEDGER_FULL") != nullptr ? 1 : 3;
    for (int at = 0; at < all; at += stride) {
      int moved = 0;
      const Between between([&](int now) {
        if (now != at) return;
        Courtesy courtesy(cpu_to_file());
        REQUIRE(courtesy.yield_memory().ok());
        moved = static_cast<int>(courtesy.yielded_bytes());
        REQUIRE(courtesy.restore().ok());
      });
      CHECK_MESSAGE(train() == bare, "before operator " << at);
      if (at > 20) CHECK(moved > 0);
    }
  }

  TEST_CASE(
      "a module with its optimizer goes and comes back between any two steps: the same bits") {
    at::set_num_threads(1);
    const auto train_with =
        [](const std::function<void(const Net&, const torch::optim::Optimizer&)>& between) {
          torch::manual_seed(7);
          Net net;
          torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
          for (int step = 0; step < 3; ++step) {
            adam.zero_grad();
            net->forward(torch::randn({8, 12})).pow(2).mean().backward();
            between(net, adam);
            adam.step();
            between(net, adam);
          }
          std::string result;
          for (const at::Tensor& parameter : net->parameters()) result += bits(parameter);
          for (const at::Tensor& buffer : net->buffers()) result += bits(buffer);
          return result;
        };
    int64_t moved = 0;
    const std::string bare = train_with([](const Net&, const torch::optim::Optimizer&) {});
    const std::string courteous = train_with([&](const Net& net,
                                                 const torch::optim::Optimizer& adam) {
      Courtesy courtesy(net, cpu_to_file());
      courtesy.add_optimizer(adam);
      REQUIRE(courtesy.yield_memory().ok());
      CHECK(courtesy.unmoved().empty());
      CHECK(message_of([&] { net->first->weight.add(1); }).find("restore()") != std::string::npos);
      moved = courtesy.yielded_bytes();
      REQUIRE(courtesy.restore().ok());
    });
    CHECK(courteous == bare);
    int64_t elements = 0;
    Net net;
    for (const at::Tensor& parameter : net->parameters()) elements += parameter.numel();
    for (const at::Tensor& buffer : net->buffers()) moved -= static_cast<int64_t>(buffer.nbytes());
    // Parameter, gradient, Adam's two averages.
    CHECK(moved == 4 * 4 * elements);
  }

  TEST_CASE("progress is told, and ends at the total") {
    const at::Tensor one = torch::ones({1 << 16});
    CourtesyOptions options = cpu_to_file();
    memledger::CourtesyProgress last;
    int calls = 0;
    options.progress = [&](const memledger::CourtesyProgress& now) {
      last = now;
      ++calls;
    };
    Courtesy courtesy(options);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(calls > 0);
    CHECK(last.done_bytes == courtesy.yielded_bytes());
    CHECK_FALSE(last.restoring);
    REQUIRE(courtesy.restore().ok());
    CHECK(last.restoring);
    CHECK(last.done_bytes == last.total_bytes);
  }
}

TEST_SUITE("courtesy on a CUDA device" * doctest::skip(!torch::cuda::is_available())) {
  TEST_CASE("a training step's memory is the host's for a while, but for what is listed") {
    const c10::Device device(at::kCUDA, 0);
    for (const auto place : {CourtesyOptions::Place::kPageable, CourtesyOptions::Place::kPinned,
                             CourtesyOptions::Place::kFile}) {
      Net net;
      net->to(device);
      torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
      const at::Tensor loss = net->forward(torch::randn({8, 12}, device)).pow(2).mean();
      loss.backward();
      adam.step();
      const at::Tensor again = net->forward(torch::randn({8, 12}, device)).pow(2).mean();
      const int64_t before = device_bytes(device);
      // Two of cuBLAS, this thread's and autograd's, at LibTorch's size for the H200; up to 2.11
      // one of cuBLASLt as well, which then takes cuBLAS's.
      constexpr int64_t kOfCublas = 2 * (32 << 20);
      const int64_t workspaces = workspace_bytes();
      if (LIBTORCH_MINOR < 12) {
        CHECK(workspaces > kOfCublas);
      } else {
        CHECK(workspaces == kOfCublas);
      }
      CourtesyOptions options;
      options.place = place;
      Courtesy courtesy(options);
      REQUIRE(courtesy.yield_memory().ok());
      CHECK(device_bytes(device) == bytes_of(courtesy.unmoved()));
      CHECK(courtesy.yielded_bytes() == before - workspaces);
      CHECK(courtesy.yielded_bytes() > 3 * 4 * (12 * 16 + 16 * 12));
      CHECK(courtesy.unmoved().empty());
      CHECK(device_bytes(device) == 0);
      CHECK(reserved_bytes(device) == 0);
      CHECK(message_of([&] { again.backward(); }).find("restore()") != std::string::npos);
      REQUIRE(courtesy.restore().ok());
      CHECK(device_bytes(device) == before - workspaces);
      CHECK(net->first->weight.device() == device);
      // LibTorch makes the workspaces again: autograd's, and this thread's.
      again.backward();
      net->forward(torch::randn({8, 12}, device));
      CHECK(workspace_bytes() == workspaces);
    }
  }

  TEST_CASE("a module and its optimizer: what else is on the device stays, workspaces if wanted") {
    const c10::Device device(at::kCUDA, 0);
    const at::Tensor other = torch::ones({1000}, device);
    Net net;
    net->to(device);
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01).amsgrad(true));
    Courtesy courtesy(net);
    courtesy.add_optimizer(adam);
    // The state comes into being after that.
    net->forward(torch::randn({8, 12}, device)).pow(2).mean().backward();
    adam.step();
    int64_t elements = 0;
    for (const at::Tensor& parameter : net->parameters()) elements += parameter.numel();
    int64_t buffers = 0;
    for (const at::Tensor& buffer : net->buffers())
      buffers += static_cast<int64_t>(buffer.nbytes());
    const int64_t workspaces = workspace_bytes();
    REQUIRE(courtesy.yield_memory().ok());
    // Parameter, gradient and the three tensors of Adam with amsgrad.
    CHECK(courtesy.yielded_bytes() == 5 * 4 * elements + buffers);
    CHECK(courtesy.unmoved().empty());
    CHECK(device_bytes(device) == 4000 + workspaces);
    REQUIRE(courtesy.restore().ok());
    CourtesyOptions options;
    options.workspaces = true;
    Courtesy with(net, options);
    with.add_optimizer(adam);
    REQUIRE(with.yield_memory().ok());
    CHECK(device_bytes(device) == 4000);
    REQUIRE(with.restore().ok());
    adam.step();
  }

  TEST_CASE("workspaces of another device, which is not yielded, stay" *
            doctest::skip(torch::cuda::device_count() < 2)) {
    const c10::Device first(at::kCUDA, 0), second(at::kCUDA, 1);
    const at::Tensor here = torch::ones({16, 16}, first), there = torch::ones({16, 16}, second);
    const at::Tensor here2 = here.matmul(here), there2 = there.matmul(there);
    const int64_t both = workspace_bytes();
    CourtesyOptions options;
    options.device = second;
    Courtesy courtesy(options);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(workspace_bytes() == both);
    REQUIRE_FALSE(courtesy.unmoved().empty());
    CHECK(device_bytes(second) == bytes_of(courtesy.unmoved()));
    CHECK(courtesy.unmoved()[0].reason.find("cuBLAS") != std::string::npos);
    REQUIRE(courtesy.restore().ok());
    Courtesy all;
    REQUIRE(all.yield_memory().ok());
    CHECK(device_bytes(first) == 0);
    CHECK(device_bytes(second) == 0);
  }

  // Runs in courtesy_malloc_async_test.
  TEST_CASE("an allocator without a snapshot: nothing moves, and all is listed") {
    const c10::Device device(at::kCUDA, 0);
    const at::Tensor one = torch::empty({1000}, at::TensorOptions(device).dtype(at::kByte));
    if (memledger::device_blocks(device)) return;
    Courtesy courtesy;
    courtesy.add_tensor(one);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == 0);
    CHECK(address(one) != nullptr);
    REQUIRE(courtesy.unmoved().size() == 1);
    CHECK(courtesy.unmoved()[0].nbytes == 1000);
    CHECK(courtesy.unmoved()[0].reason.find("no snapshot") != std::string::npos);
  }

  TEST_CASE("the cache is empty afterwards") {
    const c10::Device device(at::kCUDA, 0);
    const at::Tensor large = torch::empty({64 << 20}, at::TensorOptions(device).dtype(at::kByte));
    const int64_t reserved = reserved_bytes(device);
    Courtesy courtesy;
    courtesy.add_tensor(large);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(reserved_bytes(device) <= reserved - (64 << 20));
  }

  TEST_CASE("a device that is full on restore: the rest stays away, and comes back later") {
    const c10::Device device(at::kCUDA, 0);
    const at::TensorOptions options = at::TensorOptions(device).dtype(at::kByte);
    constexpr int64_t kEach = int64_t{40} << 20;
    std::vector<at::Tensor> tensors;
    Courtesy courtesy;
    for (int i = 0; i < 4; ++i) {
      tensors.push_back(torch::empty({kEach}, options));
      courtesy.add_tensor(tensors.back());
    }
    REQUIRE(courtesy.yield_memory().ok());
    std::vector<at::Tensor> fillers;
    while (true) {
      try {
        fillers.push_back(torch::empty({kEach}, options));
      } catch (const c10::Error&) {
        break;
      }
    }
    REQUIRE(fillers.size() > 4);
    fillers.resize(fillers.size() - 2);
    const absl::Status status = courtesy.restore();
    CHECK(absl::IsResourceExhausted(status));
    CHECK(std::string(status.message())
              .find(std::to_string(2 * kEach) + " bytes are still yielded") != std::string::npos);
    CHECK(courtesy.yielded_bytes() == 2 * kEach);
    CHECK(address(tensors[1]) != nullptr);
    CHECK(address(tensors[2]) == nullptr);
    fillers.clear();
    REQUIRE(courtesy.restore().ok());
    CHECK(courtesy.yielded_bytes() == 0);
    for (const at::Tensor& one : tensors) CHECK(address(one) != nullptr);
  }

  TEST_CASE("a storage in a second device's memory comes back to it" *
            doctest::skip(torch::cuda::device_count() < 2)) {
    const c10::Device second(at::kCUDA, 1);
    const at::Tensor there = torch::ones({1000}, second);
    const at::Tensor here = torch::ones({500}, c10::Device(at::kCUDA, 0));
    CourtesyOptions options;
    options.device = second;
    Courtesy courtesy(options);
    const int64_t bytes = device_bytes(second);
    REQUIRE(courtesy.yield_memory().ok());
    CHECK(courtesy.yielded_bytes() == bytes);
    CHECK(address(here) != nullptr);
    CHECK(device_bytes(second) == 0);
    REQUIRE(courtesy.restore().ok());
    CHECK(device_bytes(second) == bytes);
    CHECK(there.device() == second);
  }
}

}  // namespace
