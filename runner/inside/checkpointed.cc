#include "runner/inside/checkpointed.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "registry/core/fork_safe_mutex.h"
#include "registry/registry.h"
#include "reporter/names/told_names.h"

namespace memledger::inside {
namespace {

constexpr size_t kLeastCheckpointed = size_t{1} << 14;

struct Checkpointed {
  ForkSafeMutex lock;
  std::unordered_set<uint64_t> ids;
  size_t prune_at = kLeastCheckpointed;
};

Checkpointed& checkpointed() {
  static auto* const all = new Checkpointed;
  return *all;
}

void prune_checkpointed() {
  Checkpointed& all = checkpointed();
  const std::unordered_set<uint64_t> matter = storages_that_matter();
  const uint64_t last = matter.empty() ? 0 : *std::max_element(matter.begin(), matter.end());
  const std::lock_guard<ForkSafeMutex> hold(all.lock);
  for (auto id = all.ids.begin(); id != all.ids.end();)
    // What was made since is not among them.
    *id > last || matter.count(*id) > 0 ? void(++id) : void(id = all.ids.erase(id));
  all.prune_at = std::max(kLeastCheckpointed, 2 * all.ids.size());
}

}  // namespace

void note_checkpointed(const at::Tensor& tensor) noexcept {
  try {
    const uint64_t id = Registry::global().storage_id(tensor);
    if (id == 0) return;
    Checkpointed& all = checkpointed();
    {
      const std::lock_guard<ForkSafeMutex> hold(all.lock);
      all.ids.insert(id);
      if (all.ids.size() < all.prune_at) return;
    }
    prune_checkpointed();
  } catch (...) {
    // Without memory, a row is not marked.
  }
}

void mark_checkpointed(Report& report) {
  const std::lock_guard<ForkSafeMutex> hold(checkpointed().lock);
  for (DeviceReport& device : report.devices) {
    for (ReportRow& row : device.rows)
      row.checkpointed = checkpointed().ids.count(row.storage_id) > 0;
  }
}

}  // namespace memledger::inside
