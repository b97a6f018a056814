#include "tracker/line_profiler.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_join.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "tracker/device_cache.h"
#include "tracker/function_source.h"
#include "tracker/line_log.h"
#include "tracker/program_functions.h"

namespace memledger {
namespace {

constexpr size_t kMostCodeBytes = size_t{1} << 16;

// A function that is shown: all its bodies (instantiations of a template, split-off parts).
struct Shown {
  std::string name;
  std::string signature;
  std::string file;
  int64_t first = 0, last = 0;  // 0: no debug information
  std::vector<std::string> source;
  std::set<int64_t> lines_with_code;
};

void* return_address_at(uintptr_t address) { return reinterpret_cast<void*>(address + 1); }

// Of every place in the function's code.
std::vector<StackFrame> frames_of(const ProgramFunction& function) {
  std::vector<void*> addresses;
  const uintptr_t end = std::min(function.end, function.begin + kMostCodeBytes);
  for (uintptr_t address = function.begin; address < end; ++address) addresses.push_back(return_address_at(address));
  return frames_at(addresses);
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Makes tables of what was recorded.
class TableMaker {
 public:
  TableMaker(const std::vector<std::string>& names, const std::vector<uintptr_t>& addresses)
      : functions_(ProgramFunctions::read()) {
    for (const std::string& name : names) {
      const std::vector<const ProgramFunction*> found = functions_.named(name);
      for (const ProgramFunction* function : found) show(*function);
      if (found.empty()) missing_.push_back(name);
    }
    for (const uintptr_t address : addresses) {
      if (const ProgramFunction* function = functions_.at(address)) show(*function);
    }
  }

  LineProfile make(const std::vector<std::pair<StackPair, LineCell>>& cells) {
    LineProfile profile;
    profile.device = LineLogs::target().str();
    symbolize(cells);
    std::vector<std::map<int64_t, LineFigures>> rows(shown_.size());
    std::vector<LineFigures> totals(shown_.size());
    std::vector<std::optional<DeviceFigures>> entries(shown_.size());
    std::vector<std::map<int64_t, std::set<std::string>>> merged(shown_.size());
    for (const auto& [pair, cell] : cells) {
      for (const auto& [shown, address] : places_of(pair.stack)) {
        rows[shown][line_of(shown, address, merged[shown])].fold(cell.figures);
        totals[shown].fold(cell.figures);
        const Places& before = places_of(pair.before);
        const bool begins =
            std::none_of(before.begin(), before.end(), [i = shown](const auto& place) { return place.first == i; });
        if (!begins) continue;
        if (!entries[shown]) entries[shown].emplace().fill(LineFigures::kUnknown);
        for (size_t i = 0; i < kDeviceStats; ++i) (*entries[shown])[i] = std::max((*entries[shown])[i], cell.at_entry[i]);
      }
    }
    for (size_t i = 0; i < shown_.size(); ++i) profile.tables.push_back(table(i, rows[i], totals[i], entries[i], merged[i]));
    for (const std::string& name : missing_) profile.notes.push_back(not_found(name));
    return profile;
  }

  const std::vector<std::string>& missing() const { return missing_; }
  std::string not_found(const std::string& name) const {
    std::string text = fmt::format("there is no function `{}` in the program and its libraries", name);
    const std::vector<std::string> near = functions_.near(name);
    for (size_t i = 0; i < near.size(); ++i) text += fmt::format("{}`{}`", i == 0 ? "; near: " : ", ", near[i]);
    return text + (near.empty() ? "; it may have been inlined" : "");
  }

 private:
  // By function that is shown: the innermost frame.
  using Places = std::vector<std::pair<size_t, uintptr_t>>;

  void show(const ProgramFunction& function) {
    if (shown_of_.count(&function) > 0) return;
    const StackFrame begin = frames_at({return_address_at(function.begin)}).front();
    size_t i = 0;
    for (; i < shown_.size(); ++i) {
      // Instantiations of a template begin at the same line; a part that was split off begins anywhere.
      const bool same_place = begin.line > 0 ? shown_[i].first == begin.line && shown_[i].file == begin.file
                                             : shown_[i].first == 0 && shown_[i].name == function.qualified;
      if (same_place || (function.part && shown_[i].signature == function.name)) break;
    }
    if (i == shown_.size()) {
      Shown shown;
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
    std::vector<StackFrame> frames = frames_of(function);
    if (shown.last == shown.first) {
      // The source is elsewhere, or not what was compiled: the lines are still known.
      for (const StackFrame& frame : frames) {
        if (frame.file == shown.file) shown.last = std::max(shown.last, frame.line);
      }
    }
    for (const StackFrame& frame : frames) {
      if (is_inside(shown, frame)) shown.lines_with_code.insert(frame.line);
    }
    code_[&function] = std::move(frames);
  }

  static bool is_inside(const Shown& shown, const StackFrame& frame) {
    return frame.line >= shown.first && frame.line <= shown.last && frame.file == shown.file;
  }

  void symbolize(const std::vector<std::pair<StackPair, LineCell>>& cells) {
    // Frames of functions that are shown have been looked up with them; all are found by address.
    for (const auto& [pair, cell] : cells) {
      places_of(pair.stack);
      places_of(pair.before);
    }
  }

  const Places& places_of(uint32_t stack) {
    const auto [place, is_new] = places_.try_emplace(stack);
    Places& places = place->second;
    if (!is_new || stack == 0) return places;
    for (void* const address : stack_addresses(stack)) {
      const uintptr_t call = reinterpret_cast<uintptr_t>(address) - 1;
      const ProgramFunction* const function = functions_.at(call);
      if (function == nullptr) continue;
      const auto shown = shown_of_.find(function);
      if (shown == shown_of_.end()) continue;
      const size_t index = shown->second;
      if (std::none_of(places.begin(), places.end(), [&](const auto& one) { return one.first == index; }))
        places.emplace_back(index, call);
    }
    return places;
  }

  // In optimised code a place may belong to a function that was inlined: then to the line before it.
  int64_t line_of(size_t index, uintptr_t call, std::map<int64_t, std::set<std::string>>& merged) {
    const Shown& shown = shown_[index];
    if (shown.first == 0) return 0;
    const ProgramFunction* const function = functions_.at(call);
    const std::vector<StackFrame>& frames = code_[function];
    const size_t offset = call - function->begin;
    if (offset >= frames.size()) return 0;
    if (is_inside(shown, frames[offset])) return frames[offset].line;
    for (size_t i = offset; i-- > 0;) {
      if (!is_inside(shown, frames[i])) continue;
      if (frames[offset].line > 0)
        merged[frames[i].line].insert(fmt::format("{}:{}", base_name(frames[offset].file), frames[offset].line));
      return frames[i].line;
    }
    return shown.first;
  }

  LineTable table(size_t index, const std::map<int64_t, LineFigures>& rows, const LineFigures& total,
                  const std::optional<DeviceFigures>& entry, const std::map<int64_t, std::set<std::string>>& merged) const {
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
      table.notes.push_back("no lines: there is no debug information for this function; compile it with -g");
      return table;
    }
    if (rows.count(0) > 0) add_row(0, "(not in its lines)");
    std::vector<int64_t> without_code;
    for (int64_t line = shown.first; line <= shown.last; ++line) {
      const auto at = static_cast<size_t>(line - 1);
      const std::string code = at < shown.source.size() ? shown.source[at] : "";
      add_row(line, code);
      if (line > shown.first && has_code(code) && shown.lines_with_code.count(line) == 0) without_code.push_back(line);
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
      table.notes.push_back(
          fmt::format("the source is not there: {} (MEMLEDGER_SOURCES can name folders to look in)", shown.file));
    for (const auto& [line, inlined] : merged) {
      table.notes.push_back(fmt::format("line {}: with code of {}, which was inlined", line, absl::StrJoin(inlined, ", ")));
    }
    if (!without_code.empty()) {
      table.notes.push_back(fmt::format("no code of their own (merged with others, or part of a longer statement): lines {}",
                                        absl::StrJoin(without_code, ", ")));
    }
    return table;
  }

  const ProgramFunctions functions_;
  std::vector<std::string> missing_;
  std::vector<Shown> shown_;
  std::map<const ProgramFunction*, size_t> shown_of_;
  std::map<const ProgramFunction*, std::vector<StackFrame>> code_;
  std::map<uint32_t, Places> places_;
};

}  // namespace

void set_target_device(c10::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "memledger: the line profiler looks at the CPU or a CUDA device, not at ",
              device.str());
  LineLogs::set_target(device.is_cuda() && !device.has_index() ? c10::Device(device.type(), 0) : device);
}

void set_target_gpu(int index) {
  TORCH_CHECK(index >= 0 && index < 128, "memledger: there is no GPU ", index);
  TORCH_CHECK(device_cache::default_device().is_cuda(), "memledger: there is no GPU ", index, ": LibTorch sees no CUDA device");
  set_target_device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
}

absl::StatusOr<std::vector<LineColumn>> parse_line_columns(const std::vector<std::string>& names) {
  if (names.empty()) return default_line_columns();
  std::vector<LineColumn> columns;
  for (const std::string& name : names) {
    const std::optional<LineColumn> column = LineColumn::parse(name);
    if (!column)
      return absl::InvalidArgumentError(
          fmt::format("memledger: there is no column `{}`; there are {}", name, all_column_names()));
    columns.push_back(*column);
  }
  return columns;
}

struct LineProfiler::State {
  LineProfilerOptions options;
  mutable std::mutex lock;
  std::vector<std::string> functions;
  std::vector<uintptr_t> addresses;
  int enabled = 0;
  std::shared_ptr<LineLog> log = std::make_shared<LineLog>();
  std::unique_ptr<ScopedTracking> tracking;
  std::unique_ptr<Recorder> recorder;

