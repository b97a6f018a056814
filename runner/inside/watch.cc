#include "runner/inside/watch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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

#include "absl/strings/numbers.h"
#include "registry/libtorch/forget_cuda.h"
#include "registry/registry.h"
#include "registry/second_copy/copies.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "text/output.h"
#include "tracker/line_profiler.h"
#include "tracker/timeline.h"

namespace memledger::inside {
namespace {

constexpr size_t kPeakRows = 20;

// 75 MB if it fills.
constexpr size_t kTimelineEvents = size_t{1} << 19;

struct Watch {
  pid_t process = 0;
  bool reports = false;
  bool quiet =
      false;  // no report on standard error; why one cannot be written is said all the same
  RunFile timeline_file;             // empty: none
  std::optional<Timeline> timeline;  // never destroyed
  std::string folder;                // empty: standard error
  // The line profile.
  LineProfiler* lines = nullptr;
  RunFile lines_text, lines_json, lines_html;
  std::vector<std::string> columns;
  std::optional<int> gpu;  // that was asked for
  std::atomic<bool> main_has_begun{false};
  std::atomic<bool> reported{false};
};

// Never destroyed: the report is written while the process goes down.
Watch& watch() {
  static auto* const one = new Watch;
  return *one;
}

bool is_on(const char* value) {
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

void tell(const absl::Status& status) { memledger::tell({std::string(status.message())}); }

// Into the folder, or whole to standard error, so that what other ranks write to the same terminal
// does not come in between.
void write(const std::string& file_stem, std::string_view what, const std::string& text) {
  if (!watch().folder.empty()) {
    const auto path = write_new_file(watch().folder + "/" + file_stem, ".txt", what, text);
    if (path.ok()) return;
    tell(path.status());
  }
  if (!watch().quiet) write_standard_error(text);
}

// To a path that was spelt once for all processes of the run.
void write(const RunFile& file, std::string_view what, const Write& write) {
  if (file.empty()) return;
  const auto path = file.write(what, write);
  if (!path.ok()) {
    tell(path.status());
  } else if (*path != file.path()) {
    memledger::tell({"memledger: ", file.path(), " is of another process of this run; the ", what,
                     " of process ", std::to_string(watch().process), ", rank ",
                     std::to_string(rank_of_this_process()), ", is ", *path});
  }
}

std::string report_text(std::string_view when) {
  std::ostringstream out;
  out << fmt::format("memledger: process {}, rank {}, {}\n", watch().process,
                     rank_of_this_process(), when);
  const MemReporter reporter;
  const Report report = reporter.collect();
  for (const DeviceReport& device : report.devices) {
    out << fmt::format("Peak on {}: {} bytes requested\n", device.device.str(),
                       device.counters.peak_bytes);
  }
  out << report;
  ReportOptions few;
  few.max_rows = kPeakRows;
  for (const DeviceReport& device : report.devices) {
    if (device.counters.peak_bytes > device.counters.current_bytes)
      out << reporter.collect_peak(device.device, few);
  }
  return std::move(out).str();
}

const char* value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// A name means what it meant to the caller of the runner, or when the program began: the program
// may change its folder later.
std::string path_for_this_process(const char* pattern) {
  const std::filesystem::path path =
      expand_log_folder(pattern, rank_of_this_process(), watch().process);
  const std::string callers_folder = value_of("MEMLEDGER_FOLDER");
  return std::filesystem::absolute(callers_folder.empty() ? path : callers_folder / path).string();
}

// A launcher, for one: torchrun's would be rank 0, too.
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

void write_lines() {
  Watch& watch = inside::watch();
  watch.lines->disable();
  std::ostringstream text;
  const absl::Status status = watch.lines->print_stats(text, watch.columns);
  if (!status.ok()) {
    tell(status);
    return;
  }
  write("memledger-lines", "line profile", text.str());
  write(watch.lines_text, "line profile", [&](std::ostream& out) { out << text.str(); });
  write(watch.lines_json, "line profile",
        [&](std::ostream& out) { watch.lines->write_json(out, watch.columns).IgnoreError(); });
  write(watch.lines_html, "line profile",
        [&](std::ostream& out) { watch.lines->write_html(out, watch.columns).IgnoreError(); });
}

void begin_lines() {
  Watch& watch = inside::watch();
  const auto words = [](const char* variable) {
    std::vector<std::string> result;
    std::istringstream in(value_of(variable));
    for (std::string word; std::getline(in, word);) result.push_back(word);
    return result;
  };
  for (const auto& [variable, file] : {std::pair{"MEMLEDGER_LINES_TEXT", &watch.lines_text},
                                       std::pair{"MEMLEDGER_LINES_JSON", &watch.lines_json},
                                       std::pair{"MEMLEDGER_LINES_HTML", &watch.lines_html}}) {
    if (*value_of(variable) != '\0') *file = RunFile(path_for_this_process(value_of(variable)));
  }
  watch.columns = words("MEMLEDGER_LINE_COLUMNS");
  int gpu = 0;
  if (absl::SimpleAtoi(value_of("MEMLEDGER_LINES_GPU"), &gpu)) watch.gpu = gpu;
  // The first is the target from its first use on anyway, and the CPU where there is none.
  if (gpu > 0)
    internal::set_target_device_unseen(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu)));
  watch.lines = new LineProfiler(words("MEMLEDGER_LINES"));
  watch.lines->enable().release();
}

// Not before main: LibTorch would remember an answer that was too early.
void check_gpu() noexcept {
  const std::optional<int> gpu = watch().gpu;
  if (!gpu) return;
  const auto* const guard =
      c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  const int count = guard == nullptr ? 0 : guard->deviceCount();
  if (*gpu < count) return;
  memledger::tell({"memledger: -g ", std::to_string(*gpu), ": LibTorch sees ",
                   std::to_string(count), " CUDA devices",
                   count == 0 ? "; the line profile is of the CPU" : ""});
  if (count == 0 && *gpu > 0) set_target_device(c10::Device(c10::DeviceType::CPU));
}

void report_at_exit() {
  if (getpid() != watch().process || watch().reported.exchange(true)) return;
  // Without a handler from after main began this is the last of all, and LibTorch's CUDA library
  // may be gone.
  if (!watch().main_has_begun.load()) forget_cuda();
  forget_device_memory();
  try {
    if (made_no_tensor()) {
      if (!watch().quiet && watch().folder.empty()) {
        memledger::tell({"memledger: process ", std::to_string(watch().process), ", rank ",
                         std::to_string(rank_of_this_process()),
                         ", made no tensor: nothing to report"});
      }
      return;
    }
    write(watch().timeline_file, "timeline", [](std::ostream& out) {
      write_timeline(watch().timeline->read(), watch().timeline_file.path(), out);
    });
    if (watch().lines != nullptr) write_lines();
    if (watch().reports) write("memledger-exit", "report", report_text("at its end"));
  } catch (const std::exception& error) {
    memledger::tell({"memledger: no report: ", first_line(error.what())});
  }
}

void prepare_folder(const char* pattern) {
  Watch& watch = inside::watch();
  std::error_code error;
  const std::filesystem::path folder = path_for_this_process(pattern);
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK) == 0 && std::filesystem::is_directory(folder, error)) {
    watch.folder = folder;
    return;
  }
  memledger::tell({"memledger: MEMLEDGER_LOG=", pattern, ": cannot write to ", folder.string(),
                   ": ", error ? error.message() : std::strerror(errno),
                   watch.quiet ? "; there will be no reports" : "; reports go to standard error"});
}

