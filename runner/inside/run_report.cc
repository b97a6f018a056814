#include "runner/inside/run_report.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/hooks/before_resets.h"
#include "registry/hooks/inlined_calls.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/libtorch/libtorch_version.h"
#include "registry/libtorch/newest_libtorch.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "registry/step_history.h"
#include "reporter/formats/report_page.h"
#include "reporter/formats/run_causes.h"
#include "reporter/formats/run_summary.h"
#include "reporter/last_out_of_memory.h"
#include "reporter/mem_reporter.h"
#include "runner/inside/cache_at_peak.h"
#include "runner/inside/checkpointed.h"
#include "runner/inside/failure_holders.h"
#include "runner/inside/holders.h"
#include "runner/inside/kept_results.h"
#include "runner/inside/real_devices.h"
#include "runner/inside/unreal_files_names.h"
#include "text/bytes.h"
#include "text/json.h"
#include "text/names.h"
#include "virtual_gpu/device_use.h"
#include "virtual_gpu/values/zero_reads.h"

namespace memledger::inside {
namespace {

constexpr size_t kLines = 40;
constexpr size_t kLeastLines = 20;  // in addition to those of a failed allocation
constexpr size_t kPeakRows = 20;    // of a table

// The process may have been copied to write the report.
std::vector<std::string> command_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", process));
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// Returns train.py of `python -u train.py`, pkg.train of `python -m pkg.train`.
std::string program_of(const std::vector<std::string>& command) {
  if (command.empty()) return "the program";
  const std::string program(base_name(command.front()));
  if (program.rfind("python", 0) != 0) return program;
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i] == "-c") break;
    if (command[i] == "-m" && i + 1 < command.size()) return command[i + 1];
    if (command[i].empty() || command[i].front() != '-') return std::string(base_name(command[i]));
  }
  return program;
}

// Returns the seconds since the process began.
std::optional<double> seconds_of(pid_t process) {
  constexpr int kStartTime = 22 - 3;  // fields of proc(5) behind the name, which may have blanks
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  timespec now{};
  if (words.size() <= kStartTime || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  const double began = std::stod(words[kStartTime]) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::max(
      0.0, static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - began);
}

std::string how_text(const ProgramEnd& end) {
  const std::string status = end.status ? fmt::format("({})", *end.status & 0xff) : "";
  switch (end.kind) {
    case ProgramEnd::Kind::kExit:
      return status.empty() ? " ended" : " ended " + status;
    case ProgramEnd::Kind::kQuickExit:
      return " ended by quick_exit()";
    case ProgramEnd::Kind::kSuddenExit:
      return " ended by _exit" + (status.empty() ? "()" : status);
    case ProgramEnd::Kind::kExec:
      return " ended by exec";
    case ProgramEnd::Kind::kSignal:
      return " ended by " + end.signal;
    case ProgramEnd::Kind::kOnDemand:
      return ", on demand,";
    case ProgramEnd::Kind::kNearLimit:
      return " is near the limit of its control group";
  }
  return "";
}

std::string_view machine_name(ProgramEnd::Kind kind) {
  switch (kind) {
    case ProgramEnd::Kind::kExit:
      return "exit";
    case ProgramEnd::Kind::kQuickExit:
      return "quick_exit";
    case ProgramEnd::Kind::kSuddenExit:
      return "_exit";
    case ProgramEnd::Kind::kExec:
      return "exec";
    case ProgramEnd::Kind::kSignal:
      return "signal";
    case ProgramEnd::Kind::kOnDemand:
      return "on_demand";
    case ProgramEnd::Kind::kNearLimit:
      return "near_limit";
  }
  return "";
}

// What LibTorch's allocator and the virtual GPU say of a device's peak.
PeakFigures peak_figures(c10::Device device) {
  PeakFigures figures;
  if (!device.is_cuda()) return figures;
  const auto index = static_cast<size_t>(static_cast<unsigned char>(device.index()));
  const BeforeResets before = before_resets(static_cast<int>(index));
  if (const auto statistics = device_statistics(device); statistics && statistics->caching) {
    figures.allocated_peak = std::max(statistics->allocated_bytes.peak, before.allocated_peak);
    figures.reserved_peak = std::max(statistics->reserved_bytes.peak, before.reserved_peak);
  }
  const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_uses)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses"));
  if (ask == nullptr) return figures;
  std::vector<memledger_virtual_gpu_use> uses(ask(nullptr, 0));
  uses.resize(std::min(uses.size(), ask(uses.data(), uses.size())));
  if (index >= uses.size()) return figures;
  figures.gpu = uses[index].name;
  figures.capacity = static_cast<int64_t>(uses[index].total_bytes);
  return figures;
}

