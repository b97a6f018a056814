#include "runner/inside/kept_results.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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
constexpr uint64_t kMaxWithoutStep = 50000;  // results of a program that takes no step
constexpr uint64_t kFirstSteps = 4;
constexpr size_t kMaxGraphsAtEnd = 1024;  // of a report

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
  // Made the first result, and all others: where nobody makes graphs, this one alone looks.
  std::optional<pthread_t> maker;
  bool has_many_makers = false;
  // is_looking is changed with the lock, and LibTorch is called for it without.
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

bool is_self(const std::optional<pthread_t>& thread) {
  return thread && pthread_equal(*thread, pthread_self()) != 0;
}

bool is_trainer(const Results& results) { return is_self(results.trainer); }

// Whether no other thread may be writing what a walk reads.
bool may_walk(const Results& results) {
  if (results.has_many_trainers) return false;
  return results.trainer ? is_trainer(results) : is_self(results.maker) && !results.has_many_makers;
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
  if (!results.maker) results.maker = pthread_self();
  if (!is_self(results.maker)) results.has_many_makers = true;
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

// Returns the results that were made before the step `now`, the newest first; none on a thread
// that must not walk their graphs.
std::vector<Kept> results_before(uint64_t now) {
  std::vector<Kept> kept;
  ResultsByTensor ended;
  {
    Results& results = inside::results();
    const std::lock_guard<ForkSafeMutex> hold(results.lock);
    if (!may_walk(results)) return {};
    forget_ended(results, ended);
    for (auto& [address, result] : results.all) {
      if (result.step >= now) continue;
      if (auto tensor = result.tensor.lock()) {
        // Without an optimizer there are no steps.
        const std::string step =
            results.steps == 0 ? "" : " [step " + std::to_string(result.step) + "]";
        kept.push_back({at::Tensor(std::move(tensor)), result.op + step, result.order});
      }
    }
  }
  std::sort(kept.begin(), kept.end(),
            [](const Kept& a, const Kept& b) { return a.order > b.order; });
  return kept;
}

void append(HoldersById& holders, HoldersById more) {
  for (auto& [id, names] : more) {
    std::vector<std::string>& told = holders[id];
    for (std::string& name : names) told.push_back(std::move(name));
  }
}

int64_t count_of(const SavedCounts& counts, const at::Tensor& tensor) {
  const auto found = counts.find(reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()));
  return found == counts.end() ? 0 : found->second;
}

// Walks the graphs of results, the newest first, until enough of them are walked or it is late.
class Walk {
 public:
  // The time begins here.
  Walk(size_t max_graphs, const LineOfStorage& line_of)
      : max_graphs_(max_graphs), line_of_(line_of) {}

  // Returns false once it stops: graphs that go unwalked may be all that holds what is older.
  bool add(const Kept& one) {
    if (std::chrono::steady_clock::now() >= end_) return false;
    // A newer graph holds it, and nothing else does.
    const int64_t uses = static_cast<int64_t>(one.tensor.use_count()) - 1;
    const int64_t references = uses - count_of(saved_, one.tensor);
    if (references <= 0) return true;
    const bool has_graph = one.tensor.grad_fn() != nullptr;
    if (has_graph && graphs_ == max_graphs_) return false;
    const Named named = name(one);
    if (!has_graph) {
      used_.push_back({&one.tensor, named, uses});
      return true;
    }
    // Its own graph may be all that holds it.
    ++graphs_;
    SavedCounts own;
    HoldersById in_graph;
    add_graph(in_graph, one.tensor, named.what, &own);
    if (count_of(saved_, one.tensor) == 0 && count_of(own, one.tensor) >= references) {
      add_cycle(named, std::move(in_graph));
    } else {
      used_.push_back({&one.tensor, named, uses});
      append(held_, std::move(in_graph));
    }
    for (const auto& [tensor, count] : own) saved_[tensor] += count;
    return true;
  }
  // Call it while what was added lives.
  HoldersById take() {
    // A custom function may have saved what was made after its result.
    for (const Used& one : used_) add_reference(one.name, one.uses - count_of(saved_, *one.tensor));
    return std::move(held_);
  }

 private:
  static constexpr std::chrono::milliseconds kMaxTime{200};

  struct Named {
    uint64_t storage = 0;
    std::string what;  // aten::sum [step 2] at train.cc:88
  };
  struct Used {
    const at::Tensor* tensor = nullptr;
    Named name;
    int64_t uses = 0;  // of anybody
  };
  Named name(const Kept& one) const {
    Named named{Registry::global().storage_id(one.tensor), one.what};
    const std::string line = named.storage == 0 || !line_of_ ? "" : line_of_(named.storage);
    // Without the function, which may have a name of hundreds of characters.
    if (!line.empty()) named.what += " at " + line.substr(0, line.find(' '));
    return named;
  }
  void add_reference(const Named& one, int64_t references) {
    if (one.storage == 0 || references <= 0) return;
    std::vector<std::string>& holders = held_[one.storage];
    holders.insert(holders.begin(), "the program (" + std::to_string(references) +
                                        (references == 1 ? " reference" : " references") + " to " +
                                        one.what + ")");
  }
  // The program reaches none of it any more.
  void add_cycle(const Named& one, HoldersById in_graph) {
    if (const auto own = in_graph.find(one.storage); own != in_graph.end()) {
      const std::string slot = own->second.front().substr(0, own->second.front().find(" in the "));
      held_[one.storage].push_back("a cycle: " + one.what + " -> its graph -> " + slot);
      in_graph.erase(own);
    }
    for (auto& [id, names] : in_graph) {
      for (std::string& name : names)
        name.replace(name.find("in the graph of"), 15, "in a cycle of");
    }
    append(held_, std::move(in_graph));
  }

  const size_t max_graphs_;
  const LineOfStorage& line_of_;
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + kMaxTime;
  HoldersById held_;
  SavedCounts saved_;  // by all graphs so far
  std::vector<Used> used_;
  size_t graphs_ = 0;
};

// Returns what the results hold that were made before the step `now`, without running the program's
// code for longer than the walk takes. `line_of` may be empty.
HoldersById walk(uint64_t now, size_t max_graphs, const LineOfStorage& line_of) {
  is_walking = true;
  struct Back {
    ~Back() { is_walking = false; }
  } const back;
  Walk walk(max_graphs, line_of);
  const std::vector<Kept> kept = results_before(now);
  for (const Kept& one : kept) {
    if (!walk.add(one)) break;
  }
  return walk.take();
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
    // Changes meanwhile could not be followed.
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
    HoldersById held = walk(step, kMaxGraphs, {});
    const std::lock_guard<ForkSafeMutex> hold(results.lock);
    if (results.held.size() > kMaxHolders) results.held.clear();
    for (auto& [id, names] : held) results.held[id] = std::move(names);
  } catch (...) {
    // Without memory, nobody is said to hold what is new.
  }
}

void add_kept_results(HoldersById& holders, const LineOfStorage& line_of) {
  HoldersById all = walk(UINT64_MAX, kMaxGraphsAtEnd, line_of);
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