// After the registry's own work at load (101, 102).
__attribute__((constructor(103))) void watch_if_asked() {
  const bool reports = is_on(std::getenv("MEMLEDGER"));
  const char* const timeline = std::getenv("MEMLEDGER_TIMELINE");
  const bool has_timeline = timeline != nullptr && *timeline != '\0';
  const bool lines = *value_of("MEMLEDGER_LINES") != '\0';
  if (!reports && !has_timeline && !lines) return;
  try {
    if (!take_exit_report()) return;  // another copy of memledger in this process does all this
    watch().process = getpid();
    watch().quiet = is_on(std::getenv("MEMLEDGER_QUIET"));
    if (const char* const pattern = std::getenv("MEMLEDGER_LOG");
        pattern != nullptr && *pattern != '\0')
      prepare_folder(pattern);
    watch().reports = reports && !(watch().quiet && watch().folder.empty());
    if (const absl::Status status = Registry::global().activate(); !status.ok()) {
      if (absl::IsFailedPrecondition(status)) return;  // told at load
      memledger::tell({"memledger: ", std::string(status.message())});
      if (!Registry::global().active()) return;
    }
    if (lines) begin_lines();
    if (has_timeline) {
      watch().timeline_file = RunFile(path_for_this_process(timeline));
      std::error_code error;
      std::filesystem::create_directories(
          std::filesystem::path(watch().timeline_file.path()).parent_path(), error);
      watch().timeline.emplace(TimelineOptions{kTimelineEvents});
    }
    std::atexit(&report_at_exit);
    if (!watch().reports) return;
    OutOfMemoryOptions out_of_memory;
    out_of_memory.folder = watch().folder;
    out_of_memory.quiet = watch().quiet;
    if (const absl::Status status = write_out_of_memory_reports(out_of_memory); !status.ok()) {
      tell(status);
    }
  } catch (const std::exception& error) {
    memledger::tell({"memledger: this program is not watched: ", first_line(error.what())});
  }
}

}  // namespace

int rank_of_this_process() {
  for (const char* const name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* const value = std::getenv(name);
    int rank = 0;
    if (value != nullptr && absl::SimpleAtoi(value, &rank)) return rank;
  }
  return 0;
}

std::string expand_log_folder(std::string_view pattern, int rank, int process) {
  std::string folder;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'r' || next == 'p') {
      folder += std::to_string(next == 'r' ? rank : process);
      ++i;
    } else if (next == '%') {
      folder += '%';
      ++i;
    } else {
      folder += pattern[i];
    }
  }
  return folder;
}

}  // namespace memledger::inside

// Called by libmemledger_preload.so when the program's main begins, or finds it running.
extern "C" __attribute__((visibility("default"))) void memledger_main_begins() {
  memledger::inside::Watch& watch = memledger::inside::watch();
  if (watch.process == 0 || watch.main_has_begun.exchange(true)) return;
  memledger::inside::check_gpu();
  std::atexit(&memledger::inside::report_at_exit);
}
