#include "runner/inside/holders.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/registry.h"
#include "runner/inside/kept_results.h"

namespace memledger::inside {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

constexpr size_t kMaxTold = 2;  // of a row

struct Holder {
  std::string name;
  WeakTensor tensor;
};

struct Holders {
  ForkSafeMutex lock;
  std::vector<Holder> all;  // guarded by it
};

Holders& holders() {
  static auto* const holders = new Holders;
  return *holders;
}

std::string text_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxTold); ++i)
    text.append(i == 0 ? "" : ", ").append(names[i]);
  if (names.size() > kMaxTold)
    text.append(", ").append(std::to_string(names.size() - kMaxTold)).append(" more");
  return text;
}

HoldersById holders_by_id() {
  std::vector<Holder> all;
  {
    const std::lock_guard<ForkSafeMutex> hold(holders().lock);
    all = holders().all;
  }
  // Without the lock: Python takes one of its own when its tensors get or lose references.
  std::vector<std::pair<std::string, at::Tensor>> living;
  for (const Holder& holder : all) {
    if (auto tensor = holder.tensor.lock())
      living.emplace_back(holder.name, at::Tensor(std::move(tensor)));
  }
  HoldersById by_id;
  for (const auto& [name, tensor] : living) {
    if (const uint64_t id = Registry::global().storage_id(tensor); id != 0)
      by_id[id].push_back(name);
  }
  size_t graphs = 0;
  for (const auto& [name, tensor] : living) {
    if (graphs == kMaxGraphs) break;
    if (tensor.grad_fn() == nullptr) continue;
    ++graphs;
    add_graph(by_id, tensor, name);
  }
  return by_id;
}

}  // namespace

void add_holder(const char* name, const at::Tensor& tensor) noexcept {
  try {
    WeakTensor weak(tensor.getIntrusivePtr());
    const std::lock_guard<ForkSafeMutex> hold(holders().lock);
    holders().all.push_back({name, std::move(weak)});
  } catch (...) {
    // Without memory, a holder is missing.
  }
}

void add_holders_to(Report& report) {
  HoldersById by_id = holders_by_id();
  add_kept_results(by_id);
  for (DeviceReport& device : report.devices) {
    for (ReportRow& row : device.rows) {
      const auto found = by_id.find(row.storage_id);
      if (row.anonymous && row.storage_id != 0 && found != by_id.end())
        row.held_by = text_of(found->second);
    }
  }
}

}  // namespace memledger::inside
