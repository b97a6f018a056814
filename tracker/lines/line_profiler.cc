#include "tracker/line_profiler.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "registry/hooks/inlined_calls.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "text/names.h"
#include "tracker/device_cache.h"
#include "tracker/lines/function_source.h"
#include "tracker/lines/line_log.h"
#include "tracker/lines/program_functions.h"
#include "tracker/lines/python_frames.h"
#include "tracker/lines/python_functions.h"

namespace memledger {
namespace {

constexpr size_t kMostCodeBytes = size_t{1} << 16;

// A profiled function with all its bodies (instantiations of a template, split-off parts).
struct Shown {
  std::string name;
  std::string signature;
  std::string file;
  int64_t first = 0, last = 0;  // 0: no debug information
  std::vector<std::string> source;
  std::set<int64_t> lines_with_code;
  bool is_python = false;
  bool only_if_seen = false;  // a function of C++ that has the name of a Python one
};

void* return_address_at(uintptr_t address) { return reinterpret_cast<void*>(address + 1); }

// The frames in a function's code. Where inlined calls are known, one for each part of it, and they
// are the function's own; else one for each address, which may be of what was inlined there.
struct Code {
  std::vector<StackFrame> frames;
  bool has_inlined_calls = false;
};

Code code_of(const ProgramFunction& function) {
  std::vector<void*> addresses = InlinedCalls::places(function.begin, function.end);
  const bool has_inlined_calls = !addresses.empty();
  const uintptr_t end = std::min(function.end, function.begin + kMostCodeBytes);
  for (uintptr_t address = function.begin; !has_inlined_calls && address < end; ++address)
    addresses.push_back(return_address_at(address));
  return {frames_at(addresses), has_inlined_calls};
}

// Makes a profile from what was recorded.
class TableMaker {
 public:
  // Without C++ functions to look for, the symbol tables are not read.
  explicit TableMaker(const ShownFunctions& wanted)
      : functions_(wanted.names.empty() && wanted.addresses.empty() ? ProgramFunctions()
                                                                    : ProgramFunctions::read()),
        python_(PythonFunctions::all()) {
    for (const ShownPython& function : wanted.python) show(function);
    for (const std::string& name : wanted.names) {
      const bool is_python = show_python(name);
      const std::vector<const ProgramFunction*> functions = functions_.named(name);
      for (const ProgramFunction* function : functions) show(*function, is_python);
      if (functions.empty() && !is_python) missing_.push_back(name);
    }
    for (const uintptr_t address : wanted.addresses) {
      if (const ProgramFunction* function = functions_.at(address)) show(*function);
    }
  }

  LineProfile make(const LineRecord& record) {
    LineProfile profile;
    profile.device = LineLogs::target().str();
    std::vector<std::map<int64_t, LineFigures>> rows(shown_.size());
    std::vector<LineFigures> totals(shown_.size());
    std::vector<std::optional<DeviceFigures>> entries(shown_.size());
    std::vector<std::map<int64_t, std::set<std::string>>> merged(shown_.size());
    for (const auto& [stack, line] : record.stacks) {
      for (const ShownCall& call : shown_calls(stack)) {
        const size_t shown = call.shown;
        const int64_t at = line_of(shown, call.address, merged[shown]);
        rows[shown][at].fold(line.figures);
        totals[shown].fold(line.figures);
        note_beginnings(line, call, entries[shown]);
      }
    }
    for (const auto& [calls, line] : record.python) {
      for (const ShownCall& call : shown_calls(calls)) {
        const Shown& shown = shown_[call.shown];
        const bool is_own = call.python_line >= shown.first && call.python_line <= shown.last;
        rows[call.shown][is_own ? call.python_line : 0].fold(line.figures);
        totals[call.shown].fold(line.figures);
        note_beginnings(line, call, entries[call.shown]);
      }
    }
    for (size_t i = 0; i < shown_.size(); ++i) {
      if (shown_[i].only_if_seen && rows[i].empty()) continue;
      profile.tables.push_back(table(i, rows[i], totals[i], entries[i], merged[i]));
    }
    for (const std::string& name : missing_) profile.notes.push_back(not_found(name));
    if (record.targets.size() > 1) {
      profile.notes.push_back(fmt::format(
          "the target changed: each line has the figures of the device that was the target then, "
          "of {}",
          absl::StrJoin(record.targets, ", ",
                        [](std::string* out, c10::Device target) { out->append(target.str()); })));
    }
    return profile;
  }

