#include "runner/inside/holders.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/saved_tensors.h"
#include "registry/core/fork_safe_mutex.h"
#include "registry/registry.h"
#include "registry/step_history.h"
#include "reporter/formats/run_summary.h"
#include "reporter/mem_reporter.h"
#include "runner/inside/kept_results.h"
#include "text/bytes.h"

namespace memledger::inside {
namespace {

using torch::autograd::Node;

constexpr size_t kMaxTold = 2;        // of a row
constexpr size_t kLargestAlike = 10;  // kinds of rows whose holders are looked for to the end
constexpr size_t kEachAlike = 3;
constexpr size_t kMaxNodes = 200'000;
constexpr size_t kMaxAdvice = 3;
// How add_kept_results() begins, and what the advice says of it.
constexpr std::string_view kCycleOfNodes = "a cycle: ";
constexpr const char* kCycleOfNodesAdvice =
    "what ctx->saved_data has by ctx->save_for_backward(): a result there closes a cycle, which "
    "nothing frees";

struct Holder {
  HeldBy how = HeldBy::kVariable;
  std::string text, about;
};

// What one storage is held by, and how much of it tensors show.
struct Held {
  std::vector<Holder> holders;
  int64_t bytes = 0;
  // At most: elements that several tensors show are counted for each.
  int64_t shown_bytes = 0;
  bool shows_all_tensors = false;  // all tensors on it were looked at

  // Returns 577 where tensors show one part of so many, at most; 1: all, or not known.
  int64_t parts() const {
    if (!shows_all_tensors || shown_bytes <= 0 || shown_bytes > bytes / 4) return 1;
    return bytes / shown_bytes;
  }
};

using HeldById = std::unordered_map<uint64_t, Held>;

struct Sought : Held {
  bool is_large = false;
  int64_t references = 0;  // to the storage, of anybody
  std::unordered_set<const c10::TensorImpl*> tensors;
  std::unordered_set<int> keys;

  // A variable in addition to the graph is worth reporting.
  bool is_explained() const {
    return std::any_of(holders.begin(), holders.end(),
                       [](const Holder& one) { return one.how != HeldBy::kVariable; });
  }
  bool is_missing() const { return is_large && holders.empty(); }
};

struct Root {
  const c10::TensorImpl* tensor = nullptr;
  int key = -1;
  uint64_t order = 0;
};

struct Search {
  std::unordered_map<uint64_t, Sought> sought;
  std::vector<Root> roots;
  std::vector<SavedInGraph> saved;
  std::unordered_set<uint64_t> told;  // that graphs have saved
};

struct Holders {
  ForkSafeMutex lock;
  HeldById all;  // guarded by it
  std::atomic<bool> looked_up{false}, wanted{false};
};

Holders& holders() {
  static auto* const holders = new Holders;
  return *holders;
}

// Used with Python's lock, by the one search.
std::optional<Search>& search() {
  static auto* const search = new std::optional<Search>;
  return *search;
}

// A tensor that Python keeps alive. Takes no reference: Python's lock goes with those.
class BorrowedTensor {
 public:
  explicit BorrowedTensor(const c10::TensorImpl* tensor)
      : tensor_(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
            const_cast<c10::TensorImpl*>(tensor))) {}
  ~BorrowedTensor() { tensor_.unsafeReleaseTensorImpl(); }
  BorrowedTensor(BorrowedTensor&& other) noexcept : tensor_(std::move(other.tensor_)) {}
  BorrowedTensor(const BorrowedTensor&) = delete;
  BorrowedTensor& operator=(const BorrowedTensor&) = delete;
  const at::Tensor& operator*() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

std::string text_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxTold); ++i)
    text.append(i == 0 ? "" : ", ").append(names[i]);
  if (names.size() > kMaxTold)
    text.append(", ").append(std::to_string(names.size() - kMaxTold)).append(" more");
  return text;
}

