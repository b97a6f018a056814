#include "runner/inside/watch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "registry/hooks/close_books.h"
#include "registry/hooks/demand_observer.h"
#include "registry/hooks/python_stack.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/libtorch/forget_cuda.h"
#include "registry/registry.h"
#include "registry/second_copy/copies.h"
#include "reporter/out_of_memory.h"
#include "runner/environment.h"
#include "runner/inside/demand_thread.h"
#include "runner/inside/failure_holders.h"
#include "runner/inside/holders.h"
#include "runner/inside/measure.h"
#include "runner/inside/memory_limits.h"
#include "runner/inside/process_end.h"
#include "runner/inside/python_lines.h"
#include "runner/inside/python_program.h"
#include "runner/inside/run_report.h"
#include "runner/inside/write_in_copy.h"
#include "text/bytes.h"
#include "text/names.h"
#include "text/output.h"
#include "tracker/line_profiler.h"
#include "tracker/timeline.h"

namespace memledger::inside {
namespace {

// 75 MB when full.
constexpr size_t kTimelineEvents = size_t{1} << 19;
// Nearly all tensors of 1 MiB and more have their line.
constexpr int64_t kBytesPerStack = int64_t{256} << 10;

struct Watch {
  environment::Settings settings;
  pid_t process = 0;
  bool reports = false;              // on standard error or in the folder
  std::string folder;                // for reports; empty: standard error
  RunFile saved_report;              // empty: none
  RunFile timeline_file;             // empty: none
  std::optional<Timeline> timeline;  // never destroyed
  LineProfiler* lines = nullptr;
  RunFile lines_text, lines_json, lines_html;
  // Collected where Python's interpreter has ended before the program.
  CollectedRunPtr at_interpreters_end, rows_at_interpreters_end;
  bool wrote_timeline_and_lines = false;
  std::atomic<bool> main_has_begun{false};
  std::atomic<bool> reported{false};
  std::atomic<bool> is_launcher{false};
  std::optional<MemoryLimits> limits;
  std::atomic<bool> told_near_limit{false};
  bool looked_up_holders = false;  // for the report on demand that is next
};

// Never destroyed: the report is written while the process goes down.
Watch& watch() {
  static auto* const watch = new Watch;
  return *watch;
}

const char* value_of(const char* variable) { return secure_getenv(variable); }

int rank_of_this_process() { return environment::rank(&value_of); }

ProcessOfRun this_process() {
  return {watch().process,
          rank_of_this_process(),
          watch().settings.full_report,
          !watch().settings.saved_report.empty(),
          watch().settings.folder,
          watch().settings.training_paused};
}

void tell(const absl::Status& status) { memledger::tell({std::string(status.message())}); }

// Writes into the folder, or to standard error in one piece, so that other ranks' output does not
// come in between.
void write(const std::string& file_stem, std::string_view what, const std::string& text) {
  if (!watch().folder.empty()) {
    const auto path = write_new_file(watch().folder + "/" + file_stem, ".txt", what, text);
    if (path.ok()) return part_is_written();
    tell(path.status());
  }
  if (!watch().settings.quiet) write_standard_error(text);
  part_is_written();
}

std::string_view words_for(RunFile::Taker taker) {
  switch (taker) {
    case RunFile::Taker::kThisRun:
      return "another process of this run wrote ";
    case RunFile::Taker::kAnotherRun:
      return "another run has meanwhile written ";
    default:
      return "another process, it is not known of which run, wrote ";
  }
}

// Where the user will find a file.
std::string_view shown_path(std::string_view path) {
  const std::string& outputs = watch().settings.outputs;
  const bool is_there = !outputs.empty() && path.substr(0, outputs.size()) == outputs;
  return is_there ? path.substr(outputs.size()) : path;
}

// Writes to a path that the user gave once for all processes of the run.
void write(const RunFile& file, std::string_view what, const Write& write) {
  if (file.empty()) return;
  const auto written = file.write(what, write);
  if (!written.ok()) {
    tell(written.status());
  } else if (written->taker != RunFile::Taker::kNobody) {
    memledger::tell({"memledger: ", words_for(written->taker), shown_path(file.path()), "; the ",
                     what, " of process ", std::to_string(watch().process), ", rank ",
                     std::to_string(rank_of_this_process()), ", is in ",
                     shown_path(written->path)});
  }
}

// Returns an absolute path now, as the program may change its folder later.
std::string path_for_this_process(const std::string& pattern) {
  const std::filesystem::path path =
      environment::expand(pattern, rank_of_this_process(), watch().process);
  const std::filesystem::path absolute = std::filesystem::absolute(watch().settings.folder / path);
  const std::string& outputs = watch().settings.outputs;
  if (outputs.empty() || shown_path(absolute.string()).rfind("/dev/", 0) == 0) return absolute;
  return outputs + absolute.lexically_normal().string();
}

// True for a launcher, whose report would otherwise pass for that of rank 0.
bool made_no_tensor() {
  const Registry& registry = Registry::global();
  const auto made_some = [](const Counters& counters) {
    return counters.allocated_count + counters.freed_count + counters.current_count > 0;
  };
  if (!registry.active() || made_some(registry.counters(c10::kCPU))) return false;
  const Snapshot now = registry.snapshot();
  for (const DeviceInfo& device : now.devices()) {
    if (made_some(device.counters)) return false;
  }
  return true;
}

// A launcher and its workers have nothing to report; a program that the user started himself, and
// that starts no other, has. Looked at before the end, as a copy of the process has no children.
void note_children() noexcept {
  rusage ended{};
  siginfo_t living{};
  const bool has_some = waitid(P_ALL, 0, &living, WEXITED | WNOHANG | WNOWAIT) == 0 ||
                        (getrusage(RUSAGE_CHILDREN, &ended) == 0 && ended.ru_maxrss > 0);
  watch().is_launcher.store(has_some);
}

bool is_expected_to_make_tensors() {
  return watch().settings.process == watch().process && !watch().is_launcher.load();
}

void write_lines() {
  Watch& watch = inside::watch();
  const std::vector<std::string>& columns = watch.settings.lines.columns;
  watch.lines->disable();
  std::ostringstream text;
  const absl::Status status = watch.lines->print_stats(text, columns);
  if (!status.ok()) {
    tell(status);
    return;
  }
  write("memledger-lines", "line profile", text.str());
  write(watch.lines_text, "line profile", [&](std::ostream& out) { out << text.str(); });
  write(watch.lines_json, "line profile",
        [&](std::ostream& out) { watch.lines->write_json(out, columns).IgnoreError(); });
  write(watch.lines_html, "line profile",
        [&](std::ostream& out) { watch.lines->write_html(out, columns).IgnoreError(); });
}

// Returns the file, in a folder that is there.
RunFile file_at(const std::string& pattern) {
  if (pattern.empty()) return RunFile();
  RunFile file(path_for_this_process(pattern));
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file.path()).parent_path(), error);
  return file;
}