  const std::vector<std::string>& missing() const { return missing_; }
  std::string not_found(const std::string& name) const {
    std::string text =
        fmt::format("there is no function `{}` in the program and its libraries", name);
    const bool has_python = PythonFunctions::are_read();
    const std::vector<std::string> near =
        has_python ? PythonFunctions::near() : functions_.near(name);
    for (size_t i = 0; i < near.size(); ++i)
      text += fmt::format("{}`{}`", i == 0 ? "; near: " : ", ", near[i]);
    return text + (near.empty() && !has_python ? "; it may have been inlined" : "");
  }

 private:
  // The frames of a stack that are in one shown function.
  struct ShownCall {
    size_t shown = 0;
    uintptr_t address = 0;  // where the innermost frame calls
    int64_t python_line = 0;
    size_t outermost = 0;  // index of the outermost frame, counted from the stack's outer end
  };

  // Returns whether there is any.
  bool show_python(const std::string& name) {
    bool is_any = false;
    for (size_t i = 0; i < python_.size(); ++i) {
      if (!python_[i].is_named(name)) continue;
      is_any = true;
      const auto [known, is_new] = shown_of_python_.emplace(i, shown_.size());
      if (!is_new) continue;
      Shown shown;
      shown.name = shown.signature = python_[i].name;
      shown.file = python_[i].file;
      shown.first = python_[i].first;
      shown.last = python_[i].last;
      shown.source = source_lines(find_source(shown.file));
      shown.is_python = true;
      shown_.push_back(std::move(shown));
    }
    return is_any;
  }

  void show(const ShownPython& told) {
    const auto [known, is_new] = shown_of_python_.emplace(told.number, shown_.size());
    if (!is_new) return;
    const PythonFunction& function = told.function;
    Shown shown;
    shown.name = function.name;
    shown.is_python = true;
    shown.file = function.file;
    shown.first = function.first_line;
    shown.last = function.first_line + static_cast<int64_t>(function.source.size()) - 1;
    shown.source.resize(static_cast<size_t>(function.first_line - 1));
    shown.source.insert(shown.source.end(), function.source.begin(), function.source.end());
    shown_.push_back(std::move(shown));
  }

  void show(const ProgramFunction& function, bool only_if_seen = false) {
    if (shown_of_.count(&function) > 0) return;
    const StackFrame begin = frames_at({return_address_at(function.begin)}).front();
    size_t i = 0;
    for (; i < shown_.size(); ++i) {
      // Instantiations of a template begin at the same line; a part that was split off begins
      // anywhere.
      if (shown_[i].is_python) continue;
      const bool same_place = begin.line > 0
                                  ? shown_[i].first == begin.line && shown_[i].file == begin.file
                                  : shown_[i].first == 0 && shown_[i].name == function.qualified;
      if (same_place || (function.part && shown_[i].signature == function.name)) break;
    }
    if (i == shown_.size()) {
      Shown shown;
      shown.only_if_seen = only_if_seen;
      shown.name = function.qualified;
      shown.signature = function.name;
      shown.file = begin.line > 0 ? begin.file : "";
      shown.first = shown.last = begin.line;
      if (begin.line > 0) {
        shown.source = source_lines(find_source(begin.file));
        shown.last = last_line_of_function(shown.source, shown.first);
      }
      shown_.push_back(std::move(shown));
    }
    shown_of_[&function] = i;
    Shown& shown = shown_[i];
    if (shown.first == 0) return;
    Code code = code_of(function);
    const std::vector<StackFrame>& frames = code.frames;
    if (shown.last == shown.first) {
      // The source is elsewhere, or not what was compiled: the lines are still known.
      for (const StackFrame& frame : frames) {
        if (frame.file == shown.file) shown.last = std::max(shown.last, frame.line);
      }
    }
    for (const StackFrame& frame : frames) {
      if (is_inside(shown, frame)) shown.lines_with_code.insert(frame.line);
    }
    code_[&function] = std::move(code);
  }

  static bool is_inside(const Shown& shown, const StackFrame& frame) {
    return frame.line >= shown.first && frame.line <= shown.last && frame.file == shown.file;
  }

  std::vector<ShownCall> shown_calls(uint32_t stack) const {
    std::vector<ShownCall> calls;
    const std::vector<void*> addresses = stack_addresses(stack);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const std::optional<ShownCall> found = shown_call(addresses[i]);
      if (!found) continue;
      const size_t outer = addresses.size() - 1 - i;
      const auto known = std::find_if(calls.begin(), calls.end(), [&](const ShownCall& call) {
        return call.shown == found->shown;
      });
      if (known == calls.end()) {
        calls.push_back({found->shown, found->address, 0, outer});
      } else {
        known->outermost = outer;
      }
    }
    return calls;
  }