bool was_used(const DeviceReport& device) { return device.counters.peak_bytes > 0; }

// Adds a report of one device to that of all.
void append(Report& all, Report one) {
  std::move(one.devices.begin(), one.devices.end(), std::back_inserter(all.devices));
  all.complete = all.complete && one.complete;
  all.deaths_known = all.deaths_known && one.deaths_known;
  all.time = one.time;
}

Report peaks_of(const MemReporter& reporter, const Report& end, const ReportOptions& options) {
  Report peaks;
  peaks.of_peak = true;
  peaks.options = options;
  for (const DeviceReport& device : end.devices) {
    if (was_used(device)) append(peaks, reporter.collect_peak(device.device, options));
  }
  return peaks;
}

std::optional<DeviceReport> find(const Report& report, c10::Device device) {
  for (const DeviceReport& one : report.devices) {
    if (one.device == device) return one;
  }
  return std::nullopt;
}

// A device that has nothing at that moment.
DeviceReport nothing_on(c10::Device device) {
  DeviceReport report;
  report.device = device;
  report.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
  return report;
}

std::string failures_text() {
  const std::optional<LastOutOfMemory> last = last_out_of_memory();
  if (!last) return "";
  return fmt::format("out of memory{}:\n",
                     last->failures == 1 ? "" : fmt::format(" {} times, at last", last->failures)) +
         last->page + failure_holders_text();
}

}  // namespace

class CollectedRun {
 public:
  ProcessOfRun process;
  std::vector<std::string> command;
  std::optional<double> seconds;
  std::string failures;
  int64_t own_bytes = 0;  // see own_bytes()
  StepHistory steps;
  Report peaks, last, end;
  RunReport run;
};

void DeleteCollectedRun::operator()(CollectedRun* run) const noexcept { delete run; }