void begin_lines() {
  Watch& watch = inside::watch();
  const environment::LineSettings& settings = watch.settings.lines;
  watch.lines_text = file_at(settings.text_file);
  watch.lines_json = file_at(settings.json_file);
  watch.lines_html = file_at(settings.html_file);
  // GPU 0 is the target from its first use on anyway, and the CPU where there is none.
  if (const int gpu = settings.gpu.value_or(0); gpu > 0)
    internal::set_target_device_unseen(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu)));
  profile_python_functions(settings.functions);
  watch.lines = new LineProfiler(settings.functions);
  watch.lines->enable().release();
}

// Not before main: LibTorch would remember an answer that was too early.
void check_gpu() noexcept {
  const std::optional<int> gpu = watch().settings.lines.gpu;
  if (!gpu) return;
  const auto* const guard =
      c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  const int count = guard == nullptr ? 0 : guard->deviceCount();
  if (*gpu < count) return;
  memledger::tell({"memledger: -g ", std::to_string(*gpu), ": LibTorch sees ",
                   std::to_string(count), count == 1 ? " CUDA device" : " CUDA devices",
                   count == 0 ? "; the line profile is of the CPU" : ""});
  if (count == 0 && *gpu > 0) set_target_device(c10::Device(c10::DeviceType::CPU));
}

void write_timeline() {
  Watch& watch = inside::watch();
  write(watch.timeline_file, "timeline", [&](std::ostream& out) {
    memledger::write_timeline(watch.timeline->read(), watch.timeline_file.path(), out);
  });
}

void write_saved_report(const ProgramEnd& end) {
  Watch& watch = inside::watch();
  if (watch.saved_report.empty()) return;
  CollectedRunPtr run = std::move(watch.rows_at_interpreters_end);
  if (run == nullptr) run = collect_run(this_process(), /*every_row=*/true);
  write(watch.saved_report, "report",
        [&](std::ostream& out) { write_run_report(*run, end, watch.saved_report.path(), out); });
}