  std::vector<ShownCall> shown_calls(const std::vector<PythonCall>& stack) const {
    std::vector<ShownCall> calls;
    for (size_t outer = stack.size(); outer-- > 0;) {
      const auto shown = shown_of_python_.find(stack[outer].function);
      if (shown == shown_of_python_.end()) continue;
      const auto known = std::find_if(calls.begin(), calls.end(), [&](const ShownCall& call) {
        return call.shown == shown->second;
      });
      if (known == calls.end()) {
        calls.push_back({shown->second, 0, stack[outer].line, outer});
      } else {
        known->outermost = outer;
      }
    }
    return calls;
  }

  std::optional<ShownCall> shown_call(void* return_address) const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(return_address) - 1;
    const auto shown = shown_of_.find(functions_.at(address));
    if (shown == shown_of_.end()) return std::nullopt;
    return ShownCall{shown->second, address};
  }

  bool is_of(uintptr_t address, size_t shown) const {
    if (shown_[shown].is_python) {
      const auto owner = shown_of_python_.find(address - 1);  // see code_of()
      return address != 0 && owner != shown_of_python_.end() && owner->second == shown;
    }
    const auto owner = address == 0 ? shown_of_.end() : shown_of_.find(functions_.at(address));
    return owner != shown_of_.end() && owner->second == shown;
  }

  void note_beginnings(const LineStack& line, const ShownCall& call,
                       std::optional<DeviceFigures>& entry) const {
    for (const Beginning& beginning : line.beginnings) {
      if (call.outermost < beginning.continued ||
          (call.outermost == beginning.continued && is_of(beginning.instead, call.shown)))
        continue;
      if (!entry) entry.emplace().fill(LineFigures::kUnknown);
      for (size_t i = 0; i < kDeviceStats; ++i)
        (*entry)[i] = std::max((*entry)[i], beginning.held[i]);
    }
  }

  // Returns the line of a call, 0 where it is none of the function's. Without inlined calls it may
  // be in a function that was inlined: its bytes are then those of the last own line before it.
  int64_t line_of(size_t index, uintptr_t call, std::map<int64_t, std::set<std::string>>& merged) {
    const Shown& shown = shown_[index];
    if (shown.first == 0) return 0;
    const ProgramFunction* const function = functions_.at(call);
    const Code& code = code_[function];
    const std::vector<StackFrame>& frames = code.frames;
    if (code.has_inlined_calls) {
      const StackFrame frame = frames_at({return_address_at(call)}).front();
      return is_inside(shown, frame) ? frame.line : 0;
    }
    const size_t offset = call - function->begin;
    if (offset >= frames.size()) return 0;
    if (is_inside(shown, frames[offset])) return frames[offset].line;
    for (size_t i = offset; i-- > 0;) {
      if (!is_inside(shown, frames[i])) continue;
      if (frames[offset].line > 0)
        merged[frames[i].line].insert(
            fmt::format("{}:{}", base_name(frames[offset].file), frames[offset].line));
      return frames[i].line;
    }
    return shown.first;
  }

  LineTable table(size_t index, const std::map<int64_t, LineFigures>& rows,
                  const LineFigures& total, const std::optional<DeviceFigures>& entry,
                  const std::map<int64_t, std::set<std::string>>& merged) const {
    const Shown& shown = shown_[index];
    LineTable table;
    table.function = shown.name;
    table.file = shown.file;
    table.total = total;
    const auto add_row = [&](int64_t line, std::string code) {
      LineRow row;
      row.line = line;
      row.code = std::move(code);
      if (const auto found = rows.find(line); found != rows.end()) row.figures = found->second;
      table.rows.push_back(std::move(row));
    };
    if (shown.first == 0) {
      add_row(0, shown.name);
      table.notes.push_back(
          "no lines: there is no debug information for this function; compile it with -g");
      return table;
    }
    if (rows.count(0) > 0) add_row(0, "(not in its lines)");
    std::vector<int64_t> without_code;
    for (int64_t line = shown.first; line <= shown.last; ++line) {
      const auto at = static_cast<size_t>(line - 1);
      const std::string code = at < shown.source.size() ? shown.source[at] : "";
      add_row(line, code);
      if (!shown.is_python && line > shown.first && has_code(code) &&
          shown.lines_with_code.count(line) == 0)
        without_code.push_back(line);
    }
    for (LineRow& row : table.rows) {
      if (row.line != shown.first || !entry) continue;
      LineFigures figures;
      figures.current = figures.peak = *entry;
      figures.events = 1;
      if (row.figures) figures.fold(*row.figures);
      row.figures = figures;
    }
    if (shown.source.empty())
      table.notes.push_back(fmt::format(
          "the source was not found: {} (MEMLEDGER_SOURCES can name folders to look in)",
          shown.file));
    for (const auto& [line, inlined] : merged) {
      table.notes.push_back(fmt::format("line {}: with code of {}, which was inlined", line,
                                        absl::StrJoin(inlined, ", ")));
    }
    if (!without_code.empty()) {
      table.notes.push_back(fmt::format(
          "lines without code of their own (merged with others, or part of a longer statement): {}",
          absl::StrJoin(without_code, ", ")));
    }
    return table;
  }

