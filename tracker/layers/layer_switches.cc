// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "tracker/layers/layer_switches.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/recording.h"

namespace memledger::layers {

class LayerSwitches::Threads {
 public:
  // Begins with a tree; notes by an earlier one are dropped from now on.
  void begin(const ModuleTree* tree) {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    tree_ = tree;
    switches_.clear();
  }
  // Unless it `enters`, a thread outside layers stays there.
  void note(const ModuleTree* tree, uint32_t thread, std::optional<size_t> layer, bool enters) {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    if (tree != tree_) return;
    std::vector<Switch>& mine = switches_[thread];
    const std::optional<size_t> before = mine.empty() ? std::nullopt : mine.back().layer;
    if (before != layer && (enters || before.has_value()))
      mine.push_back({recording_clock_ns(), layer});
  }
  std::optional<size_t> at(uint32_t thread, int64_t time_ns) const {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    const auto switches = switches_.find(thread);
    if (switches == switches_.end()) return std::nullopt;
    const auto after = first_after(switches->second, time_ns);
    if (after == switches->second.begin()) return std::nullopt;
    return std::prev(after)->layer;
  }
  void leave_all() {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    for (auto& [thread, switches] : switches_) {
      if (!switches.empty() && switches.back().layer.has_value())
        switches.push_back({recording_clock_ns(), std::nullopt});
    }
  }
  void forget_before(int64_t time_ns) {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    for (auto& [thread, switches] : switches_) {
      const auto after = first_after(switches, time_ns);
      if (after != switches.begin()) switches.erase(switches.begin(), std::prev(after));
    }
  }

 private:
  struct Switch {
    int64_t time_ns;
    std::optional<size_t> layer;
  };
  static std::vector<Switch>::const_iterator first_after(const std::vector<Switch>& switches,
                                                         int64_t time_ns) {
    return std::upper_bound(
        switches.begin(), switches.end(), time_ns,
        [](int64_t time, const Switch& change) { return time < change.time_ns; });
  }

  mutable ForkSafeMutex lock_;
  const ModuleTree* tree_ = nullptr;  // compared only
  std::map<uint32_t, std::vector<Switch>> switches_;
};

namespace {

struct Follower {
  std::shared_ptr<LayerSwitches::Threads> threads;
  std::shared_ptr<const ModuleTree> tree;
};
using Followers = std::vector<Follower>;

// The list is replaced, never changed, so an operator can look at its inputs without the lock.
struct All {
  ForkSafeMutex lock;
  std::shared_ptr<const Followers> followers = std::make_shared<const Followers>();
};

// Never destroyed: operators run while the program ends.
All& all() {
  static auto* const instance = new All;
  return *instance;
}

std::shared_ptr<const Followers> followers() {
  const std::lock_guard<ForkSafeMutex> hold(all().lock);
  return all().followers;
}

// Begins to follow by a tree, or stops with a null one.
void follow(const std::shared_ptr<LayerSwitches::Threads>& threads,
            std::shared_ptr<const ModuleTree> tree) {
  std::shared_ptr<const Followers> before;  // released without the lock
  const std::lock_guard<ForkSafeMutex> hold(all().lock);
  auto now = std::make_shared<Followers>();
  for (const Follower& follower : *all().followers) {
    if (follower.threads != threads) now->push_back(follower);
  }
  if (tree != nullptr) now->push_back({threads, std::move(tree)});
  before = std::exchange(all().followers, std::move(now));
}

std::atomic<int> last_pass{-1};     // LibTorch's number of the last backward pass of any thread
thread_local int pass_before = -1;  // when the thread's last operator with grad mode on began
thread_local int depth = 0;

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (depth++ > 0) return nullptr;
  try {
    const int pass = torch::autograd::get_current_graph_task_id();
    if (pass != -1) last_pass.store(pass, std::memory_order_relaxed);
    const bool grad_mode = at::GradMode::is_enabled();
    const int last = last_pass.load(std::memory_order_relaxed);  // another thread's, perhaps
    if (grad_mode) pass_before = last;
    const bool is_over = pass != -1 || pass_before != last;
    const uint32_t thread = this_thread_number();
    const std::shared_ptr<const Followers> now = followers();
    for (const Follower& follower : *now) {
      const std::optional<size_t> layer =
          is_over ? std::nullopt : consumed_layer(*follower.tree, fn);
      if (is_over || layer.has_value())
        follower.threads->note(follower.tree.get(), thread, layer, /*enters=*/grad_mode);
    }
  } catch (...) {
    // An operator must not fail because it is watched.
  }
  return nullptr;
}

void on_end(const at::RecordFunction& /*fn*/, at::ObserverContext* /*context*/) {
  if (depth > 0) --depth;
}

// Has LibTorch call back while somebody follows. That call is made without our lock, so its caller
// looks again.
void match_callback() {
  static const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                .needsInputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  for (bool wanted = !followers()->empty();;) {
    wanted ? at::reenableCallback(handle) : at::disableCallback(handle);
    const bool told = std::exchange(wanted, !followers()->empty());
    if (told == wanted) return;
  }
}

}  // namespace

LayerSwitches::LayerSwitches(const torch::nn::Module& module, bool can_follow)
    : module_(module), can_follow_(can_follow), threads_(std::make_shared<Threads>()) {
  read_module();
  if (can_follow_) match_callback();
}

LayerSwitches::~LayerSwitches() {
  if (!can_follow_) return;
  try {
    follow(threads_, nullptr);
    match_callback();
  } catch (const std::bad_alloc&) {
    // The callback stays, and does nothing.
  }
}

void LayerSwitches::read_module() {
  std::shared_ptr<const ModuleTree> tree;
  if (const auto module = module_.lock()) {
    // ModuleTree only reads names and parameters.
    tree = std::make_shared<const ModuleTree>(const_cast<torch::nn::Module&>(*module));
  } else {
    tree = std::make_shared<const ModuleTree>(tree_->layers().front());
  }
  threads_->begin(tree.get());  // the layers in it are the old tree's
  if (can_follow_) follow(threads_, tree);
  tree_ = std::move(tree);
}

std::optional<size_t> LayerSwitches::at(uint32_t thread, int64_t time_ns) const {
  return threads_->at(thread, time_ns);
}

void LayerSwitches::leave_all() { threads_->leave_all(); }

void LayerSwitches::forget_before(int64_t time_ns) { threads_->forget_before(time_ns); }

}  // namespace memledger::layers
