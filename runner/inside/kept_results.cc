#include "runner/inside/kept_results.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "graph/saved_tensors.h"
#include "registry/core/fork_safe_mutex.h"
#include "registry/libtorch/tensors_of.h"
#include "registry/registry.h"

namespace memledger::inside {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

constexpr size_t kMaxResults = 16384;
constexpr size_t kMaxHolders = 65536;
constexpr uint64_t kMaxWithoutStep = 50000;  // operators of a program that takes no step
constexpr uint64_t kFirstSteps = 4;

struct Result {
  WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  std::string op;
  uint64_t step = 0;   // the one that was under way, from 1
  uint64_t order = 0;  // by which the newest is found
};

using ResultsByTensor = std::unordered_map<const c10::TensorImpl*, Result>;

struct Results {
  ForkSafeMutex lock;
  ResultsByTensor all;  // guarded by it, as what follows
  HoldersById held;
  uint64_t steps = 0, seen = 0;
  // Makes graphs, alone. Where several threads do, one may clear the gradients that another's walk
  // reads: nothing is looked at then.
  std::optional<pthread_t> trainer;
  bool has_many_trainers = false;
  // is_looking is changed with the lock, and LibTorch is told of it without.
  std::atomic<bool> is_looking{false};
  std::atomic<at::CallbackHandle> callback{0};
  std::atomic<bool> is_telling{false};
};

Results& results() {
  static auto* const results = new Results;
  return *results;
}

// A result's own destruction, where it was the last to hold it, is no operator's work.
thread_local bool is_walking = false;

// Moves them to `ended`, which the caller destroys once it has let go of the lock: LibTorch frees
// what the last weak reference has kept.
void forget_ended(Results& results, ResultsByTensor& ended) {
  for (auto entry = results.all.begin(); entry != results.all.end();) {
    const auto one = entry++;
    if (one->second.tensor.expired()) ended.insert(results.all.extract(one));
  }
}

bool is_trainer(const Results& results) {
  return results.trainer && pthread_equal(*results.trainer, pthread_self()) != 0;
}

// Has LibTorch call us as is_looking says. Call it without the lock, as LibTorch takes its own. A
// thread that finds another one at it leaves it to that one.
void tell_whether_looking(Results& results) {
  const at::CallbackHandle callback = results.callback.load();
  if (callback == 0) return;
  bool told = false;
  do {
    if (results.is_telling.exchange(true)) return;
    told = results.is_looking.load();
    if (told) {
      at::reenableCallback(callback);
    } else {
      at::disableCallback(callback);
    }
    results.is_telling.store(false);
  } while (results.is_looking.load() != told);
}

// The operator's inputs: what it returns of them, it has not made.
struct Inputs : at::ObserverContext {
  c10::SmallVector<const c10::TensorImpl*, 8> all;