// Some of each of the largest groups of rows that are alike are followed to the end, if the group
// has a hundredth of all bytes.
void mark_largest(Search& search, const std::vector<const ReportRow*>& rows, int64_t all_bytes) {
  struct Alike {
    int64_t bytes = 0;
    std::vector<uint64_t> storages;
  };
  std::map<std::string, Alike> groups;
  for (const ReportRow* const row : rows) {
    Alike& group = groups[fmt::format("{}\n{}\n{}\n{}", row->op, row->where, row->module,
                                      row->nbytes.value_or(0))];
    group.bytes += row->nbytes.value_or(0);
    if (group.storages.size() < kEachAlike) group.storages.push_back(row->storage_id);
  }
  std::vector<const Alike*> sorted;
  for (const auto& [key, group] : groups) {
    if (group.bytes >= all_bytes / 100) sorted.push_back(&group);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Alike* a, const Alike* b) { return a->bytes > b->bytes; });
  for (size_t i = 0; i < std::min(sorted.size(), kLargestAlike); ++i) {
    for (const uint64_t storage : sorted[i]->storages) search.sought[storage].is_large = true;
  }
}

// Notes the tensor as one that shows a part of the storage.
void note_shown(Sought& sought, const at::Tensor& tensor) {
  if (!sought.tensors.insert(tensor.unsafeGetTensorImpl()).second) return;
  if (!tensor.has_storage()) return;
  sought.references = static_cast<int64_t>(tensor.storage().use_count());
  sought.shown_bytes += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  // What a view was taken of lives with it, and shows nothing to anybody else.
  if (tensor.is_view()) sought.tensors.insert(tensor._base().unsafeGetTensorImpl());
}

void note_root(Search& search, const at::Tensor& tensor, int key) {
  if (!tensor.requires_grad()) return;
  const auto& node = tensor.grad_fn();
  if (node == nullptr) return;
  search.roots.push_back({tensor.unsafeGetTensorImpl(), key, node->sequence_nr()});
}

// A node's number, by which a saved tensor's row names it.
using NodeNumber = std::pair<uint64_t, uint64_t>;

// Which root leads to a node, for all nodes: an outer one has been made later.
class Roots {
 public:
  explicit Roots(Search& search) {
    std::stable_sort(search.roots.begin(), search.roots.end(),
                     [](const Root& a, const Root& b) { return a.order > b.order; });
    for (const Root& root : search.roots) {
      const BorrowedTensor tensor(root.tensor);
      if (add((*tensor).grad_fn().get(), root.key)) outer_.emplace_back(root.tensor);
      if (seen_.size() >= kMaxNodes) break;
    }
  }
  std::vector<at::Tensor> outer() const {
    std::vector<at::Tensor> tensors;
    for (const BorrowedTensor& one : outer_) tensors.push_back(*one);
    return tensors;
  }
  int key_of(const SavedTensorRow& row) const {
    const auto found = key_of_.find({row.sequence_number, row.forward_thread});
    return found == key_of_.end() ? -1 : found->second;
  }

 private:
  // Returns whether there was a new node.
  bool add(const Node* root, int key) {
    if (root == nullptr || !seen_.insert(root).second) return false;
    std::vector<const Node*> stack{root};
    while (!stack.empty() && seen_.size() < kMaxNodes) {
      const Node* const node = stack.back();
      stack.pop_back();
      key_of_.emplace(NodeNumber{node->sequence_nr(), node->thread_id()}, key);
      for (const auto& edge : node->next_edges()) {
        if (edge.function && seen_.insert(edge.function.get()).second)
          stack.push_back(edge.function.get());
      }
    }
    return true;
  }

  std::unordered_set<const Node*> seen_;
  std::map<NodeNumber, int> key_of_;
  std::vector<BorrowedTensor> outer_;
};

void look_into_graphs(Search& search) {
  const Roots roots(search);
  const std::vector<at::Tensor> outer = roots.outer();
  search.saved.clear();
  if (outer.empty()) return;
  for (const SavedTensorRow& row : saved_for_backward(outer).rows()) {
    const auto found = search.sought.find(row.storage_id);
    const int root = roots.key_of(row);
    // A result that its own node has saved.
    if (found == search.sought.end() || root < 0 || found->second.keys.count(root) > 0 ||
        found->second.is_explained())
      continue;
    if (search.told.insert(row.storage_id).second)
      search.saved.push_back({row.storage_id, root, row.node + "." + row.slot});
  }
}

std::string with_part(const Held& held, std::string text) {
  return held.parts() == 1 ? text : fmt::format("{}, which shows 1/{} of it", text, held.parts());
}