void write_report(const std::string& file_stem, const ProgramEnd& end) {
  CollectedRunPtr run;
  if (!end.goes_on()) run = std::move(watch().at_interpreters_end);
  if (run == nullptr) run = collect_run(this_process(), /*every_row=*/false, end.goes_on());
  write(file_stem, "report", run_report_text(*run, end));
}

void tell_no_report(const std::exception& error) {
  memledger::tell({"memledger: no report: ", first_line(error.what())});
}

// What is written at an end, the most wanted and cheapest first. Each part has a deadline of its
// own (process_end.cc).
enum Part : int { kSummary, kSavedReport, kTimeline, kLines, kParts };

void tell_no_tensor() {
  if (watch().settings.quiet || !watch().folder.empty() || !is_expected_to_make_tensors()) return;
  memledger::tell({"memledger: process ", std::to_string(watch().process), ", rank ",
                   std::to_string(rank_of_this_process()), ", made no tensor: nothing to report"});
  part_is_written();
}

bool is_asked_for(int part) {
  const Watch& watch = inside::watch();
  switch (part) {
    case kSavedReport:
      return !watch.saved_report.empty();
    case kTimeline:
      return !watch.timeline_file.empty() && !watch.wrote_timeline_and_lines;
    case kLines:
      return watch.lines != nullptr && !watch.wrote_timeline_and_lines;
    default:
      return true;
  }
}

void write_part(const ProgramEnd& end, int part) {
  try {
    if (!is_asked_for(part)) return;
    if (made_no_tensor()) {
      if (part == kSummary) tell_no_tensor();
      return;
    }
    if (part == kSummary && watch().reports) write_report("memledger-exit", end);
    if (part == kSavedReport) write_saved_report(end);
    if (part == kTimeline) write_timeline();
    if (part == kLines) write_lines();
  } catch (const std::exception& error) {
    tell_no_report(error);
  }
}

ProgramEnd program_end(const EndOfProcess& end) {
  using Kind = EndOfProcess::Kind;
  ProgramEnd result;
  switch (end.kind) {
    case Kind::kExit:
      result.kind = ProgramEnd::Kind::kExit;
      result.status = end.status;
      break;
    case Kind::kQuickExit:
      result.kind = ProgramEnd::Kind::kQuickExit;
      break;
    case Kind::kSuddenExit:
      result.kind = ProgramEnd::Kind::kSuddenExit;
      result.status = end.status;
      break;
    case Kind::kExec:
      result.kind = ProgramEnd::Kind::kExec;
      result.details = table_name(end.program, 80);
      break;
    case Kind::kSignal:
      result.kind = ProgramEnd::Kind::kSignal;
      result.signal = end.signal;
      if (result.signal != "SIGABRT") break;
      if (const std::string exception = uncaught_exception(); !exception.empty())
        result.details = "uncaught exception: " + table_name(exception, 80);
      break;
    case Kind::kOnDemand:
      result.kind = ProgramEnd::Kind::kOnDemand;
      break;
  }
  return result;
}

// In a copy of the process.
void write_about(const EndOfProcess& end, int part) {
  reopen_books();
  // Without a handler from after main began this is the last of all, and LibTorch's CUDA library
  // may be gone.
  if (end.kind == EndOfProcess::Kind::kExit && !watch().main_has_begun.load()) forget_cuda();
  forget_device_memory();  // CUDA refuses every call in a copy of the process
  if (!end.goes_on() || !watch().looked_up_holders) forget_holders();
  if (end.goes_on()) {
    write_report("memledger-now", program_end(end));
  } else {
    write_part(program_end(end), part);
  }
}

void report_at_exit(int status, void* /*unused*/) {
  EndOfProcess end;
  end.kind = EndOfProcess::Kind::kExit;
  end.status = status;
  report_exit(end);
}
void report_at_quick_exit() {
  EndOfProcess end;
  end.kind = EndOfProcess::Kind::kQuickExit;
  report_exit(end);
}

// A line that is composed in a signal handler.
class Line {
 public:
  Line& add(const char* text) noexcept {
    const size_t length = std::min(std::strlen(text), text_.size() - 1 - size_);
    std::memcpy(&text_[size_], text, length);
    size_ += length;
    return *this;
  }
  void write() noexcept {
    text_[size_++] = '\n';
    write_standard_error({text_.data(), size_});
  }