  TableMaker maker() const {
    const std::lock_guard<std::mutex> hold(lock);
    return TableMaker(functions, addresses);
  }
};

LineProfiler::LineProfiler(std::vector<std::string> functions, LineProfilerOptions options) : state_(std::make_shared<State>()) {
  state_->functions = std::move(functions);
  state_->options = options;
}

LineProfiler::~LineProfiler() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  LineLogs::drop(state_->log);
}

LineProfiler& LineProfiler::add_function(std::string name) {
  const std::lock_guard<std::mutex> hold(state_->lock);
  state_->functions.push_back(std::move(name));
  return *this;
}

LineProfiler& LineProfiler::add_function(const void* address) {
  const std::lock_guard<std::mutex> hold(state_->lock);
  state_->addresses.push_back(reinterpret_cast<uintptr_t>(address));
  return *this;
}

absl::Status LineProfiler::check_functions() const {
  const TableMaker maker = state_->maker();
  if (maker.missing().empty()) return absl::OkStatus();
  return absl::NotFoundError("memledger: " + maker.not_found(maker.missing().front()));
}

LineProfiler::On LineProfiler::enable() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  if (state_->enabled++ == 0) {
    if (!state_->tracking) state_->tracking = std::make_unique<ScopedTracking>();
    if (state_->options.who_was_alive && !state_->recorder) state_->recorder = std::make_unique<Recorder>();
    LineLogs::start(state_->log);
  }
  return On(this);
}