  void add(const at::Tensor& tensor) { all.push_back(tensor.unsafeGetTensorImpl()); }
  bool has(const at::Tensor& tensor) const {
    return std::find(all.begin(), all.end(), tensor.unsafeGetTensorImpl()) != all.end();
  }
};

std::unique_ptr<at::ObserverContext> take_inputs(const at::RecordFunction& fn) {
  if (is_walking) return nullptr;
  try {
    auto inputs = std::make_unique<Inputs>();
    for (const c10::IValue& input : fn.inputs())
      for_each_tensor(input, [&](const at::Tensor& tensor) { inputs->add(tensor); });
    return inputs;
  } catch (...) {
    return nullptr;  // without memory, its results are missing
  }
}

// Returns whether one more result is to be noted. Call it with the lock.
bool takes_one_more(Results& results, bool has_graph, ResultsByTensor& ended) {
  if (has_graph) {
    if (!results.trainer) results.trainer = pthread_self();
    if (!is_trainer(results)) {
      results.has_many_trainers = true;
      results.all.swap(ended);
      return false;
    }
  }
  if (results.all.size() >= kMaxResults) {
    forget_ended(results, ended);
    if (results.all.size() >= kMaxResults / 2) return false;
  }
  return ++results.seen <= kMaxWithoutStep || results.steps != 0;
}

// Returns whether to look at further ones.
bool note(Results& results, const at::Tensor& tensor, std::string op) {
  WeakTensor weak(tensor.getIntrusivePtr());
  const bool has_graph = tensor.requires_grad();
  ResultsByTensor ended;  // destroyed without the lock
  const std::lock_guard<ForkSafeMutex> hold(results.lock);
  if (!results.is_looking.load()) return true;
  if (!takes_one_more(results, has_graph, ended)) {
    results.is_looking.store(false);
    return false;
  }
  // The outermost operator ends last: its name is the one that the program knows.
  Result& result = results.all[tensor.unsafeGetTensorImpl()];
  result.tensor = std::move(weak);
  result.op = std::move(op);
  result.step = results.steps + 1;
  result.order = results.seen;
  return true;
}

void note(const at::Tensor& tensor, const Inputs& inputs, const at::RecordFunction& fn) {
  if (!tensor.defined() || inputs.has(tensor)) return;
  Results& results = inside::results();
  if (!note(results, tensor, fn.name())) tell_whether_looking(results);
}

void note_results(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto& inputs = static_cast<const Inputs&>(*context);
  try {
    for (const c10::IValue& output : fn.outputs())
      for_each_tensor(output, [&](const at::Tensor& tensor) { note(tensor, inputs, fn); });
  } catch (...) {
    // Without memory, a result is missing.
  }
}

struct Kept {
  at::Tensor tensor;
  std::string what;  // aten::sum [step 2]
  uint64_t order = 0;
};

// Returns what the results hold that were made before the step `now`.
HoldersById held_before(uint64_t now) {
  std::vector<Kept> kept;
  ResultsByTensor ended;
  {
    Results& results = inside::results();
    const std::lock_guard<ForkSafeMutex> hold(results.lock);
    if (results.has_many_trainers || !is_trainer(results)) return {};
    forget_ended(results, ended);
    for (auto& [address, result] : results.all) {
      if (result.step >= now) continue;
      if (auto tensor = result.tensor.lock()) {
        kept.push_back({at::Tensor(std::move(tensor)),
                        result.op + " [step " + std::to_string(result.step) + "]", result.order});
      }
    }
  }
  std::sort(kept.begin(), kept.end(),
            [](const Kept& a, const Kept& b) { return a.order > b.order; });
  HoldersById held;
  SavedCounts saved;
  size_t graphs = 0;
  for (const Kept& one : kept) {
    const uint64_t id = Registry::global().storage_id(one.tensor);
    const auto by_graphs =
        saved.find(reinterpret_cast<uintptr_t>(one.tensor.unsafeGetTensorImpl()));
    const auto others = static_cast<int64_t>(one.tensor.use_count()) - 1 -
                        (by_graphs == saved.end() ? 0 : by_graphs->second);
    // A newer graph holds it, and nothing else does.
    if (others <= 0) continue;
    if (id != 0) {
      held[id].push_back("the program (" + std::to_string(others) +
                         (others == 1 ? " reference" : " references") + " to " + one.what + ")");
    }
    if (one.tensor.grad_fn() == nullptr || graphs == kMaxGraphs) continue;
    ++graphs;
    add_graph(held, one.tensor, one.what, &saved);
  }
  return held;
}

// Returns it without running the program's code for longer than the walk takes.
HoldersById walk(uint64_t now) {
  is_walking = true;
  struct Back {
    ~Back() { is_walking = false; }
  } const back;
  return held_before(now);
}

bool is_power_of_two(uint64_t number) { return (number & (number - 1)) == 0; }

}  // namespace

void add_graph(HoldersById& holders, const at::Tensor& root, const std::string& name,
               SavedCounts* counts) {
  std::unordered_set<uint64_t> told;
  try {
    for (const SavedTensorRow& row : saved_for_backward(root).rows()) {
      if (counts != nullptr) ++(*counts)[row.tensor];
      // One of the slots that have it.
      if (row.storage_id != 0 && told.insert(row.storage_id).second)
        holders[row.storage_id].push_back(row.node + "." + row.slot + " in the graph of " + name);
    }
  } catch (const c10::Error&) {
    // Backward has freed it.
  }
}

void look_at_results() noexcept {
  try {
    Results& results = inside::results();
    static std::atomic<bool> is_asked{false};
    if (is_asked.exchange(true)) return;
    results.is_looking.store(true);
    results.callback.store(
        at::addGlobalCallback(at::RecordFunctionCallback(&take_inputs, &note_results)
                                  .needsInputs(true)
                                  .needsOutputs(true)
                                  .scopes({at::RecordScope::FUNCTION})));
    // What has changed meanwhile could not be told.
    if (!results.is_looking.load()) tell_whether_looking(results);
  } catch (...) {
    // Without memory, nobody is said to hold anything.
  }
}

void note_end_of_step() noexcept {
  try {
    Results& results = inside::results();
    uint64_t step = 0;
    bool is_due = false, changes = false;
    {
      const std::lock_guard<ForkSafeMutex> hold(results.lock);
      if (results.callback.load() == 0 || results.has_many_trainers) return;
      step = ++results.steps;
      const bool looks_next = step < kFirstSteps || is_power_of_two(step + 1);
      is_due = step <= kFirstSteps + 1 || is_power_of_two(step - 1);
      changes = results.is_looking.exchange(looks_next) != looks_next;
    }
    if (changes) tell_whether_looking(results);
    if (!is_due || step == 1) return;
    HoldersById held = walk(step);
    const std::lock_guard<ForkSafeMutex> hold(results.lock);
    if (results.held.size() > kMaxHolders) results.held.clear();
    for (auto& [id, names] : held) results.held[id] = std::move(names);
  } catch (...) {
    // Without memory, nobody is said to hold what is new.
  }
}

void add_kept_results(HoldersById& holders) {
  HoldersById all = walk(UINT64_MAX);
  {
    Results& results = inside::results();
    const std::lock_guard<ForkSafeMutex> hold(results.lock);
    for (const auto& [id, names] : results.held) all.try_emplace(id, names);
  }
  for (auto& [id, names] : all) {
    std::vector<std::string>& told = holders[id];
    told.insert(told.end(), names.begin(), names.end());
  }
}

}  // namespace memledger::inside
