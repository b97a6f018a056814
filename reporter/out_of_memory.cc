#include "reporter/out_of_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "registry/core/fork_safe_mutex.h"
#include "registry/device_statistics.h"
#include "registry/stacks.h"
#include "reporter/formats/report_format.h"
#include "reporter/last_out_of_memory.h"
#include "reporter/mem_reporter.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger {
namespace {

struct Holder {
  int64_t bytes = 0;
  size_t count = 0;
};

// The memory of the device or machine itself.
struct Capacity {
  std::optional<int64_t> total_bytes;
  std::optional<int64_t> free_bytes;
};

std::string local_time(const char* format) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

std::string both(int64_t bytes) {
  return fmt::format("{} ({} bytes)", readable_size(bytes), bytes);
}

std::string asked_by(const AllocationFailure& failure) {
  const std::string text = producer(failure);
  return text.empty() ? "the program, outside any operator" : text;
}

Capacity capacity_of(c10::Device device) {
  Capacity capacity;
  if (device.is_cpu()) {
    capacity.total_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    return capacity;
  }
  if (const std::optional<DeviceMemory> memory = device_memory(device)) {
    capacity.total_bytes = memory->total_bytes;
    capacity.free_bytes = memory->free_bytes;
  }
  return capacity;
}

// Returns what neither this process's allocator holds nor the driver has free.
std::optional<int64_t> held_by_others(const Capacity& capacity, const DeviceReport& device) {
  if (!capacity.total_bytes || !capacity.free_bytes || !device.reserved_bytes) return std::nullopt;
  return std::max<int64_t>(0,
                           *capacity.total_bytes - *capacity.free_bytes - *device.reserved_bytes);
}

// What looks like the weights of a model: known as such, or moved or made empty to be filled.
struct LoadedWeights {
  int64_t bytes = 0;
  int64_t float32_bytes = 0;  // of it
};

bool makes_weights(std::string_view op) {
  constexpr std::array<std::string_view, 5> kLoading = {"aten::to", "aten::_to_copy", "aten::empty",
                                                        "aten::empty_strided", "aten::empty_like"};
  return std::find(kLoading.begin(), kLoading.end(), op) != kLoading.end();
}

bool looks_like_weights(const ReportRow& row) {
  const bool is_loaded = row.role == Role::kParameter || row.role == Role::kBuffer || row.adopted ||
                         makes_weights(row.op);
  return is_loaded && row.dtype && c10::isFloatingType(*row.dtype);
}

LoadedWeights loaded_weights(const DeviceReport& device) {
  LoadedWeights weights;
  for (const ReportRow& row : device.rows) {
    if (!looks_like_weights(row)) continue;
    weights.bytes += row.nbytes.value_or(0);
    if (row.dtype == c10::ScalarType::Float) weights.float32_bytes += row.nbytes.value_or(0);
  }
  return weights;
}

// Weights that are made where gradients are wanted look like what a forward pass makes.
int64_t forward_bytes(const DeviceReport& device) {
  int64_t bytes = 0;
  for (const ReportRow& row : device.rows) {
    if (row.phase == Phase::kForward && !looks_like_weights(row)) bytes += row.nbytes.value_or(0);
  }
  return bytes;
}

// Returns what can be done about fragmentation with this allocator, or nothing.
std::string against_fragmentation(c10::Device device) {
  const std::optional<DeviceStatistics> statistics = device_statistics(device);
  if (!statistics.has_value()) return "";
  // Other allocators ignore LibTorch's settings.
  if (statistics->allocator != "native")
    return fmt::format(" The allocator is {}.", printable(statistics->allocator));
  const std::optional<DeviceBlocks> blocks = device_blocks(device);
  if (!blocks.has_value()) return "";
  return blocks->expandable_segments
             ? " Expandable segments are on already."
             : " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets blocks grow.";
}

bool is_python_there() { return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr; }

// Gives only the advice that the figures call for.
std::vector<std::string> advice(const AllocationFailure& failure, const Capacity& capacity,
                                const DeviceReport& device) {
  const int64_t asked = failure.requested_bytes;
  if (capacity.total_bytes && asked > *capacity.total_bytes) {
    return {
        fmt::format("The request alone is more than the {} there are: check the shapes of the "
                    "operator's arguments.",
                    readable_size(*capacity.total_bytes))};
  }
  std::vector<std::string> all;
  const int64_t cached = device.cached_free_bytes.value_or(0);
  // The free memory of cudaMallocAsync is in no visible blocks.
  if (cached >= asked && device.largest_free_block.has_value() &&
      *device.largest_free_block < asked) {
    all.push_back(
        fmt::format("The free blocks in the cache, {}, would be enough, but the largest has {}: "
                    "the cache is fragmented.{}",
                    readable_size(cached), readable_size(*device.largest_free_block),
                    against_fragmentation(device.device)));
  }
  if (device.awaited_bytes.value_or(0) >= asked) {
    all.push_back(
        fmt::format("{} were freed, but other streams may still use them (recordStream): "
                    "synchronize with those streams sooner.",
                    readable_size(*device.awaited_bytes)));
  }
  const std::optional<int64_t> others = held_by_others(capacity, device);
  if (others && capacity.free_bytes && *others >= asked - *capacity.free_bytes &&
      *others > *capacity.total_bytes / 10) {
    all.push_back(
        fmt::format("Other processes and CUDA itself hold {} of the device: nvidia-smi lists them.",
                    readable_size(*others)));
  }
  LoadedWeights weights = loaded_weights(device);
  if (makes_weights(failure.op)) weights.bytes += asked;
  if (weights.bytes > capacity.total_bytes.value_or(device.total_bytes) / 2) {
    const bool is_float32 = weights.float32_bytes > weights.bytes / 2;
    all.push_back(fmt::format(
        "{} look like weights{}{}: {}; or keep a part on the CPU (device_map), or share them among "
        "several devices.",
        readable_size(weights.bytes), makes_weights(failure.op) ? ", with what was asked for" : "",
        is_float32 ? ", of float32" : "",
        is_float32 ? "as bfloat16 they take half" : "quantized to 8 or 4 bits they take less"));
  }
  if (failure.phase == Phase::kOptimizer) {
    all.push_back(
        "The optimizer makes its state in its first step, for Adam twice the parameters: keep it "
        "in 8 or 16 bits, share it among devices, or take an optimizer with less of it.");
  }
  const int64_t forward = forward_bytes(device);
  if (forward > device.total_bytes / 2 && failure.phase != Phase::kOther) {
    all.push_back(fmt::format(
        "{} of {} were made in a forward pass and are still alive. If the graph holds "
        "them for backward, a smaller batch or checkpointing helps{}.",
        readable_size(forward), readable_size(device.total_bytes),
        is_python_there() ? "" : "; MemReporter::add_graph() tells which of them it holds"));
  }
  return all;
}

// Returns which part of the free memory lies outside the largest block, where one request cannot
// have it.
std::string fragmentation(const DeviceReport& device) {
  if (device.cached_free_bytes.value_or(0) <= 0 || !device.largest_free_block) return "";
  return fmt::format(" (fragmentation {:.1f} %)",
                     100.0 * (1 - static_cast<double>(*device.largest_free_block) /
                                      static_cast<double>(*device.cached_free_bytes)));
}

void write_device(std::ostream& out, const Capacity& capacity, const DeviceReport& device) {
  if (capacity.total_bytes)
    out << fmt::format("Memory of {}: {}", device.device.str(),
                       readable_size(*capacity.total_bytes));
  if (capacity.free_bytes)
    out << fmt::format(", free for the driver to give: {}", readable_size(*capacity.free_bytes));
  if (const auto others = held_by_others(capacity, device)) {
    out << fmt::format(", other processes and CUDA itself: {}", readable_size(*others));
  }
  if (capacity.total_bytes) out << '\n';
  if (device.reserved_bytes && device.cached_free_bytes && *device.reserved_bytes > 0) {
    out << fmt::format("Held by this process: {}; of it not in use: {} ({:.1f} %)",
                       readable_size(*device.reserved_bytes),
                       readable_size(*device.cached_free_bytes),
                       100.0 * static_cast<double>(*device.cached_free_bytes) /
                           static_cast<double>(*device.reserved_bytes));
    if (device.largest_free_block.has_value())
      out << fmt::format(", largest free block {}{}", readable_size(*device.largest_free_block),
                         fragmentation(device));
    out << '\n';
  }
}

using Holders = std::map<std::string, Holder>;

Holders by_role(const DeviceReport& device) {
  Holders holders;
  for (const ReportRow& row : device.rows) {
    if (row.nbytes.value_or(0) == 0) continue;
    Holder& holder = holders[std::string(to_string(row.role))];
    holder.bytes += *row.nbytes;
    ++holder.count;
  }
  return holders;
}

// Returns what operators have shown a storage to be for, in the words of the timeline's series.
std::string role_shown_by_operators(const ReportRow& row) {
  if (row.storage_kind != StorageKind::kTensor) return std::string(to_string(row.storage_kind));
  if (row.used_as_parameter) return "Parameter (a leaf that requires grad)";
  if (row.role == Role::kTemporary) return std::string(to_string(row.role));
  if (row.adopted) return "Tensor [before tracking]";
  return fmt::format("Tensor [{}{}]", to_string(row.phase),
                     row.phase_inferred ? " (inferred)" : "");
}

std::string birthplace_of(const ReportItem& item) {
  return item.name.empty() ? std::string(to_string(item.kind)) : item.name;
}

std::string role_of(const ReportItem& item) {
  switch (item.kind) {
    case ReportItemKind::kLibraryWorkspace:
      return std::string(to_string(StorageKind::kLibraryWorkspace));
    case ReportItemKind::kRawBlocks:
      return std::string(to_string(StorageKind::kRawBlock));
    default:
      return "before tracking";
  }
}

// Adds what was requested and has no row.
template <typename NameOf>
void add_items(Holders& holders, const DeviceReport& device, const NameOf& name_of) {
  for (const ReportItem& item : device.items) {
    if (item.kind == ReportItemKind::kRounding || item.kind == ReportItemKind::kUnsplitRemainder)
      continue;
    Holder& holder = holders[name_of(item)];
    holder.bytes += item.bytes;
    holder.count += item.count;
  }
}

// Sums up where no names are known.
Holders by_role_shown_by_operators(const DeviceReport& device) {
  Holders holders;
  for (const ReportRow& row : device.rows) {
    if (row.nbytes.value_or(0) == 0) continue;
    Holder& holder = holders[role_shown_by_operators(row)];
    holder.bytes += *row.nbytes;
    ++holder.count;
  }
  add_items(holders, device, role_of);
  return holders;
}

Holders by_birthplace(const DeviceReport& device) {
  Holders holders;
  for (const ReportRow& row : device.rows) {
    if (row.nbytes.value_or(0) == 0) continue;
    const std::string made_by = producer(row);
    Holder& holder = holders[made_by.empty() ? "outside any operator" : made_by];
    holder.bytes += *row.nbytes;
    ++holder.count;
  }
  add_items(holders, device, birthplace_of);
  return holders;
}

void write_holders(std::ostream& out, std::string_view what, const Holders& named,
                   size_t max_rows) {
  std::vector<std::pair<std::string, Holder>> holders(named.begin(), named.end());
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  out << "Who holds it, by " << what << ":\n";
  const size_t shown = std::min(holders.size(), max_rows);
  for (size_t i = 0; i < shown; ++i) {
    out << fmt::format("{:>12}  {:>6} x  {}\n", readable_size(holders[i].second.bytes),
                       holders[i].second.count, table_name(holders[i].first));
  }
  Holder rest;
  for (size_t i = shown; i < holders.size(); ++i) {
    rest.bytes += holders[i].second.bytes;
    rest.count += holders[i].second.count;
  }
  if (rest.count > 0)
    out << fmt::format("{:>12}  {:>6} x  … {} more\n", readable_size(rest.bytes), rest.count,
                       holders.size() - shown);
  if (holders.empty()) out << "        nobody\n";
}

struct Writing {
  ForkSafeMutex lock;  // of the fields below; not held while a report is made
  bool on = false;
  OutOfMemoryOptions options;
  pid_t process = 0;  // that the options were set in
  AllocationFailureObserver before = nullptr;

