#pragma once

// Collects: what each place in the program allocated and freed, and what the device's statistics
// then were.

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tracker/line_table.h"

namespace memledger {

using DeviceFigures = std::array<int64_t, kDeviceStats>;

// What began between two events of a thread: all frames of the stack but the outermost `continued`.
// Where the first of them is, `instead` was before; it may be another part of the same function.
struct Beginning {
  uint32_t continued = 0;
  uintptr_t instead = 0;  // where its code begins; 0: nothing was there, or one of many
  DeviceFigures held{};   // by the device, the highest
};

// What was seen with one stack.
struct LineStack {
  LineStack() {
    figures.current.fill(LineFigures::kUnknown);
    figures.peak.fill(LineFigures::kUnknown);
  }
  LineFigures figures;
  std::vector<Beginning> beginnings;
};

struct ShownFunctions {
  std::vector<std::string> names;
  std::vector<uintptr_t> addresses;  // in their code
};

// Of one profiler. Guarded by LineLogs' lock.
struct LineLog {
  std::unordered_map<uint32_t, LineStack> stacks;
  std::unordered_map<uint64_t, LineStack*> alive;  // by storage: whose `line_left` it is in
  std::vector<c10::Device> targets;                // that the figures are of
  uint64_t begun = 0;  // stacks from before this generation are not its own
  int on = 0;
  ShownFunctions shown;
};

// What a table is made from.
struct LineRecord {
  std::vector<std::pair<uint32_t, LineStack>> stacks;
  std::vector<c10::Device> targets;
};

// The logs that are being written. Thread-safe.
class LineLogs {
 public:
  // Counted.
  static void start(const std::shared_ptr<LineLog>& log);
  // After as many as there were starts nothing is added any more, but deaths are still followed:
  // `line_left` stays true.
  static void stop(const std::shared_ptr<LineLog>& log);
  // Nor that.
  static void drop(const std::shared_ptr<LineLog>& log);
  static void clear(const std::shared_ptr<LineLog>& log);
  static LineRecord read(const std::shared_ptr<LineLog>& log);

  static void show(const std::shared_ptr<LineLog>& log, std::string name);
  static void show(const std::shared_ptr<LineLog>& log, uintptr_t address);
  static void show_nothing(const std::shared_ptr<LineLog>& log);
  static ShownFunctions shown(const std::shared_ptr<LineLog>& log);

  static c10::Device target();
  static void set_target(c10::Device device);
};

}  // namespace memledger