  const ProgramFunctions functions_;
  const std::vector<ToldFunction> python_;
  std::map<size_t, size_t> shown_of_python_;  // by number
  std::vector<std::string> missing_;
  std::vector<Shown> shown_;
  std::map<const ProgramFunction*, size_t> shown_of_;
  std::map<const ProgramFunction*, Code> code_;
};

}  // namespace

namespace internal {

void set_target_device_unseen(c10::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_cuda(),
              "memledger: the line profiler looks at the CPU or a CUDA device, not at ",
              device.str());
  LineLogs::set_target(device.is_cuda() && !device.has_index() ? c10::Device(device.type(), 0)
                                                               : device);
}

}  // namespace internal

void set_target_device(c10::Device device) {
  if (device.is_cuda()) {
    const c10::DeviceIndex count = device_cache::cuda_devices();
    TORCH_CHECK((device.has_index() ? device.index() : 0) < count, "memledger: there is no ",
                device.str(), ": LibTorch sees ", static_cast<int>(count), " CUDA devices");
  }
  internal::set_target_device_unseen(device);
}

void set_target_gpu(int index) {
  TORCH_CHECK(index >= 0 && index <= std::numeric_limits<c10::DeviceIndex>::max(),
              "memledger: there is no GPU ", index);
  set_target_device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
}

absl::StatusOr<std::vector<LineColumn>> parse_line_columns(const std::vector<std::string>& names) {
  if (names.empty()) return default_line_columns();
  std::vector<LineColumn> columns;
  for (const std::string& name : names) {
    const std::optional<LineColumn> column = LineColumn::parse(name);
    if (!column)
      return absl::InvalidArgumentError(fmt::format(
          "memledger: there is no column `{}`; there are {}", name, all_column_names()));
    if (std::find(columns.begin(), columns.end(), *column) == columns.end())
      columns.push_back(*column);
  }
  return columns;
}

struct LineProfiler::State {
  LineProfilerOptions options;
  const std::shared_ptr<LineLog> log = std::make_shared<LineLog>();
  // Made once, by the first enable() of any thread.
  std::atomic<ScopedTracking*> tracking{nullptr};
  std::atomic<Recorder*> recorder{nullptr};

  ~State() {
    delete recorder.load();
    delete tracking.load();
  }
  TableMaker maker() const { return TableMaker(LineLogs::shown(log)); }
};

namespace {

// Takes no lock, as making one calls LibTorch.
template <typename T>
void make_once(std::atomic<T*>& pointer) {
  if (pointer.load() != nullptr) return;
  auto made = std::make_unique<T>();
  T* none = nullptr;
  if (pointer.compare_exchange_strong(none, made.get())) made.release();
}

}  // namespace

LineProfiler::LineProfiler(std::vector<std::string> functions, LineProfilerOptions options)
    : state_(std::make_shared<State>()) {
  if (options.target_gpu) set_target_gpu(*options.target_gpu);
  state_->options = options;
  state_->log->has_stacks = !options.python;
  for (std::string& function : functions) add_function(std::move(function));
}

LineProfiler::~LineProfiler() { LineLogs::drop(state_->log); }

LineProfiler& LineProfiler::add_function(std::string name) {
  LineLogs::show(state_->log, std::move(name));
  return *this;
}

LineProfiler& LineProfiler::add_python_function(PythonFunction function) {
  ToldFunction told;
  told.name = function.name;
  told.frame_name = function.frame_name;
  told.file = absolute_python_file(function.file);
  told.first = function.first_line;
  told.last = function.first_line + static_cast<int64_t>(function.source.size()) - 1;
  const uint32_t number = PythonFunctions::add(told);
  if (number == PythonFunctions::kNone) throw std::bad_alloc();
  LineLogs::show(state_->log, ShownPython{number, std::move(function)});
  PythonFrames::begin();
  return *this;
}

LineProfiler& LineProfiler::add_function(const void* address) {
  LineLogs::show(state_->log, reinterpret_cast<uintptr_t>(address));
  return *this;
}

