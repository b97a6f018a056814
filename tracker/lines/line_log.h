#pragma once

// Records what each place in the program allocated and freed, and the device's statistics then.

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/stacks.h"
#include "tracker/line_table.h"
#include "tracker/lines/python_functions.h"
#include "tracker/python_function.h"

namespace memledger {

using DeviceFigures = std::array<int64_t, kDeviceStats>;

// The calls that began between two events of a thread: all frames of the stack except the outermost
// `continued` ones. The first of them stands where `instead` ran before, which may be another part
// of the same function.
struct Beginning {
  uint32_t continued = 0;
  // Where its code begins, or code_of() a Python function; 0: nothing ran there, or one of too
  // many.
  uintptr_t instead = 0;
  DeviceFigures held{};  // highest figures of the device when they began
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

// Stands for a Python function's code: no address of any other code.
constexpr uintptr_t code_of(uint32_t python_function) { return uintptr_t{python_function} + 1; }

struct ShownPython {
  uint32_t number = PythonFunctions::kNone;
  PythonFunction function;
};

struct ShownFunctions {
  std::vector<std::string> names;
  std::vector<uintptr_t> addresses;  // in their code
  std::vector<ShownPython> python;
};

// The stacks that allocated a storage.
struct BornAt {
  LineStack* stack = nullptr;
  LineStack* python = nullptr;  // null: in none of the functions
};

// What one profiler recorded. Guarded by LineLogs' lock.
struct LineLog {
  bool has_stacks = true;  // C++ stacks are taken for it
  std::unordered_map<uint32_t, LineStack> stacks;
  std::map<std::vector<PythonCall>, LineStack> python;  // by the calls that ran, outermost first
  std::unordered_map<uint64_t, BornAt> alive;           // by storage
  std::vector<c10::Device> targets;                     // devices that the figures are of
  uint64_t begun = 0;  // generation at its start: frames from before do not count
  int on = 0;          // calls of start() without stop()
  ShownFunctions shown;
};

// What a table is made from.
struct LineRecord {
  std::vector<std::pair<uint32_t, LineStack>> stacks;
  std::vector<std::pair<std::vector<PythonCall>, LineStack>> python;
  std::vector<c10::Device> targets;
};

// The logs that are being written. Thread-safe.
class LineLogs {
 public:
  // Starts recording, and stops it after as many stops as starts. Deaths are followed beyond that,
  // so that `line_left` stays true.
  static void start(const std::shared_ptr<LineLog>& log);
  static void stop(const std::shared_ptr<LineLog>& log);
  // Stops recording and following deaths.
  static void drop(const std::shared_ptr<LineLog>& log);
  static void clear(const std::shared_ptr<LineLog>& log);
  static LineRecord read(const std::shared_ptr<LineLog>& log);

  static void show(const std::shared_ptr<LineLog>& log, std::string name);
  static void show(const std::shared_ptr<LineLog>& log, uintptr_t address);
  static void show(const std::shared_ptr<LineLog>& log, ShownPython function);
  static void show_nothing(const std::shared_ptr<LineLog>& log);
  static ShownFunctions shown(const std::shared_ptr<LineLog>& log);

  static c10::Device target();
  static void set_target(c10::Device device);
};

}  // namespace memledger