 private:
  std::array<char, 1024> text_{};
  size_t size_ = 0;
};

const char* call_of(const EndOfProcess& end) {
  switch (end.kind) {
    case EndOfProcess::Kind::kExit:
      return "exit";
    case EndOfProcess::Kind::kQuickExit:
      return "quick_exit()";
    case EndOfProcess::Kind::kSuddenExit:
      return "_exit()";
    case EndOfProcess::Kind::kExec:
      return "exec";
    case EndOfProcess::Kind::kSignal:
    case EndOfProcess::Kind::kOnDemand:
      return end.signal;
  }
  return "";
}

const char* part_in_handler(int part) {
  switch (part) {
    case kSavedReport:
      return watch().saved_report.path().c_str();
    case kTimeline:
      return watch().timeline_file.path().c_str();
    case kLines:
      return "line profile";
    default:
      return "report";
  }
}

void tell_why_no_report(const EndOfProcess& end, int part, const char* reason) noexcept {
  if (part == kSummary ? !watch().reports : !is_asked_for(part)) return;
  Line line;
  line.add("memledger: no ").add(part_in_handler(part)).add(end.goes_on() ? " on " : " at ");
  line.add(call_of(end)).add(": ").add(reason).write();
}

bool take_end(const EndOfProcess& end) noexcept {
  if (end.goes_on()) {
    watch().looked_up_holders = watch().reports && is_demand_thread() && search_and_wait();
    return watch().reports;
  }
  note_children();
  return !watch().reported.exchange(true);
}

void give_back_end(const EndOfProcess& end) noexcept {
  const bool is_exec = end.kind == EndOfProcess::Kind::kExec;
  if (!watch().reported.exchange(false) || watch().settings.quiet || !is_exec) return;
  Line()
      .add("memledger: exec of ")
      .add(end.program)
      .add(" has failed: the program goes on")
      .write();
}

ProgramEnd near_limit(const MemoryUse& use, int64_t asked_bytes) {
  ProgramEnd end;
  end.kind = ProgramEnd::Kind::kNearLimit;
  end.details = readable_size(use.used_bytes) + " of " + readable_size(use.limit_bytes) +
                " used, " + readable_size(asked_bytes) + " asked for";
  return end;
}

// Called before memory is asked for, as the kernel kills without a word. Once per process.
void report_if_near_limit(int64_t nbytes) noexcept {
  Watch& watch = inside::watch();
  static std::atomic<int64_t> next_look_ns{0};
  constexpr int64_t kBetweenLooksNs = 20'000'000;
  constexpr int64_t kLargeBytes = int64_t{256} << 20;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  int64_t next = next_look_ns.load(std::memory_order_relaxed);
  if ((now < next && nbytes < kLargeBytes) || watch.told_near_limit.load() ||
      getpid() != watch.process ||
      !next_look_ns.compare_exchange_strong(next, now + kBetweenLooksNs))
    return;
  try {
    const auto use = watch.limits->nearest();
    const int percent = watch.settings.report_near.value_or(environment::kDefaultReportNear);
    if (!use || use->used_bytes + nbytes < use->limit_bytes / 100 * percent) return;
    if (watch.told_near_limit.exchange(true)) return;
    forget_holders();
    write_report("memledger-near-limit", near_limit(*use, nbytes));
  } catch (const std::exception& error) {
    memledger::tell({"memledger: no report near the memory's limit: ", first_line(error.what())});
  }
}

void begin_limits() {
  Watch& watch = inside::watch();
  if (watch.settings.report_near == 0) return;  // never
  watch.limits.emplace();
  if (watch.limits->nearest()) set_demand_observer(&report_if_near_limit);
}

void begin_ends() {
  EndWriter writer;
  writer.take = &take_end;
  writer.give_back = &give_back_end;
  writer.write = &write_about;
  writer.parts = kParts;
  writer.tell_why_not = &tell_why_no_report;
  writer.on_demand = signal_on_demand(watch().settings.report_on.c_str());
  watch_ends(writer);
  if (watch().reports) take_on_own_thread(writer.on_demand);
  on_exit(&report_at_exit, nullptr);
  std::at_quick_exit(&report_at_quick_exit);
}