absl::Status LineProfiler::check_functions() const {
  const TableMaker maker = state_->maker();
  if (maker.missing().empty()) return absl::OkStatus();
  return absl::NotFoundError("memledger: " + maker.not_found(maker.missing().front()));
}

LineProfiler::On LineProfiler::enable() {
  make_once(state_->tracking);
  if (state_->options.who_was_alive) make_once(state_->recorder);
  LineLogs::start(state_->log);
  return On(this);
}

void LineProfiler::disable() { LineLogs::stop(state_->log); }

void LineProfiler::clear() { LineLogs::clear(state_->log); }

void LineProfiler::clear_functions() { LineLogs::show_nothing(state_->log); }

LineProfile LineProfiler::profile() const {
  return state_->maker().make(LineLogs::read(state_->log));
}

absl::Status LineProfiler::display(const std::string& function,
                                   const std::vector<std::string>& columns) const {
  return print_stats(std::cout, columns, function);
}

namespace {

// Leaves the tables of these functions; all where none is named.
absl::Status keep_functions(LineProfile& profile, const std::vector<std::string>& functions) {
  if (functions.empty()) return absl::OkStatus();
  const auto is_one = [](const LineTable& table, const std::string& function) {
    return is_named(table.function, function) ||
           ToldFunction{table.function, "", table.file}.is_named(function);
  };
  for (const std::string& function : functions) {
    const auto is_this = [&](const LineTable& table) { return is_one(table, function); };
    if (std::none_of(profile.tables.begin(), profile.tables.end(), is_this))
      return absl::NotFoundError(
          fmt::format("memledger: `{}` is not a function that is profiled", function));
  }
  const auto is_other = [&](const LineTable& table) {
    return std::none_of(functions.begin(), functions.end(),
                        [&](const std::string& function) { return is_one(table, function); });
  };
  profile.tables.erase(std::remove_if(profile.tables.begin(), profile.tables.end(), is_other),
                       profile.tables.end());
  return absl::OkStatus();
}

}  // namespace

absl::Status LineProfiler::print_stats(std::ostream& out, const std::vector<std::string>& columns,
                                       const std::string& function) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  LineProfile profile = this->profile();
  std::vector<std::string> functions;
  if (!function.empty()) functions.push_back(function);
  if (absl::Status status = keep_functions(profile, functions); !status.ok()) return status;
  write_text(out, profile, *parsed);
  out.flush();
  return absl::OkStatus();
}

absl::Status LineProfiler::write_json(std::ostream& out,
                                      const std::vector<std::string>& columns) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  memledger::write_json(out, profile(), *parsed);
  return absl::OkStatus();
}

absl::Status LineProfiler::write_html(std::ostream& out, const std::vector<std::string>& columns,
                                      const std::vector<std::string>& functions) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  LineProfile profile = this->profile();
  if (absl::Status status = keep_functions(profile, functions); !status.ok()) return status;
  memledger::write_html(out, profile, *parsed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StorageInfo>> LineProfiler::alive_at_peak(const std::string& function,
                                                                     int64_t line) const {
  const Recorder* const recorder = state_->recorder.load();
  if (recorder == nullptr)
    return absl::FailedPreconditionError(
        "memledger: alive_at_peak() needs LineProfilerOptions::who_was_alive, and enable()");
  const LineProfile profile = this->profile();
  const LineFigures* figures = nullptr;
  for (const LineTable& table : profile.tables) {
    if (!is_named(table.function, function)) continue;
    for (const LineRow& row : table.rows) {
      if (row.line == line && row.figures && row.figures->peak_time_ns > 0) figures = &*row.figures;
    }
  }
  if (figures == nullptr)
    return absl::NotFoundError(fmt::format(
        "memledger: nothing was allocated or freed in line {} of `{}`", line, function));
  const int64_t at = figures->peak_time_ns;
  const Recording recording = recorder->read();
  if (recording.begin_ns > at)
    return absl::OutOfRangeError(fmt::format(
        "memledger: the events of the peak of line {} of `{}` have been dropped: it is too "
        "long ago",
        line, function));
  std::vector<StorageInfo> alive;
  const c10::Device device =
      figures->peak_gpu < 0
          ? c10::Device(c10::DeviceType::CPU)
          : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(figures->peak_gpu));
  for (const Lifetime& life : recording.lifetimes) {
    if (life.storage.device == device && life.born_ns.value_or(0) <= at &&
        life.died_ns.value_or(at + 1) > at)
      alive.push_back(life.storage);
  }
  return alive;
}

}  // namespace memledger