HoldersById texts_of(const HeldById& all) {
  HoldersById texts;
  for (const auto& [storage, held] : all) {
    for (const Holder& holder : held.holders)
      texts[storage].push_back(with_part(held, holder.text));
  }
  return texts;
}

HeldById held_now() {
  const std::lock_guard<ForkSafeMutex> hold(holders().lock);
  return holders().all;
}

// Returns `aten::mul at gate.cc:14` of `a cycle: aten::mul at gate.cc:14 -> its graph ->
// NODE.SLOT`, and of `NODE.SLOT in a cycle of aten::mul at gate.cc:14`; empty: it is neither.
std::string_view cycle_of(std::string_view held_by) {
  constexpr std::string_view kInCycle = " in a cycle of ";
  if (held_by.rfind(kCycleOfNodes, 0) == 0) {
    held_by.remove_prefix(kCycleOfNodes.size());
    return held_by.substr(0, held_by.find(" -> "));
  }
  const size_t in_cycle = held_by.find(kInCycle);
  if (in_cycle == std::string_view::npos) return "";
  held_by.remove_prefix(in_cycle + kInCycle.size());
  return held_by.substr(0, held_by.find(", "));
}

// Returns the results that ctx->saved_data holds of its own function.
std::set<std::string, std::less<>> cycles_of_saved_data(const DeviceReport& device) {
  std::set<std::string, std::less<>> cycles;
  for (const ReportRow& row : device.rows) {
    const bool is_one = row.held_by.rfind(kCycleOfNodes, 0) == 0;
    if (is_one && row.held_by.find(".saved_data") != std::string::npos)
      cycles.emplace(cycle_of(row.held_by));
  }
  return cycles;
}

std::string advice_text(HeldBy how, const std::string& about, int64_t bytes, int64_t parts) {
  const std::string size = readable_size(bytes);
  if (parts > 1)
    return fmt::format("to free {} of it: keep {}.clone(), as a view keeps its whole storage", size,
                       about);
  switch (how) {
    case HeldBy::kGraph:
      return fmt::format(
          "to free {} of it: keep .detach() or .item() of {} instead of its graph; "
          "torch.no_grad() makes none",
          size, about);
    case HeldBy::kException:
      return fmt::format(
          "to free {} of it: drop {} once it is handled, as its traceback holds the frames", size,
          about);
    case HeldBy::kCycle:
      return fmt::format("to free {} of it: save {}", size, about);
    case HeldBy::kVariable:
      break;
  }
  return "";
}

}  // namespace

void want_holders() noexcept { holders().wanted.store(true); }

int begin_search() noexcept {
  try {
    search().reset();
    if (!holders().wanted.load()) return 0;
    const Report report = MemReporter().collect();
    Search begun;
    std::vector<const ReportRow*> rows;
    for (const DeviceReport& device : report.devices) {
      for (const ReportRow& row : device.rows) {
        if (!row.anonymous || row.storage_id == 0 || row.storage_kind != StorageKind::kTensor)
          continue;
        begun.sought[row.storage_id].bytes = row.nbytes.value_or(0);
        rows.push_back(&row);
      }
    }
    mark_largest(begun, rows, report.total_bytes());
    const auto count = static_cast<int>(begun.sought.size());
    search() = std::move(begun);
    return count;
  } catch (...) {
    return 0;
  }
}

uint64_t look_at(const at::Tensor& tensor, int key) noexcept {
  try {
    if (!search() || !tensor.defined()) return 0;
    if (key >= 0) note_root(*search(), tensor, key);
    const uint64_t storage = Registry::global().storage_id(tensor);
    const auto found = search()->sought.find(storage);
    if (storage == 0 || found == search()->sought.end()) return 0;
    note_shown(found->second, tensor);
    if (key >= 0) found->second.keys.insert(key);
    return storage;
  } catch (...) {
    return 0;
  }
}

bool is_missing(uint64_t storage) noexcept {
  if (!search()) return false;
  const auto found = search()->sought.find(storage);
  return found != search()->sought.end() && found->second.is_missing();
}

int count_missing() noexcept {
  if (!search()) return 0;
  const auto& sought = search()->sought;
  return static_cast<int>(std::count_if(sought.begin(), sought.end(),
                                        [](const auto& one) { return one.second.is_missing(); }));
}

