// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "tracker/layer_switches.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "registry/recording.h"

namespace memledger::layers {
namespace {

std::mutex& lock_of_all() {
  static auto* const lock = new std::mutex;
  return *lock;
}

std::vector<LayerSwitches*>& all() {
  static auto* const switches = new std::vector<LayerSwitches*>;
  return *switches;
}

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
thread_local int depth = 0;

}  // namespace

struct LayerSwitches::Hooks {
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
    if (depth++ > 0) return nullptr;
    try {
      const bool in_forward = at::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() == -1;
      const uint32_t thread = this_thread_number();
      const std::lock_guard<std::mutex> hold(lock_of_all());
      for (LayerSwitches* one : all()) {
        one->note(thread, in_forward ? consumed_layer(*one->tree_, fn) : std::nullopt, in_forward);
      }
    } catch (...) {
      // An operator must not fail because it is watched.
    }
    return nullptr;
  }
  static void on_end(const at::RecordFunction& /*fn*/, at::ObserverContext* /*context*/) {
    if (depth > 0) --depth;
  }
};

LayerSwitches::LayerSwitches(const torch::nn::Module& module) : module_(module) {
  // A child of fork must not find the lock held by a thread that it does not have.
  static const int fork_handlers =
      pthread_atfork([] { lock_of_all().lock(); }, [] { lock_of_all().unlock(); }, [] { lock_of_all().unlock(); });
  TORCH_CHECK(fork_handlers == 0, "memledger: no memory for fork handlers");
  read_module();
  const std::lock_guard<std::mutex> hold(lock_of_all());
  all().push_back(this);
  if (all().size() > 1) return;
  if (handle != at::INVALID_CALLBACK_HANDLE) {
    at::reenableCallback(handle);
  } else {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&Hooks::on_start, &Hooks::on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
}

LayerSwitches::~LayerSwitches() {
  const std::lock_guard<std::mutex> hold(lock_of_all());
  all().erase(std::remove(all().begin(), all().end(), this), all().end());
  if (all().empty()) at::disableCallback(handle);
}

void LayerSwitches::read_module() {
  // Names and parameters are read only.
  auto tree = std::make_unique<ModuleTree>(const_cast<torch::nn::Module&>(module_));
  const std::lock_guard<std::mutex> hold(lock_of_all());
  tree_.swap(tree);
  threads_.clear();  // the layers in them are the old tree's
}

void LayerSwitches::note(uint32_t thread, std::optional<size_t> layer, bool in_forward) {
  if (in_forward && !layer.has_value()) return;
  std::vector<Switch>& mine = threads_[thread];
  const std::optional<size_t> before = mine.empty() ? std::nullopt : mine.back().layer;
  if (before != layer) mine.push_back({recording_clock_ns(), layer});
}

std::optional<size_t> LayerSwitches::at(uint32_t thread, int64_t time_ns) const {
  const std::lock_guard<std::mutex> hold(lock_of_all());
  const auto found = threads_.find(thread);
  if (found == threads_.end()) return std::nullopt;
  const auto after = std::upper_bound(found->second.begin(), found->second.end(), time_ns,
                                      [](int64_t time, const Switch& one) { return time < one.time_ns; });
  if (after == found->second.begin()) return std::nullopt;
  return std::prev(after)->layer;
}

void LayerSwitches::leave_all() {
  const std::lock_guard<std::mutex> hold(lock_of_all());
  for (auto& [thread, switches] : threads_) {
    if (!switches.empty() && switches.back().layer.has_value()) switches.push_back({recording_clock_ns(), std::nullopt});
  }
}

void LayerSwitches::forget_before(int64_t time_ns) {
  const std::lock_guard<std::mutex> hold(lock_of_all());
  for (auto& [thread, switches] : threads_) {
    const auto after = std::upper_bound(switches.begin(), switches.end(), time_ns,
                                        [](int64_t time, const Switch& one) { return time < one.time_ns; });
    if (after != switches.begin()) switches.erase(switches.begin(), std::prev(after));
  }
}

}  // namespace memledger::layers