void LineProfiler::disable() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  if (state_->enabled > 0 && --state_->enabled == 0) LineLogs::stop(state_->log);
}

void LineProfiler::clear() { LineLogs::clear(state_->log); }

void LineProfiler::clear_functions() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  state_->functions.clear();
  state_->addresses.clear();
}

LineProfile LineProfiler::profile() const { return state_->maker().make(LineLogs::read(state_->log)); }

absl::Status LineProfiler::display(const std::string& function, const std::vector<std::string>& columns) const {
  return print_stats(std::cout, columns, function);
}

absl::Status LineProfiler::print_stats(std::ostream& out, const std::vector<std::string>& columns,
                                       const std::string& function) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  LineProfile profile = this->profile();
  if (!function.empty()) {
    const auto is_other = [&](const LineTable& table) {
      const std::string& own = table.function;
      return own != function && (own.size() < function.size() + 2 ||
                                 own.compare(own.size() - function.size() - 2, std::string::npos, "::" + function) != 0);
    };
    profile.tables.erase(std::remove_if(profile.tables.begin(), profile.tables.end(), is_other), profile.tables.end());
    if (profile.tables.empty())
      return absl::NotFoundError(fmt::format("memledger: `{}` is not a function that is profiled", function));
  }
  write_text(out, profile, *parsed);
  out.flush();
  return absl::OkStatus();
}

absl::Status LineProfiler::write_json(std::ostream& out, const std::vector<std::string>& columns) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  memledger::write_json(out, profile(), *parsed);
  return absl::OkStatus();
}

absl::Status LineProfiler::write_html(std::ostream& out, const std::vector<std::string>& columns) const {
  const auto parsed = parse_line_columns(columns);
  if (!parsed.ok()) return parsed.status();
  memledger::write_html(out, profile(), *parsed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StorageInfo>> LineProfiler::alive_at_peak(const std::string& function, int64_t line) const {
  if (!state_->recorder)
    return absl::FailedPreconditionError("memledger: who was alive is kept with LineProfilerOptions::who_was_alive only");
  const LineProfile profile = this->profile();
  const LineFigures* figures = nullptr;
  for (const LineTable& table : profile.tables) {
    const std::string& own = table.function;
    if (own.size() < function.size() || own.compare(own.size() - function.size(), std::string::npos, function) != 0) continue;
    for (const LineRow& row : table.rows) {
      if (row.line == line && row.figures && row.figures->peak_time_ns > 0) figures = &*row.figures;
    }
  }
  if (figures == nullptr)
    return absl::NotFoundError(fmt::format("memledger: nothing was allocated or freed in line {} of `{}`", line, function));
  const int64_t at = figures->peak_time_ns;
  const Recording recording = state_->recorder->read();
  if (recording.begin_ns > at)
    return absl::OutOfRangeError(fmt::format("memledger: line {} of `{}` had its peak too long ago", line, function));
  std::vector<StorageInfo> alive;
  const c10::Device device = LineLogs::target();
  for (const Lifetime& life : recording.lifetimes) {
    if (life.storage.device == device && life.born_ns.value_or(0) <= at && life.died_ns.value_or(at + 1) > at)
      alive.push_back(life.storage);
  }
  return alive;
}

}  // namespace memledger