  LastOutOfMemory last;

  // The process that is making a report, or 0. A child of fork has no thread that would finish its
  // parent's.
  std::atomic<pid_t> busy{0};
  std::atomic<int> reports{0};
};

// Never destroyed: programs run out of memory after main, too.
Writing& writing() {
  static auto* const writing = new Writing;
  return *writing;
}

constexpr size_t kPageHolders = 8;

// The first eight failures are reported, then the 16th, the 32nd and so on.
bool is_told(int number) { return number <= 8 || (number & (number - 1)) == 0; }

std::string line_on(const AllocationFailure& failure, int number) {
  std::string line =
      fmt::format("memledger: out of memory on {}: asked for {} by {}", failure.device.str(),
                  readable_size(failure.requested_bytes), table_name(asked_by(failure)));
  const StackFrame from = program_frame(failure.stack);
  if (!from.function.empty() || from.line > 0) line += " at " + printable(to_string(from));
  if (number > 1) line += fmt::format(" (failure {})", number);
  if (number == 8) line += "; from now on only some are told";
  return line;
}

std::string page_on(const AllocationFailure& failure, const MemReporter* named);

void write_report(const AllocationFailure& failure) {
  OutOfMemoryOptions options;
  {
    const std::lock_guard<ForkSafeMutex> hold(writing().lock);
    if (!writing().on) return;
    options = writing().options;
    // In a child of fork the reporter may have been in the middle of a change.
    if (writing().process != getpid()) options.reporter = nullptr;
  }
  const int number = writing().reports.fetch_add(1) + 1;
  if (options.keep_last) {
    std::string page = page_on(failure, options.reporter);
    const std::lock_guard<ForkSafeMutex> hold(writing().lock);
    writing().last.failures = number;
    writing().last.page.swap(page);
  }
  if (options.keep_last && options.folder.empty()) {
    if (!options.quiet && is_told(number)) tell({line_on(failure, number)});
    return;
  }
  if (number > options.max_reports) {
    if (!options.quiet && options.keep_last && is_told(number)) tell({line_on(failure, number)});
    return;
  }
  std::string text = out_of_memory_report(failure, options.max_rows, options.reporter);
  if (number == options.max_reports)
    text += "This was the last report of this process; further failures are not reported.\n";
  if (options.folder.empty()) {
    if (!options.quiet) write_standard_error(text);
    return;
  }
  const auto path = write_new_file(
      fmt::format("{}/oom-{}-{}", options.folder, local_time("%Y%m%d-%H%M%S"), getpid()), ".txt",
      "out-of-memory report", text);
  if (!path.ok()) {
    tell({std::string(path.status().message())});
    if (!options.quiet) write_standard_error(text);
  } else if (!options.quiet) {
    tell({fmt::format("memledger: out of memory on {}: asked for {} by {}; who holds it: {}",
                      failure.device.str(), readable_size(failure.requested_bytes),
                      table_name(asked_by(failure)), *path)});
  }
}

auto told_observer() {
  const std::lock_guard<ForkSafeMutex> hold(writing().lock);
  return writing().on ? writing().options.told : nullptr;
}

void observe(const AllocationFailure& failure) noexcept {
  const pid_t process = getpid();
  pid_t busy = writing().busy.load();
  if (busy == process || !writing().busy.compare_exchange_strong(busy, process)) return;
  try {
    write_report(failure);
    if (const auto told = told_observer()) told();
  } catch (const std::exception& error) {
    std::array<char, 32> bytes;
    std::snprintf(bytes.data(), bytes.size(), "%lld",
                  static_cast<long long>(failure.requested_bytes));
    tell({"memledger: out of memory (", bytes.data(),
          " bytes asked for), but no report could be made: ", first_line(error.what())});
  }
  writing().busy.store(0);
}

// Returns when no report with the former options is in progress: then its reporter may end.
void wait_for_running_report() {
  while (writing().busy.load() == getpid()) std::this_thread::yield();
}

// What a report says of the failure itself.
void write_failure(std::ostream& out, const AllocationFailure& failure, const Capacity& capacity,
                   const DeviceReport& device) {
  const StackFrame from = program_frame(failure.stack);
  if (!from.function.empty() || from.line > 0) out << "At: " << printable(to_string(from)) << '\n';
  write_device(out, capacity, device);
  const std::string_view says = first_line(failure.message);
  if (!says.empty()) out << "LibTorch says: " << printable(says) << '\n';
  for (const std::string& sentence : advice(failure, capacity, device))
    out << "Advice: " << sentence << '\n';
}

std::string page_on(const AllocationFailure& failure, const MemReporter* named) {
  const MemReporter nameless;
  ReportOptions options;
  options.device = failure.device;
  const Report report = (named == nullptr ? nameless : *named).collect(options);
  DeviceReport empty;
  empty.device = failure.device;
  const DeviceReport& device = report.devices.empty() ? empty : report.devices.front();
  std::ostringstream out;
  out << fmt::format("Asked for: {} by {}\n", readable_size(failure.requested_bytes),
                     table_name(asked_by(failure)));
  write_failure(out, failure, capacity_of(failure.device), device);
  write_holders(out, "birthplace", by_birthplace(device), kPageHolders);
  return std::move(out).str();
}

}  // namespace

