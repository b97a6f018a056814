#include "runner/inside/measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "prediction/measurement.h"
#include "registry/allocation_failure.h"
#include "registry/device_statistics.h"
#include "registry/hooks/step_observer.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "reporter/mem_reporter.h"
#include "runner/environment.h"
#include "text/output.h"
#include "text/shape.h"
#include "virtual_gpu/device_use.h"

namespace memledger::inside {
namespace {

using prediction::Ended;
using prediction::Measurement;

constexpr size_t kLargestRows = 10;
// Each parameter steps at least so often before the program is ended.
constexpr int kLeastRounds = 2;
// Stacks of what is smaller cost more than they tell.
constexpr int64_t kStackFrom = int64_t{1} << 20;

// One optimizer, known by the storage of the first parameter that it writes to.
struct Round {
  int steps = 0;
  int64_t peak_then = 0;  // after its last step
};

struct Measure {
  std::string folder;
  bool until_step = false;
  pid_t process = 0;
  std::mutex lock;
  int64_t steps = 0;
  std::unordered_set<const void*> parameters;  // their storages: what a forward pass reads as leaf
  std::map<const void*, Round> rounds;
  std::optional<prediction::MeasuredFailure> failure;
  std::atomic<bool> is_done{false};
};

// Never destroyed: the figures are written while the process goes down.
Measure& measure() {
  static auto* const measure = new Measure;
  return *measure;
}

thread_local const void* stepping = nullptr;  // the first parameter of the step that runs
thread_local bool is_measuring = false;

const char* value_of(const char* variable) { return secure_getenv(variable); }

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

c10::Device cuda(size_t index) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

std::vector<memledger_virtual_gpu_use> uses() {
  void* const symbol = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses");
  if (symbol == nullptr) return {};
  const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_uses)>(symbol);
  std::vector<memledger_virtual_gpu_use> rows(ask(nullptr, 0));
  rows.resize(std::min(rows.size(), ask(rows.data(), rows.size())));
  return rows;
}

std::string phase_text(Phase phase) { return std::string(to_string(phase)); }

std::vector<prediction::MeasuredDevice> devices() {
  std::vector<prediction::MeasuredDevice> result;
  const std::vector<memledger_virtual_gpu_use> all = uses();
  for (size_t i = 0; i < all.size(); ++i) {
    const memledger_virtual_gpu_use& use = all[i];
    if (use.peak_bytes == 0) continue;
    prediction::MeasuredDevice device;
    device.index = static_cast<int>(i);
    device.gpu = use.name;
    device.capacity_bytes = static_cast<int64_t>(use.total_bytes);
    device.process_peak = static_cast<int64_t>(use.peak_bytes);
    device.context_bytes = static_cast<int64_t>(use.context_bytes);
    device.failures = static_cast<int64_t>(use.library_failures);
    if (const auto statistics = device_statistics(cuda(i))) {
      device.allocated_peak = statistics->allocated_bytes.peak;
      device.reserved_peak = statistics->reserved_bytes.peak;
      device.fragmented_bytes = statistics->inactive_split_bytes.current;
      device.retries = statistics->allocation_retries;
      device.failures += statistics->out_of_memory_errors;
    }
    result.push_back(std::move(device));
  }
  return result;
}

prediction::MeasuredRow row_of(const ReportRow& row) {
  return {row.name,  std::string(row.op),   phase_text(row.phase),
          row.where, shape_text(row.shape), row.nbytes.value_or(0)};
}

// The layer that a row belongs to: the module, else the label of the forward pass.
std::string layer_of(const ReportRow& row) {
  if (!row.module.empty()) return row.module;
  return std::string(row.forward_label.empty() ? row.label : row.forward_label);
}

prediction::MeasuredPeak peak_of(int device) {
  const Report report = MemReporter().collect_peak(cuda(static_cast<size_t>(device)));
  prediction::MeasuredPeak peak;
  peak.device = device;
  const ReportRow* newest = nullptr;
  std::vector<const ReportRow*> largest;
  for (const DeviceReport& of_device : report.devices) {
    for (const ReportRow& row : of_device.rows) {
      peak.by_role[std::string(machine_name(row.role))] += row.nbytes.value_or(0);
      largest.push_back(&row);
      if (newest == nullptr || row.storage_id > newest->storage_id) newest = &row;
    }
    std::stable_sort(largest.begin(), largest.end(), [](const ReportRow* a, const ReportRow* b) {
      return a->nbytes.value_or(0) > b->nbytes.value_or(0);
    });
    for (size_t i = 0; i < std::min(largest.size(), kLargestRows); ++i)
      peak.largest.push_back(row_of(*largest[i]));
    if (newest == nullptr) continue;
    peak.op = newest->op;
    peak.phase = phase_text(newest->phase);
    peak.place = newest->where;
    peak.layer = layer_of(*newest);
  }
  return peak;
}

void write(Ended ended) {
  Measurement measurement;
  measurement.process = getpid();
  measurement.rank = environment::rank(&value_of);
  measurement.ended = ended;
  measurement.devices = devices();
  if (measurement.devices.empty()) return;  // a launcher, or a worker of a data loader
  {
    const std::lock_guard<std::mutex> hold(measure().lock);
    measurement.steps = measure().steps;
    measurement.failure = measure().failure;
  }
  const auto fullest = std::max_element(
      measurement.devices.begin(), measurement.devices.end(),
      [](const auto& a, const auto& b) { return a.process_peak < b.process_peak; });
  measurement.peak = peak_of(fullest->index);
  const absl::Status status =
      write_file(measure().folder + "/" + std::to_string(measurement.process) + ".json",
                 "measurement", prediction::to_json(measurement));
  if (!status.ok()) tell({std::string(status.message())});
}

void write_safely(Ended ended) noexcept {
  is_measuring = true;
  try {
    write(ended);
  } catch (const std::exception& error) {
    tell({"memledger: no measurement: ", first_line(error.what())});
  }
  is_measuring = false;
}

// A program may end here for good, so what is known is written down.
void note_failure(const AllocationFailure& failed) noexcept {
  if (is_measuring || getpid() != measure().process) return;
  try {
    {
      const std::lock_guard<std::mutex> hold(measure().lock);
      if (!measure().failure) {
        prediction::MeasuredFailure failure;
        failure.device = static_cast<unsigned char>(failed.device.index());
        failure.requested_bytes = failed.requested_bytes;
        failure.op = failed.op;
        failure.phase = phase_text(failed.phase);
        failure.layer = failed.forward_label.empty() ? failed.label : failed.forward_label;
        measure().failure = std::move(failure);
      }
    }
    write_safely(Ended::kNot);
  } catch (...) {
    // What was written before stays.
  }
}

int64_t peak_now() {
  int64_t peak = 0;
  for (const memledger_virtual_gpu_use& use : uses()) peak += static_cast<int64_t>(use.peak_bytes);
  for (size_t i = 0; i < uses().size(); ++i) {
    if (const auto statistics = device_statistics(cuda(i)))
      peak += statistics->allocated_bytes.peak;
  }
  return peak;
}

// Returns whether the peak has not moved since this optimizer's step before, and all have stepped
// often enough.
bool note_step(const void* parameter) {
  const int64_t peak = peak_now();
  const std::lock_guard<std::mutex> hold(measure().lock);
  ++measure().steps;
  Round& round = measure().rounds[parameter];
  ++round.steps;
  const bool has_moved = std::exchange(round.peak_then, peak) != peak;
  if (has_moved) return false;
  return std::all_of(measure().rounds.begin(), measure().rounds.end(),
                     [](const auto& entry) { return entry.second.steps >= kLeastRounds; });
}

// Called before an operator that writes under no_grad: writing to a parameter begins a step. Some
// optimizers write to its data(), which has its storage and does not require grad.
void on_write(const at::Tensor& written) noexcept {
  if (stepping != nullptr || !written.is_cuda()) return;
  const void* const storage = storage_of(written);
  const std::lock_guard<std::mutex> hold(measure().lock);
  if (measure().parameters.count(storage) > 0) stepping = storage;
}

void note_parameters(const at::RecordFunction& fn) {
  const auto note = [](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda() || !tensor.requires_grad() || !tensor.is_leaf())
      return;
    const std::lock_guard<std::mutex> hold(measure().lock);
    measure().parameters.insert(storage_of(tensor));
  };
  for (const c10::IValue& input : fn.inputs()) {
    if (input.isTensor()) {
      note(input.toTensor());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorList()) note(tensor);
    }
  }
}