void add_found(uint64_t storage, HeldBy how, const char* text, const char* about) noexcept {
  try {
    if (search()) search()->sought[storage].holders.push_back({how, text, about});
  } catch (...) {
    // Without memory, a holder is missing.
  }
}

int find_in_graphs() noexcept {
  if (!search()) return 0;
  try {
    look_into_graphs(*search());
  } catch (...) {
    // Backward has freed them all, or there is no memory.
  }
  return static_cast<int>(search()->saved.size());
}

const SavedInGraph& saved_in_graph(int number) noexcept {
  return search()->saved[static_cast<size_t>(number)];
}

void end_search() noexcept {
  try {
    HeldById all;
    if (search()) {
      for (auto& [storage, sought] : search()->sought) {
        if (sought.holders.empty()) continue;
        sought.shows_all_tensors = sought.references == static_cast<int64_t>(sought.tensors.size());
        all.emplace(storage, std::move(static_cast<Held&>(sought)));
      }
    }
    search().reset();
    const std::lock_guard<ForkSafeMutex> hold(holders().lock);
    holders().all.swap(all);
    holders().looked_up.store(true);
  } catch (...) {
    // Without memory, what was found before stays.
  }
}

void forget_holders() noexcept {
  HeldById all;
  const std::lock_guard<ForkSafeMutex> hold(holders().lock);
  holders().all.swap(all);
  holders().looked_up.store(false);
}

bool looked_up_holders() noexcept { return holders().looked_up.load(); }

void add_holders_to(std::initializer_list<Report*> reports) {
  std::unordered_map<uint64_t, const std::string*> lines;
  for (const Report* const report : reports) {
    for (const DeviceReport& device : report->devices) {
      for (const ReportRow& row : device.rows) {
        if (row.storage_id != 0 && !row.where.empty()) lines.emplace(row.storage_id, &row.where);
      }
    }
  }
  HoldersById by_id = texts_of(held_now());
  add_kept_results(by_id, [&lines](uint64_t storage) {
    const auto line = lines.find(storage);
    return line == lines.end() ? std::string() : *line->second;
  });
  for (Report* const report : reports) {
    for (DeviceReport& device : report->devices) {
      for (ReportRow& row : device.rows) {
        const auto found = by_id.find(row.storage_id);
        if (row.anonymous && row.storage_id != 0 && found != by_id.end())
          row.held_by = text_of(found->second);
      }
    }
  }
}

std::vector<std::string> advice_on_holders(const DeviceReport& device) {
  struct Cause {
    int64_t bytes = 0, parts = 1;
    HeldBy how = HeldBy::kVariable;
    std::string about;
  };
  const HeldById held = held_now();
  const std::set<std::string, std::less<>> cycles = cycles_of_saved_data(device);
  std::map<std::string, Cause> causes;
  const auto add = [&causes](HeldBy how, const std::string& about, int64_t bytes) -> Cause& {
    Cause& cause = causes[std::to_string(static_cast<int>(how)) + about];
    cause.how = how;
    cause.about = about;
    cause.bytes += bytes;
    return cause;
  };
  for (const ReportRow& row : device.rows) {
    const auto found = held.find(row.storage_id);
    if (!row.anonymous || row.storage_id == 0) continue;
    if (found == held.end()) {
      if (cycles.count(cycle_of(row.held_by)) > 0)
        add(HeldBy::kCycle, kCycleOfNodesAdvice, row.nbytes.value_or(0));
      continue;
    }
    const Holder& holder = found->second.holders.front();
    const int64_t parts = found->second.parts();
    if (holder.how == HeldBy::kVariable && parts == 1) continue;
    Cause& cause = add(holder.how, without_indices(holder.about),
                       row.nbytes.value_or(0) / parts * (parts == 1 ? 1 : parts - 1));
    cause.parts = std::max(cause.parts, parts);
  }
  std::vector<Cause> sorted;
  for (auto& [key, cause] : causes) {
    if (cause.bytes >= device.total_bytes / 10) sorted.push_back(std::move(cause));
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Cause& a, const Cause& b) { return a.bytes > b.bytes; });
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(sorted.size(), kMaxAdvice); ++i)
    lines.push_back(advice_text(sorted[i].how, sorted[i].about, sorted[i].bytes, sorted[i].parts));
  return lines;
}

}  // namespace memledger::inside
