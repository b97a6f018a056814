#pragma once

// Prints the registry's values to streams: a line each, bytes exact, without a line's end.
//
//   std::cout << memledger::Registry::global().snapshot() << '\n';
//
// Snapshot and Changes print a line per device and their number of rows, not the rows.
// memledger_fmt.h has the same for fmt.

#include <iosfwd>

#include "registry/birthplace.h"
#include "registry/changes.h"
#include "registry/counters.h"
#include "registry/device_statistics.h"
#include "registry/phase.h"
#include "registry/snapshot.h"
#include "registry/storage_kind.h"

namespace memledger {

struct AllocationFailure;
struct LabelChange;
struct Lifetime;
struct Recording;
struct StackFrame;

std::ostream& operator<<(std::ostream& out, Phase phase);
std::ostream& operator<<(std::ostream& out, StorageKind kind);
std::ostream& operator<<(std::ostream& out, const Birthplace& birthplace);
std::ostream& operator<<(std::ostream& out, const Counters& counters);
std::ostream& operator<<(std::ostream& out, const HookHealth& health);
std::ostream& operator<<(std::ostream& out, const StorageInfo& storage);
std::ostream& operator<<(std::ostream& out, const DeviceInfo& device);
std::ostream& operator<<(std::ostream& out, const Snapshot& snapshot);
std::ostream& operator<<(std::ostream& out, const Changes& changes);
std::ostream& operator<<(std::ostream& out, const Statistic& statistic);
std::ostream& operator<<(std::ostream& out, const DeviceStatistics& statistics);
std::ostream& operator<<(std::ostream& out, const DeviceMemory& memory);
std::ostream& operator<<(std::ostream& out, const LibraryWorkspace& workspace);
std::ostream& operator<<(std::ostream& out, const ModelledWorkspace& workspace);
std::ostream& operator<<(std::ostream& out, const PinnedStatistics& pinned);
std::ostream& operator<<(std::ostream& out, BlockState state);
std::ostream& operator<<(std::ostream& out, const DeviceBlock& block);
std::ostream& operator<<(std::ostream& out, const DeviceSegment& segment);
std::ostream& operator<<(std::ostream& out, const DeviceBlocks& blocks);
std::ostream& operator<<(std::ostream& out, const AllocationFailure& failure);
std::ostream& operator<<(std::ostream& out, const LabelChange& change);
std::ostream& operator<<(std::ostream& out, const Lifetime& life);
std::ostream& operator<<(std::ostream& out, const Recording& recording);
std::ostream& operator<<(std::ostream& out, const StackFrame& frame);

}  // namespace memledger
