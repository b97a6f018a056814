#include "registry/values_text.h"

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>

#include "registry/allocation_failure.h"
#include "registry/recording.h"
#include "registry/stacks.h"
#include "text/dtype.h"
#include "text/names.h"
#include "text/shape.h"

namespace memledger {

std::ostream& operator<<(std::ostream& out, Phase phase) { return out << to_string(phase); }
std::ostream& operator<<(std::ostream& out, StorageKind kind) { return out << to_string(kind); }

std::ostream& operator<<(std::ostream& out, const Birthplace& birthplace) {
  if (birthplace.adopted) return out << "before tracking";
  std::string text = table_name(birthplace.op);
  const auto add = [&text](std::string_view separator, const std::string& part) {
    if (!part.empty()) text.append(text.empty() ? "" : separator).append(part);
  };
  add(" in ", table_name(birthplace.autograd_node));
  add(", ", table_name(birthplace.label));
  add(", ", std::string(to_string(birthplace.phase)));
  return out << text;
}

std::ostream& operator<<(std::ostream& out, const Counters& counters) {
  return out << fmt::format(
             "current {} bytes in {}, peak {} bytes in {}, allocated {} bytes in {}, freed {} "
             "bytes in {}",
             counters.current_bytes, counters.current_count, counters.peak_bytes,
             counters.peak_count, counters.allocated_bytes, counters.allocated_count,
             counters.freed_bytes, counters.freed_count);
}

std::ostream& operator<<(std::ostream& out, const HookHealth& health) {
  return out << fmt::format("{} unknown frees, {} dropped records, {} swallowed exceptions",
                            health.unknown_frees, health.dropped_records,
                            health.swallowed_exceptions);
}

std::ostream& operator<<(std::ostream& out, const StorageInfo& storage) {
  out << fmt::format("storage {} on {}: {} bytes", storage.id, storage.device.str(),
                     storage.nbytes);
  if (storage.dtype.has_value())
    out << ", " << shape_text(storage.shape) << ' ' << dtype_text(storage.dtype);
  if (storage.kind != StorageKind::kTensor) out << ", " << to_string(storage.kind);
  return out << ", " << static_cast<const Birthplace&>(storage);
}

std::ostream& operator<<(std::ostream& out, const DeviceInfo& device) {
  return out << device.device.str() << ": " << device.counters;
}

std::ostream& operator<<(std::ostream& out, const Snapshot& snapshot) {
  bool first = true;
  for (const DeviceInfo& device : snapshot.devices()) {
    out << (first ? "" : "\n") << device
        << fmt::format("; {} storages alive", snapshot.storages(device.device).size());
    first = false;
  }
  return first ? out << "no storage was made" : out;
}

std::ostream& operator<<(std::ostream& out, const Changes& changes) {
  int64_t born = 0, died = 0;
  for (const StorageInfo& storage : changes.born) born += storage.nbytes;
  for (const StorageInfo& storage : changes.died) died += storage.nbytes;
  return out << fmt::format("{} storages born, {} bytes; {} died, {} bytes{}", changes.born.size(),
                            born, changes.died.size(), died,
                            changes.from_snapshot ? "; there was nothing to compare with" : "");
}

std::ostream& operator<<(std::ostream& out, const Statistic& statistic) {
  return out << fmt::format("{}, peak {}", statistic.current, statistic.peak);
}

std::ostream& operator<<(std::ostream& out, const DeviceStatistics& statistics) {
  return out << statistics.allocator << ": requested " << statistics.requested_bytes
             << "; allocated " << statistics.allocated_bytes << "; active "
             << statistics.active_bytes << "; reserved " << statistics.reserved_bytes << " bytes";
}

std::ostream& operator<<(std::ostream& out, const DeviceMemory& memory) {
  return out << fmt::format("{} of {} bytes free", memory.free_bytes, memory.total_bytes);
}

std::ostream& operator<<(std::ostream& out, const LibraryWorkspace& workspace) {
  return out << table_name(workspace.name()) << " on " << workspace.device.str();
}

std::ostream& operator<<(std::ostream& out, const ModelledWorkspace& workspace) {
  return out << fmt::format("{}: largest {} bytes, {} requests", table_name(workspace.name),
                            workspace.largest_bytes, workspace.requests);
}

std::ostream& operator<<(std::ostream& out, const PinnedStatistics& pinned) {
  return out << "in use " << (pinned.in_use_is_exact ? "" : "at most ") << pinned.in_use_bytes
             << "; reserved " << pinned.reserved_bytes << " bytes";
}

std::ostream& operator<<(std::ostream& out, BlockState state) {
  switch (state) {
    case BlockState::kInUse:
      return out << "in use";
    case BlockState::kAwaitingFree:
      return out << "awaiting free";
    case BlockState::kFree:
      break;
  }
  return out << "free";
}

std::ostream& operator<<(std::ostream& out, const DeviceBlock& block) {
  out << fmt::format("block at {:#x}: {} bytes, ", block.address, block.nbytes) << block.state;
  return block.state == BlockState::kFree
             ? out
             : out << fmt::format(", {} requested", block.requested_bytes);
}

std::ostream& operator<<(std::ostream& out, const DeviceSegment& segment) {
  return out << fmt::format(
             "segment at {:#x}: {} bytes in {} blocks, {} pool{}{}", segment.address,
             segment.nbytes, segment.blocks.size(), segment.large ? "large" : "small",
             segment.expandable ? ", expandable" : "",
             segment.stream == 0 ? "" : fmt::format(", stream {:#x}", segment.stream));
}

std::ostream& operator<<(std::ostream& out, const DeviceBlocks& blocks) {
  return out << fmt::format(
             "requested {}; allocated {}; active {}; reserved {} bytes in {} segments; largest "
             "free block {}",
             blocks.requested_bytes, blocks.allocated_bytes(), blocks.active_bytes(),
             blocks.reserved_bytes(), blocks.segments.size(), blocks.largest_free_block);
}

std::ostream& operator<<(std::ostream& out, const AllocationFailure& failure) {
  return out << fmt::format("{} bytes failed on {}, ", failure.requested_bytes,
                            failure.device.str())
             << static_cast<const Birthplace&>(failure);
}

std::ostream& operator<<(std::ostream& out, const LabelChange& change) {
  return out << fmt::format("at {} ns thread {}: {}", change.time_ns, change.thread,
                            change.label.empty() ? "no label" : printable(change.label));
}

std::ostream& operator<<(std::ostream& out, const Lifetime& life) {
  out << life.storage << ", born ";
  out << (life.born_ns ? fmt::format("at {} ns", *life.born_ns) : "before") << ", ";
  return out << (life.died_ns ? fmt::format("died at {} ns", *life.died_ns) : "alive");
}

std::ostream& operator<<(std::ostream& out, const Recording& recording) {
  return out << fmt::format(
             "{} storages in {} ns, {} label changes; dropped: {} events, {} label changes",
             recording.lifetimes.size(), recording.end_ns - recording.begin_ns,
             recording.label_changes.size(), recording.dropped_events,
             recording.dropped_label_changes);
}

std::ostream& operator<<(std::ostream& out, const StackFrame& frame) {
  out << (frame.function.empty() ? "?" : printable(frame.function));
  if (frame.file.empty()) return out;
  out << " at " << printable(frame.file);
  return frame.line == 0 ? out : out << ":" << frame.line;
}

}  // namespace memledger
