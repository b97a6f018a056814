#include "registry/values_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "registry/dtype_name.h"
#include "text/names.h"

namespace memledger {

std::ostream& operator<<(std::ostream& out, Phase phase) { return out << to_string(phase); }

std::ostream& operator<<(std::ostream& out, const Counters& counters) {
  return out << fmt::format("current {} bytes in {}, peak {} bytes in {}, allocated {} bytes in {}, freed {} bytes in {}",
                            counters.current_bytes, counters.current_count, counters.peak_bytes, counters.peak_count,
                            counters.allocated_bytes, counters.allocated_count, counters.freed_bytes, counters.freed_count);
}

std::ostream& operator<<(std::ostream& out, const HookHealth& health) {
  return out << fmt::format("{} unknown frees, {} dropped records, {} swallowed exceptions", health.unknown_frees,
                            health.dropped_records, health.swallowed_exceptions);
}

std::ostream& operator<<(std::ostream& out, const StorageInfo& storage) {
  out << fmt::format("storage {} on {}: {} bytes", storage.id, storage.device.str(), storage.nbytes);
  if (storage.dtype.has_value())
    out << fmt::format(", ({}) {}", fmt::join(storage.shape.begin(), storage.shape.end(), ", "), dtype_name(*storage.dtype));
  if (storage.adopted) return out << ", before tracking";
  if (!storage.op.empty()) out << ", " << table_name(storage.op);
  if (!storage.autograd_node.empty()) out << " in " << table_name(storage.autograd_node);
  if (!storage.label.empty()) out << ", " << table_name(storage.label);
  return out << ", " << to_string(storage.phase);
}

std::ostream& operator<<(std::ostream& out, const DeviceInfo& device) {
  return out << device.device.str() << ": " << device.counters;
}

std::ostream& operator<<(std::ostream& out, const Snapshot& snapshot) {
  bool first = true;
  for (const DeviceInfo& device : snapshot.devices()) {
    out << (first ? "" : "\n") << device << fmt::format("; {} storages alive", snapshot.storages(device.device).size());
    first = false;
  }
  return first ? out << "no storage was made" : out;
}

std::ostream& operator<<(std::ostream& out, const Changes& changes) {
  int64_t born = 0, died = 0;
  for (const StorageInfo& storage : changes.born) born += storage.nbytes;
  for (const StorageInfo& storage : changes.died) died += storage.nbytes;
  return out << fmt::format("{} storages born, {} bytes; {} died, {} bytes{}", changes.born.size(), born, changes.died.size(),
                            died, changes.from_snapshot ? "; there was nothing to compare with" : "");
}

std::ostream& operator<<(std::ostream& out, const Statistic& statistic) {
  return out << fmt::format("{}, peak {}", statistic.current, statistic.peak);
}

std::ostream& operator<<(std::ostream& out, const DeviceStatistics& statistics) {
  return out << statistics.allocator << ": requested " << statistics.requested_bytes << "; allocated "
             << statistics.allocated_bytes << "; active " << statistics.active_bytes << "; reserved " << statistics.reserved_bytes
             << " bytes";
}

std::ostream& operator<<(std::ostream& out, const DeviceMemory& memory) {
  return out << fmt::format("{} of {} bytes free", memory.free_bytes, memory.total_bytes);
}

std::ostream& operator<<(std::ostream& out, const LibraryWorkspace& workspace) {
  return out << table_name(workspace.name()) << " on " << workspace.device.str();
}

std::ostream& operator<<(std::ostream& out, const ModelledWorkspace& workspace) {
  return out << fmt::format("{}: largest {} bytes, {} requests", table_name(workspace.name), workspace.largest_bytes,
                            workspace.requests);
}

std::ostream& operator<<(std::ostream& out, const PinnedStatistics& pinned) {
  return out << "in use " << (pinned.in_use_is_exact ? "" : "at most ") << pinned.in_use_bytes << "; reserved "
             << pinned.reserved_bytes << " bytes";
}

}  // namespace memledger