namespace {

// Returns `train.py ended (0) after 12.3 s (process 71, rank 0)`.
std::string title_of(const CollectedRun& run, const ProgramEnd& end) {
  std::string text = printable(program_of(run.command)) + how_text(end);
  if (run.seconds) text += fmt::format(" after {:.1f} s", *run.seconds);
  if (!end.details.empty()) text += ": " + end.details;
  text += fmt::format(" (process {}, rank {})", run.process.process, run.process.rank);
  if (run.end.names_only) text += "; detail=names: no shapes, layers or lines";
  return text;
}

void tell_end(CollectedRun& run, const ProgramEnd& end) {
  run.run.title = title_of(run, end);
  run.run.goes_on = end.goes_on();
  run.run.is_partial =
      end.goes_on() || end.kind == ProgramEnd::Kind::kSignal || !run.failures.empty();
}

// Calls back with each row of a storage that is at least a hundredth of its device's peak.
template <typename Visit>
void for_each_large(const Report& peaks, const Visit& visit) {
  for (const DeviceReport& device : peaks.devices) {
    for (const ReportRow& row : device.rows) {
      if (row.kind == RowKind::kStorage && row.nbytes.value_or(0) * 100 >= device.total_bytes)
        visit(row);
    }
  }
}

// Where lines are missing, and what brings them.
std::string lines_note(const Report& peaks) {
  bool has_some = false, lacks_some = false, has_cpp = false;
  for_each_large(peaks, [&](const ReportRow& row) {
    if (row.stack != 0) {
      has_some = true;
      const std::vector<void*> addresses = stack_addresses(row.stack);
      has_cpp = has_cpp || (!addresses.empty() && !is_of_python(addresses.front()));
    } else if (!row.adopted && row.autograd_node.empty() && row.phase != Phase::kBackward) {
      lacks_some = true;
    }
  });
  std::string note;
  if (has_some && lacks_some && StackSampler::samples())
    note += "lines are sampled by bytes: --stacks=all has that of every tensor\n";
  if (has_cpp && !InlinedCalls::are_known())
    note +=
        "libdw.so.1 is not there: a line in an inlined call is missing (Debian and Ubuntu: "
        "apt-get install libdw1)\n";
  return note;
}

// Which option reads the gradients that were not read.
std::string unread_note(const Report& end) {
  size_t unread = 0;
  for (const DeviceReport& device : end.devices) {
    unread += static_cast<size_t>(
        std::count_if(device.rows.begin(), device.rows.end(),
                      [](const ReportRow& row) { return row.kind == RowKind::kUnread; }));
  }
  if (unread == 0) return "";
  return fmt::format(
      "{} gradient{} not read, as another thread may be setting {}: memledger run "
      "--training-paused reads {} where you promise that none does\n",
      unread, unread == 1 ? " was" : "s were", unread == 1 ? "it" : "them",
      unread == 1 ? "it" : "them");
}

// What the process had for itself once LibTorch was loaded; 0: not known.
std::atomic<int64_t> own_bytes_at_begin{0};

// Returns what the process has for itself, pages of files left out; 0: not known.
int64_t own_bytes(pid_t process) {
  std::ifstream statm(fmt::format("/proc/{}/statm", process));
  int64_t size = 0, resident = 0, of_files = 0;
  if (!(statm >> size >> resident >> of_files)) return 0;
  return (resident - of_files) * sysconf(_SC_PAGESIZE);
}

// Returns it without memledger's table of storages on the CPU (docs/performance.md).
int64_t own_bytes_without_table(pid_t process) {
  constexpr int64_t kOfStorage = 146;
  const int64_t storages = Registry::global().counters(c10::kCPU).peak_count;
  return std::max<int64_t>(own_bytes(process) - kOfStorage * storages, 0);
}

// Says what grew in a C++ program on the CPU without being tensors.
std::string outside_note(const CollectedRun& run) {
  constexpr int64_t kLeastGrowth = int64_t{128} << 20;
  constexpr int64_t kTimesTensors = 4;
  const int64_t before = own_bytes_at_begin.load();
  if (run.run.is_python || before == 0 || run.run.devices.size() != 1 ||
      !run.run.devices.front().peak.device.is_cpu())
    return "";
  const int64_t tensors = run.run.devices.front().peak.total_bytes;
  const int64_t now = run.own_bytes;
  if (now - before < std::max(kLeastGrowth, kTimesTensors * tensors)) return "";
  return fmt::format(
      "outside LibTorch's allocator: the process uses {} of its own memory, {} of it already when "
      "LibTorch had loaded, and its tensors took {} at their peak; the rest is of libraries "
      "(oneDNN keeps what it has "
      "made for each shape), of malloc, or the program's own\n",
      readable_size(now), readable_size(before), readable_size(tensors));
}

std::string below_summary(const CollectedRun& run) {
  const std::string note = newer_libtorch_note(TORCH_VERSION);
  return lines_note(run.peaks) + unread_note(run.end) + outside_note(run) + run.failures +
         (note.empty() ? "" : note + "\n");
}

RunOfDevice with_steps(DeviceReport peak, const StepHistory& steps, const Report& last,
                       const Report& baseline) {
  const c10::Device where = peak.device;
  RunOfDevice device;
  device.peak = std::move(peak);
  for (const StepOfDevice& step : steps.peaks) {
    if (step.device == where) device.peak_step = step.step;
  }
  if (steps.steps > 0) device.last = find(last, where).value_or(nothing_on(where));
  if (steps.baseline_step > 0) device.baseline = find(baseline, where).value_or(nothing_on(where));
  return device;
}

// Empty where no such value was read, or where nobody lists files.
std::optional<UnrealFiles> unreal_files(pid_t process, bool tells) {
  const auto visit = reinterpret_cast<decltype(&memledger_visit_unreal_files)>(
      dlsym(RTLD_DEFAULT, "memledger_visit_unreal_files"));
  if (visit == nullptr) return std::nullopt;
  UnrealFiles files;
  const auto add = [](void* context, const char* path) {
    constexpr size_t kMaxPaths = 1000;
    auto& paths = static_cast<UnrealFiles*>(context)->paths;
    if (paths.size() < kMaxPaths) paths.emplace_back(path);
  };
  bool is_known = false;
  files.count = visit(process, tells ? 1 : 0, add, &files, &is_known, &files.is_complete);
  if (!is_known) return std::nullopt;
  return files;
}

// Names what libraries keep, which LibTorch's tables show only now.
void name_workspaces(std::initializer_list<Report*> reports) {
  const std::vector<LibraryWorkspace> workspaces = library_workspaces();
  if (workspaces.empty()) return;
  const Snapshot now = Registry::global().snapshot();
  std::unordered_map<uint64_t, std::string> names;
  for (const LibraryWorkspace& workspace : workspaces) {
    const auto* const data = reinterpret_cast<const void*>(workspace.address);
    if (const StorageInfo* const storage = now.find_address(workspace.device, data))
      names.emplace(storage->id, workspace.name());
  }
  for (Report* const report : reports) {
    for (DeviceReport& device : report->devices) {
      for (ReportRow& row : device.rows) {
        const auto name = names.find(row.storage_id);
        if (name == names.end()) continue;
        row.storage_kind = StorageKind::kLibraryWorkspace;
        row.name = name->second;
      }
    }
  }
}

std::optional<PinnedOfRun> pinned_of(const Report& end) {
  const auto statistics = pinned_statistics();
  if (!statistics || statistics->reserved_bytes.peak == 0) return std::nullopt;
  PinnedOfRun pinned;
  pinned.peak_bytes = statistics->reserved_bytes.peak;
  pinned.now_bytes = statistics->reserved_bytes.current;
  for (const DeviceReport& device : end.devices) add_pinned_rows(pinned, device);
  return pinned;
}

void collect(CollectedRun& all, const ReportOptions& options) {
  all.command = command_of(all.process.process);
  all.seconds = seconds_of(all.process.process);
  all.failures = failures_text();
  // Reports take memory.
  all.own_bytes = own_bytes_without_table(all.process.process);
  all.run.newest_storage = newest_storage_so_far();
  all.steps = step_history();
  const MemReporter reporter;
  all.end = reporter.collect(options);
  all.peaks = peaks_of(reporter, all.end, options);
  all.last = reporter.collect_at(all.steps.last, options);
  add_holders_to({&all.end, &all.last});
  Report baseline = reporter.collect_at(all.steps.baseline, options);
  name_workspaces({&all.peaks, &all.last, &baseline});
  for (Report* const report : {&all.peaks, &all.last, &baseline, &all.end})
    mark_checkpointed(*report);
  all.run.holders_unknown = has_searcher() && !looked_up_holders();
  all.run.steps = all.steps.steps;
  all.run.baseline_step = all.steps.baseline_step;
  for (const DeviceReport& peak : all.peaks.devices) {
    RunOfDevice device = with_steps(peak, all.steps, all.last, baseline);
    device.figures = peak_figures(peak.device);
    device.cache = cache_at_peak(peak.device);
    device.end = find(all.end, peak.device);
    if (device.end) device.advice = advice_on_holders(*device.end);
    all.run.devices.push_back(std::move(device));
  }
  // What trains first: the GPUs, then the CPU.
  std::stable_partition(all.run.devices.begin(), all.run.devices.end(),
                        [](const RunOfDevice& device) { return device.peak.device.is_cuda(); });
  const auto reads = virtual_gpu::zero_reads_so_far();
  if (reads.count > 0) all.run.reads = ZeroReads{reads.count, reads.first_op, reads.first_place};
  all.run.libraries = real_libraries();
  all.run.is_python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  all.run.ran_backward = all.steps.ran_backward;
  all.run.pinned = pinned_of(all.end);
  all.run.folder = all.process.folder;
}

size_t count_lines(std::string_view text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

void write_tables(std::ostream& out, CollectedRun& all) {
  // Figures of the process are printed once.
  for (Report* const report : {&all.peaks, &all.last}) {
    report->pinned_in_use_bytes = report->pinned_reserved_bytes = std::nullopt;
    report->modelled_workspaces.clear();
  }
  out << "\nAt the peaks\n" << all.peaks;
  if (all.steps.steps > 0)
    out << fmt::format("\nAfter the last step ({})\n", all.steps.steps) << all.last;
  out << "\nAt the end\n" << all.end;
}

Json parts_json(const DeviceReport& rows, const RunOfDevice& device) {
  Json parts = Json::array();
  for (const PartBytes& part : composition_of(rows, device)) {
    parts.push_back({{"part", to_string(part.part)},
                     {"bytes", part.bytes},
                     {"inferred_bytes", part.inferred_bytes}});
    if (part.part != Part::kParameters) continue;
    parts.back()["frozen_bytes"] = part.frozen_bytes;
    parts.back()["trainable_bytes"] = part.trainable_bytes;
    parts.back()["adapter_bytes"] = part.adapter_bytes;
  }
  return parts;
}

// What rounds of the same operators have left at the end.
Json rounds_json(const RunOfDevice& device) {
  const std::optional<Rounds> rounds =
      device.end ? rounds_of(*device.end, /*awaiting_backward_only=*/false) : std::nullopt;
  if (!rounds) return nullptr;
  return {{"count", rounds->count},
          {"operators", rounds->operators},
          {"regular_distances", rounds->regular},
          {"distances", rounds->distances},
          {"bytes", rounds->bytes},
          {"bytes_each", rounds->bytes_each}};
}

Json device_json(const RunOfDevice& device) {
  const std::optional<UnusedGraph> graph = unused_graph(device);
  return {{"device", device.peak.device.str()},
          {"gpu", device.figures.gpu},
          {"requested_peak", device.peak.total_bytes},
          {"allocated_peak", or_null(device.figures.allocated_peak)},
          {"reserved_peak", or_null(device.figures.reserved_peak)},
          {"capacity_bytes", or_null(device.figures.capacity)},
          {"unused_graph_bytes", graph ? Json(graph->bytes) : Json(0)},
          {"rounds", rounds_json(device)},
          {"peak_step", device.peak_step == 0 ? Json(nullptr) : Json(device.peak_step)},
          {"peak_parts", parts_json(device.peak, device)},
          {"last_step_parts", device.last ? parts_json(*device.last, device) : Json(nullptr)},
          {"last_step_bytes", device.last ? Json(device.last->total_bytes) : Json(nullptr)},
          {"baseline_bytes", device.baseline ? Json(device.baseline->total_bytes) : Json(nullptr)}};
}

Json steps_json(const StepHistory& steps) {
  Json course = Json::array();
  for (const StepOfDevice& step : steps.course) {
    course.push_back({{"step", step.step},
                      {"device", step.device.str()},
                      {"bytes", step.bytes},
                      {"peak_bytes", step.peak_bytes}});
  }
  return {{"count", steps.steps},
          {"baseline", steps.baseline_step == 0 ? Json(nullptr) : Json(steps.baseline_step)},
          {"course", std::move(course)}};
}

Json end_json(const ProgramEnd& end) {
  return {{"how", machine_name(end.kind)},
          {"status", end.status ? Json(*end.status & 0xff) : Json(nullptr)},
          {"signal", end.signal.empty() ? Json(nullptr) : Json(end.signal)},
          {"details", end.details}};
}

Json pinned_json(const std::optional<PinnedOfRun>& pinned) {
  if (!pinned) return nullptr;
  return {{"peak_bytes", pinned->peak_bytes},
          {"bytes", pinned->now_bytes},
          {"tensors", pinned->tensors},
          {"tensor_bytes", pinned->tensor_bytes}};
}

std::string json_of(const CollectedRun& all, const ProgramEnd& how) {
  Json devices = Json::array();
  for (const RunOfDevice& device : all.run.devices) devices.push_back(device_json(device));
  Json reads = nullptr;
  if (all.run.reads) {
    reads = {{"count", all.run.reads->count},
             {"first_op", all.run.reads->first_op},
             {"first_place", all.run.reads->first_place}};
  }
  Json files = nullptr;
  if (all.run.unreal_files) {
    files = {{"count", all.run.unreal_files->count},
             {"is_complete", all.run.unreal_files->is_complete},
             {"paths", all.run.unreal_files->paths}};
  }
  std::string text = to_text(
      Json{{"schema", "memledger.run_report/1"},
           {"process", all.process.process},
           {"rank", all.process.rank},
           {"command", all.command},
           {"ended", end_json(how)},
           {"seconds", or_null(all.seconds)},
           {"devices", std::move(devices)},
           {"steps", steps_json(all.steps)},
           {"read_as_zero", std::move(reads)},
           {"real_libraries", all.run.libraries.empty() ? Json(nullptr) : Json(all.run.libraries)},
           {"pinned", pinned_json(all.run.pinned)},
           {"out_of_memory", all.failures}});
  text.pop_back();
  return text.append(",\"peaks\":")
      .append(all.peaks.to_json())
      .append(",\"last_step\":")
      .append(all.steps.steps > 0 ? all.last.to_json() : "null")
      .append(",\"end\":")
      .append(all.end.to_json())
      .append(",\"unreal_files\":")
      .append(to_text(files))
      .append("}\n");
}

// Puts the moment before each line.
void add_csv(std::string& csv, std::string_view moment, const std::string& of_report) {
  size_t begin = 0;
  while (begin < of_report.size()) {
    const size_t end = of_report.find('\n', begin) + 1;
    const bool is_header = begin == 0;
    if (!is_header || csv.empty()) {
      csv.append(is_header ? "moment" : moment).append(",");
      csv.append(of_report, begin, end - begin);
    }
    begin = end;
  }
}

std::string csv_of(const CollectedRun& all) {
  std::string csv;
  add_csv(csv, "peak", all.peaks.to_csv());
  if (all.steps.steps > 0) add_csv(csv, "last_step", all.last.to_csv());
  add_csv(csv, "end", all.end.to_csv());
  return csv;
}

std::vector<std::string_view> uses_of(const DeviceReport& rows, const RunReport& run) {
  std::vector<std::string_view> uses;
  for (const RunOfDevice& device : run.devices) {
    if (device.peak.device != rows.device) continue;
    for (const PartOfRow part : parts_of(rows, device)) uses.push_back(to_string(part.part));
  }
  return uses;
}

std::string page_of(const CollectedRun& all) {
  std::vector<PageSection> sections;
  const auto add = [&](const Report& report, std::string_view moment) {
    for (const bool cuda : {true, false}) {
      for (const DeviceReport& device : report.devices) {
        if (device.rows.empty() || device.device.is_cuda() != cuda) continue;
        sections.push_back({fmt::format("{} {}", device.device.str(), moment), &report, &device,
                            uses_of(device, all.run)});
      }
    }
  };
  add(all.peaks, "at its peak");
  if (all.steps.steps > 0) add(all.last, fmt::format("after step {}, the last", all.steps.steps));
  add(all.end, "at the end");
  std::vector<PageCurve> curves;
  for (const RunOfDevice& device : all.run.devices) {
    PageCurve curve{device.peak.device.str(), {}};
    for (const StepOfDevice& step : all.steps.course) {
      if (step.device == device.peak.device)
        curve.points.push_back({step.step, step.bytes, step.peak_bytes});
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  return report_page(all.run.title, run_summary(all.run, 2 * kLines) + below_summary(all), curves,
                     sections);
}

}  // namespace

void begin_run_report(bool names_only) {
  keep_steps();
  keep_cache_at_peaks();
  own_bytes_at_begin.store(own_bytes(getpid()));
  want_holders();
  // A Python program's variables are asked.
  if (!names_only && dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr) look_at_results();
}

RunOfDevice run_of_device(DeviceReport peak) {
  const MemReporter reporter;
  const StepHistory steps = step_history();
  ReportOptions options;
  options.device = peak.device;
  const Report last = reporter.collect_at(steps.last, options);
  const Report baseline = reporter.collect_at(steps.baseline, options);
  return with_steps(std::move(peak), steps, last, baseline);
}

CollectedRunPtr collect_run(const ProcessOfRun& process, bool every_row, bool goes_on) {
  ReportOptions options;
  options.verbose = every_row;
  if (!every_row) options.max_rows = kPeakRows;
  options.training_paused = process.training_paused;
  CollectedRunPtr run(new CollectedRun);
  run->process = process;
  collect(*run, options);
  run->run.unreal_files = unreal_files(process.process, /*tells=*/!goes_on);
  return run;
}

std::string run_report_text(CollectedRun& run, const ProgramEnd& end) {
  tell_end(run, end);
  if (!run.process.saves_report) run.run.hint = "every row: memledger run --save-report=FILE.html";
  const std::string below = below_summary(run);
  const size_t lines = std::max(kLeastLines, kLines - std::min(kLines, count_lines(below)));
  std::ostringstream out;
  out << run_summary(run.run, lines) << below;
  if (run.process.full_report) write_tables(out, run);
  return std::move(out).str();
}

void write_run_report(CollectedRun& run, const ProgramEnd& end, std::string_view path,
                      std::ostream& out) {
  tell_end(run, end);
  const std::string ending = file_ending(path);
  if (ending == ".html" || ending == ".htm") {
    out << page_of(run);
  } else if (ending == ".csv") {
    out << csv_of(run);
  } else if (ending == ".json") {
    out << json_of(run, end);
  } else {
    out << run_summary(run.run, 2 * kLines) << below_summary(run);
    write_tables(out, run);
  }
}

}  // namespace memledger::inside
