#pragma once

// Collects: what each place in the program allocated and freed, and what the device's statistics then were.

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tracker/line_table.h"

namespace memledger {

using DeviceFigures = std::array<int64_t, kDeviceStats>;

// Two stacks that followed each other on a thread: where a function begins is where the first does not have it and the second
// does.
struct StackPair {
  uint32_t before = 0;
  uint32_t stack = 0;
  friend bool operator==(StackPair a, StackPair b) { return a.before == b.before && a.stack == b.stack; }
};

struct StackPairHash {
  size_t operator()(StackPair pair) const noexcept {
    const uint64_t mixed = (uint64_t{pair.before} << 32 | pair.stack) * 0x9E3779B97F4A7C15ull;
    return mixed ^ mixed >> 32;
  }
};

struct LineCell {
  LineFigures figures;
  DeviceFigures at_entry{};  // before the event: the highest
};

// Of one profiler. Guarded by LineLogs' lock.
struct LineLog {
  std::unordered_map<StackPair, LineCell, StackPairHash> cells;
  std::unordered_map<uint64_t, LineCell*> alive;  // by storage: whose `line_left` it is in
  uint64_t begun = 0;                             // stacks from before this generation are not its own
};

// The logs that are being written. Thread-safe.
class LineLogs {
 public:
  static void start(const std::shared_ptr<LineLog>& log);
  // Nothing is added any more, but deaths are still followed: `line_left` stays true.
  static void stop(const std::shared_ptr<LineLog>& log);
  // Nor that.
  static void drop(const std::shared_ptr<LineLog>& log);
  static void clear(const std::shared_ptr<LineLog>& log);
  // A copy of its cells.
  static std::vector<std::pair<StackPair, LineCell>> read(const std::shared_ptr<LineLog>& log);

  static c10::Device target();
  static void set_target(c10::Device device);
};

}  // namespace memledger