std::optional<LastOutOfMemory> last_out_of_memory() {
  const std::lock_guard<ForkSafeMutex> hold(writing().lock);
  if (writing().last.failures == 0) return std::nullopt;
  return writing().last;
}

std::string out_of_memory_report(const AllocationFailure& failure, size_t max_rows,
                                 const MemReporter* named) {
  const MemReporter nameless;
  const MemReporter& reporter = named == nullptr ? nameless : *named;
  ReportOptions options;
  options.device = failure.device;
  options.max_rows = max_rows;
  const Report report = reporter.collect(options);
  DeviceReport empty;
  empty.device = failure.device;
  const DeviceReport& device = report.devices.empty() ? empty : report.devices.front();

  std::ostringstream out;
  out << fmt::format("memledger: out of memory on {}\n", failure.device.str());
  out << fmt::format("Time: {}, process {}\n", local_time("%Y-%m-%d %H:%M:%S"), getpid());
  out << fmt::format("Asked for: {} by {}\n", both(failure.requested_bytes),
                     table_name(asked_by(failure)));
  write_failure(out, failure, capacity_of(failure.device), device);
  out << '\n';
  if (named != nullptr) {
    write_holders(out, "role", by_role(device), max_rows);
  } else {
    write_holders(out, "role, as far as operators show it", by_role_shown_by_operators(device),
                  max_rows);
  }
  out << '\n';
  write_holders(out, "birthplace", by_birthplace(device), max_rows);
  out << '\n' << report;
  // Where memory ran out step by step, the peak is now and would be the same table.
  if (device.counters.peak_bytes > device.counters.current_bytes)
    out << '\n' << reporter.collect_peak(failure.device, options);
  return std::move(out).str();
}

absl::Status write_out_of_memory_reports(const OutOfMemoryOptions& options) {
  OutOfMemoryOptions checked = options;
  if (!checked.folder.empty()) {
    namespace fs = std::filesystem;
    std::error_code error;
    // The program may change its folder later.
    checked.folder = fs::absolute(checked.folder, error).string();
    if (!error) fs::create_directories(checked.folder, error);
    if (error || access(checked.folder.c_str(), W_OK | X_OK) != 0) {
      return absl::UnavailableError(
          fmt::format("memledger: cannot write out-of-memory reports to {}: {}", checked.folder,
                      error ? error.message() : std::strerror(errno)));
    }
  }
  {
    const std::lock_guard<ForkSafeMutex> hold(writing().lock);
    writing().options = std::move(checked);
    writing().process = getpid();
    if (!writing().on) writing().before = set_allocation_failure_observer(&observe);
    writing().on = true;
  }
  wait_for_running_report();
  return absl::OkStatus();
}

void stop_out_of_memory_reports() {
  {
    const std::lock_guard<ForkSafeMutex> hold(writing().lock);
    if (!writing().on) return;
    set_allocation_failure_observer(writing().before);
    writing().on = false;
  }
  wait_for_running_report();
}

}  // namespace memledger