// The first operator of the next forward pass ends the step.
std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& fn) {
  if (!at::GradMode::is_enabled() || is_measuring) return nullptr;
  note_parameters(fn);
  if (stepping == nullptr) return nullptr;
  const void* const parameter = std::exchange(stepping, nullptr);
  if (getpid() != measure().process || !note_step(parameter)) return nullptr;
  if (measure().is_done.exchange(true)) return nullptr;
  write_safely(Ended::kAfterStep);
  _exit(EXIT_SUCCESS);
}

void write_at_exit() {
  if (getpid() != measure().process || measure().is_done.exchange(true)) return;
  write_safely(Ended::kAtExit);
}

}  // namespace

void measure_if_asked() {
  const char* const folder = value_of(prediction::kMeasureVariable);
  if (folder == nullptr || *folder == '\0') return;
  Measure& measure = inside::measure();
  measure.folder = folder;
  measure.process = getpid();
  const char* const until = value_of(prediction::kUntilVariable);
  measure.until_step = until != nullptr && std::string_view(until) == "step";
  RegistryOptions options;
  // The stack of a Python program has the interpreter's functions.
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr)
    options.stacks = StackOptions::from(kStackFrom);
  static const auto* const tracking = new ScopedTracking(options);  // never ends
  if (!tracking->status().ok()) return;
  set_allocation_failure_observer(&note_failure);
  std::atexit(&write_at_exit);
  if (!measure.until_step) return;
  add_step_observer(&on_write);
  at::addGlobalCallback(at::RecordFunctionCallback(&on_operator)
                            .needsInputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}

void measure_main_begins() {
  if (measure().process != 0) std::atexit(&write_at_exit);
}

}  // namespace memledger::inside
