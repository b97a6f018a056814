// Names from the program's calls of LibTorch.
#include <c10/util/Type.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/data/datasets/mnist.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/live_storages.h"
#include "registry/registry.h"
#include "registry/scoped.h"
#include "reporter/names/program_names.h"
#include "runner/inside/kept_results.h"
#include "runner/inside/torch_calls.h"

namespace memledger::inside {
namespace {

using LossClosure = std::function<at::Tensor()>;

// How many parameters and buffers have been registered. A module is read again only if that has
// changed.
std::atomic<uint64_t> registrations{1};

// What was read of one object. The states of an optimizer rarely change after its first steps, and
// the constants of a compiled model hardly ever, so they are read at the first three and at each
// power of two.
struct Read {
  uint64_t at_registrations = 0;  // of a module
  uint64_t steps = 0;             // of an optimizer, and runs of a compiled model
};

struct Seen {
  ForkSafeMutex lock;
  std::unordered_map<uintptr_t, Read> by_object;  // guarded by it
};

// Never destroyed: programs train after main, too.
Seen& seen() {
  static auto* const seen = new Seen;
  return *seen;
}

// Objects end unseen, and others take their addresses.
constexpr size_t kMaxObjects = 4096;

Read& read_of(Seen& all, uintptr_t object) {
  if (all.by_object.size() >= kMaxObjects) all.by_object.clear();
  return all.by_object[object];
}

// Modules call each other's functions, and reading one calls them, too: the outermost call of a
// thread stands for all.
thread_local int depth = 0;

class Inside {
 public:
  Inside() { ++depth; }
  ~Inside() { --depth; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

template <typename T>
const T& object(uintptr_t address) {
  return *reinterpret_cast<const T*>(address);
}

void see_module(uintptr_t address, bool is_changed) noexcept {
  try {
    const uint64_t now = registrations.load(std::memory_order_relaxed);
    {
      const std::lock_guard<ForkSafeMutex> hold(seen().lock);
      Read& read = read_of(seen(), address);
      if (!is_changed && read.at_registrations == now) return;
      read.at_registrations = now;
    }
    ProgramNames::global().note(object<torch::nn::Module>(address));
  } catch (...) {
    // Without memory, names are missing.
  }
}

void see_new_optimizer(uintptr_t address) noexcept {
  try {
    const std::lock_guard<ForkSafeMutex> hold(seen().lock);
    read_of(seen(), address).steps = 0;
  } catch (...) {
  }
}

bool is_due(uintptr_t stepped) noexcept {
  try {
    const std::lock_guard<ForkSafeMutex> hold(seen().lock);
    const uint64_t steps = ++read_of(seen(), stepped).steps;
    return steps <= 3 || (steps & (steps - 1)) == 0;
  } catch (...) {
    return false;
  }
}

void* call(TorchFunction function, const TorchArguments& arguments) {
  const auto& [a, b, c, d, e] = arguments.of;
  return function(a, b, c, d, e);
}

// The name is copied before the call, which moves it away.
void* register_tensor(TorchFunction function, const TorchArguments& arguments, Role role) {
  std::string name;
  try {
    name = object<std::string>(arguments.of[1]);
  } catch (...) {
    return call(function, arguments);
  }
  void* const returned = call(function, arguments);
  const Inside inside;
  ProgramNames::global().note_registered(object<torch::nn::Module>(arguments.of[0]), name, role,
                                         *static_cast<const at::Tensor*>(returned));
  return returned;
}

// Begins the label that Python's scope of a step has, too: Optimizer.step#Adam.step. Without memory
// for it, the step has none.
void enter_step(std::optional<ScopedLabel>& label,
                const torch::optim::Optimizer& optimizer) noexcept {
  try {
    const std::string type = c10::demangle(typeid(optimizer).name());
    label.emplace(std::string(kOptimizerStep) + type.substr(type.rfind(':') + 1) + ".step");
  } catch (...) {
  }
}

void* step(TorchFunction function, const TorchArguments& arguments) {
  const auto [result, optimizer, closure, d, e] = arguments.of;
  void* returned = nullptr;
  {
    // A closure computes the loss again, which is no optimizer's work.
    std::optional<ScopedPhase> phase;
    std::optional<ScopedLabel> label;
    if (object<LossClosure>(closure) == nullptr) {
      phase.emplace(Phase::kOptimizer);
      enter_step(label, object<torch::optim::Optimizer>(optimizer));
    }
    returned = call(function, arguments);
  }
  if (is_due(optimizer)) {
    const Inside inside;
    ProgramNames::global().note_step(object<torch::optim::Optimizer>(optimizer));
  }
  note_end_of_step();
  return returned;
}

// What a compiled model makes itself, no operator does: a label says whose it is.
void* run_compiled(TorchFunction function, const TorchArguments& arguments) {
  using torch::inductor::AOTIModelContainerRunner;
  const auto [result, runner, inputs, stream, e] = arguments.of;
  const bool reads = is_due(runner);
  if (reads) {
    const Inside inside;
    // Before the run, which may take the inputs for itself.
    ProgramNames::global().note_inputs(object<std::vector<at::Tensor>>(inputs));
  }
  void* returned = nullptr;
  {
    const ScopedLabel label(kCompiledModel);
    returned = call(function, arguments);
  }
  if (reads) {
    const Inside inside;
    ProgramNames::global().note(object<AOTIModelContainerRunner>(runner));
  }
  return returned;
}

void* read_mnist(TorchFunction function, const TorchArguments& arguments) {
  void* returned = nullptr;
  {
    const ScopedLabel label(kMnist);
    returned = call(function, arguments);
  }
  const Inside inside;
  const auto& read = object<torch::data::datasets::MNIST>(arguments.of[0]);
  ProgramNames::global().note_input(std::string(kMnist) + ".images", read.images());
  ProgramNames::global().note_input(std::string(kMnist) + ".targets", read.targets());
  return returned;
}

}  // namespace
}  // namespace memledger::inside

extern "C" __attribute__((visibility("default"))) void* memledger_call_torch(
    memledger::inside::TorchCall what, memledger::inside::TorchFunction function,
    memledger::inside::TorchArguments arguments) {
  using namespace memledger::inside;
  const bool registers =
      what == TorchCall::kParameterRegistration || what == TorchCall::kBufferRegistration;
  if (registers) registrations.fetch_add(1, std::memory_order_relaxed);
  if (what == TorchCall::kDefaultCpuAllocator) {
    auto* const allocator = static_cast<c10::Allocator*>(call(function, arguments));
    return memledger::Registry::global().active() ? memledger::watched_cpu_allocator(allocator)
                                                  : allocator;
  }
  if (depth > 0 || !memledger::Registry::global().active()) return call(function, arguments);
  if (what == TorchCall::kOptimizerStep) return step(function, arguments);
  if (what == TorchCall::kCompiledRun) return run_compiled(function, arguments);
  if (what == TorchCall::kMnist) return read_mnist(function, arguments);
  if (registers) {
    return register_tensor(function, arguments,
                           what == TorchCall::kParameterRegistration ? memledger::Role::kParameter
                                                                     : memledger::Role::kBuffer);
  }
  const Inside inside;
  void* const returned = call(function, arguments);
  switch (what) {
    case TorchCall::kModuleGetter:
      see_module(arguments.of[1], /*is_changed=*/false);
      break;
    case TorchCall::kModuleUse:
      see_module(arguments.of[0], /*is_changed=*/false);
      break;
    case TorchCall::kModuleChange:
      see_module(arguments.of[0], /*is_changed=*/true);
      break;
    case TorchCall::kOptimizerChange:
      see_new_optimizer(arguments.of[0]);
      break;
    case TorchCall::kScriptLoad:
      memledger::ProgramNames::global().note(object<torch::jit::Module>(arguments.of[0]));
      break;
    default:
      break;
  }
  return returned;
}