void prepare_folder() {
  Watch& watch = inside::watch();
  const std::string& pattern = watch.settings.log_folder;
  if (pattern.empty()) return;
  std::error_code error;
  const std::filesystem::path folder = path_for_this_process(pattern);
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK) == 0 && std::filesystem::is_directory(folder, error)) {
    watch.folder = folder;
    return;
  }
  const std::string reason = error ? error.message() : std::strerror(errno);
  memledger::tell(
      {"memledger: ", environment::kLog, "=", pattern, ": cannot write to ", folder.string(), ": ",
       reason,
       watch.settings.quiet ? "; there will be no reports" : "; reports go to standard error"});
}

void begin_saved_report() { watch().saved_report = file_at(watch().settings.saved_report); }

void begin_timeline() {
  Watch& watch = inside::watch();
  watch.timeline_file = file_at(watch.settings.timeline);
  watch.timeline.emplace(TimelineOptions{kTimelineEvents});
}

void report_out_of_memory() {
  OutOfMemoryOptions options;
  options.folder = watch().folder;
  options.quiet = watch().settings.quiet;
  options.keep_last = true;
  options.told = &note_failure;
  if (const absl::Status status = write_out_of_memory_reports(options); !status.ok()) tell(status);
}

RegistryOptions options_for(const std::string& stacks, const std::string& detail) {
  RegistryOptions options;
  const bool names_only = detail == "names";
  if (names_only) options.detail = RegistryOptions::Detail::kNames;
  if (stacks == "all") options.stacks = StackOptions::all();
  if (stacks == "sampled") options.stacks = StackOptions::sampled(kBytesPerStack);
  if (stacks.empty() && !names_only)
    StackSampler::set_default(StackOptions::sampled(kBytesPerStack));
  return options;
}

void begin(const environment::Settings& settings) {
  Watch& watch = inside::watch();
  watch.settings = settings;
  watch.process = getpid();
  prepare_folder();
  watch.reports = settings.report && !(settings.quiet && watch.folder.empty());
  static const auto* const tracking =
      new ScopedTracking(options_for(settings.stacks, settings.detail));  // never ends
  if (absl::IsFailedPrecondition(tracking->status()) || !Registry::global().active()) return;
  if (!settings.lines.functions.empty()) begin_lines();
  if (!settings.saved_report.empty()) begin_saved_report();
  if (watch.reports || !settings.saved_report.empty()) begin_run_report(settings.detail == "names");
  if (!settings.timeline.empty()) begin_timeline();
  begin_ends();
  tell_python_names_soon();
  if (!watch.reports) return;
  report_out_of_memory();
  begin_limits();
}

// After the registry's own work at load (101, 102).
__attribute__((constructor(103))) void watch_if_asked() {
  try {
    const environment::Settings settings = environment::parse(&value_of);
    const bool asked = settings.report || !settings.saved_report.empty() ||
                       !settings.timeline.empty() || !settings.lines.functions.empty();
    // Where another copy of memledger in this process has taken the report, it does all this.
    if (asked && take_exit_report()) {
      for (const std::string& line : environment::wrong_variables(&value_of))
        memledger::tell({"memledger: ", line, "; the default is taken"});
      begin(settings);
    }
    measure_if_asked();
  } catch (const std::exception& error) {
    memledger::tell({"memledger: this program is not watched: ", first_line(error.what())});
  }
}

}  // namespace

void interpreter_ends() {
  PythonStack::stop();
  measure_before_python_ends();
  Watch& watch = inside::watch();
  if (getpid() != watch.process || watch.reported.load()) return;
  forget_device_memory();
  try {
    if (made_no_tensor()) return;
    for (const int part : {kTimeline, kLines}) write_part({}, part);
    watch.wrote_timeline_and_lines = true;
    if (!watch.saved_report.empty())
      watch.rows_at_interpreters_end = collect_run(this_process(), /*every_row=*/true);
    if (watch.reports) watch.at_interpreters_end = collect_run(this_process(), /*every_row=*/false);
  } catch (const std::exception& error) {
    tell_no_report(error);
  }
}

}  // namespace memledger::inside

extern "C" __attribute__((visibility("default"))) void memledger_main_begins() {
  memledger::inside::measure_main_begins();
  memledger::inside::Watch& watch = memledger::inside::watch();
  if (watch.process == 0) return;
  memledger::inside::tell_python_names_now();  // a plugin may have brought Python
  if (watch.main_has_begun.exchange(true)) return;
  memledger::inside::check_gpu();
  on_exit(&memledger::inside::report_at_exit, nullptr);
}
