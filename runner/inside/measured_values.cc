#include "runner/inside/measured_values.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "registry/core/lock.h"
#include "registry/device_statistics.h"
#include "registry/hooks/before_resets.h"
#include "registry/libtorch/reset_peaks.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "reporter/formats/run_summary.h"
#include "reporter/mem_reporter.h"
#include "reporter/names/program_name.h"
#include "runner/inside/real_devices.h"
#include "runner/inside/run_report.h"
#include "text/names.h"
#include "text/shape.h"
#include "virtual_gpu/device_use.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/missing_cudnn.h"
#include "virtual_gpu/values/program_line.h"
#include "virtual_gpu/values/size_reads.h"

namespace memledger::inside {
namespace {

using prediction::MeasuredRead;

constexpr size_t kLargestRows = 10;
constexpr size_t kLargestLayers = 50;

c10::Device cuda(size_t index) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

decltype(&memledger_virtual_gpu_uses) virtual_uses() {
  static const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_uses)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses"));
  return ask;
}

std::vector<memledger_virtual_gpu_use> uses() {
  if (has_real_devices()) return real_device_uses();
  const auto ask = virtual_uses();
  if (ask == nullptr) return {};
  std::vector<memledger_virtual_gpu_use> rows(ask(nullptr, 0));
  rows.resize(std::min(rows.size(), ask(rows.data(), rows.size())));
  return rows;
}

std::string phase_text(Phase phase) { return std::string(to_string(phase)); }

// The layer: the module, else the label of the forward pass, else what backward belongs to.
std::string layer_of(const Birthplace& born, const std::string& module) {
  if (!module.empty()) return module;
  const std::string_view label = born.forward_label.empty() ? born.label : born.forward_label;
  if (const std::string_view optimizer = optimizer_of(label); !optimizer.empty())
    return std::string(optimizer);
  if (!label.empty()) return std::string(label);
  return born.forward_op.empty() ? "" : "backward of " + std::string(born.forward_op);
}

// The storage may be far larger than the tensor that an operator has shown.
std::string shape_of(const ReportRow& row) {
  std::string shape = shape_text(row.shape);
  if (!row.anonymous || !row.dtype || !row.nbytes) return shape;
  const int64_t shown = row.elements() * static_cast<int64_t>(c10::elementSize(*row.dtype));
  return shown > 0 && shown <= *row.nbytes / 2 ? "a part: " + shape : shape;
}

bool is_workspace(const ReportRow& row) {
  return row.role == Role::kTensor && row.storage_kind != StorageKind::kTensor && !row.shape;
}

prediction::MeasuredRow row_of(const ReportRow& row) {
  prediction::MeasuredRow result;
  result.name = row.name;
  result.op = std::string(row.op);
  // Weights that are made or moved while gradients are on are not of a forward pass.
  const bool is_of_model = row.role == Role::kParameter || row.role == Role::kBuffer;
  result.phase =
      phase_text(is_of_model && row.phase == Phase::kForward ? Phase::kOther : row.phase);
  result.layer = layer_of(row, row.module);
  result.place = row.where;
  // Memory that is no tensor's has none.
  if (row.shape) result.shape = shape_of(row);
  result.bytes = row.nbytes.value_or(0);
  result.is_anonymous = row.anonymous;
  return result;
}

// The module of a parameter, by the id of its storage; empty where it is not known.
std::string module_of(uint64_t parameter, size_t device) {
  if (parameter == 0) return "";
  const Report report = MemReporter().collect_peak(cuda(device));
  for (const DeviceReport& of_device : report.devices) {
    for (const ReportRow& row : of_device.rows) {
      if (row.storage_id == parameter) return row.module;
    }
  }
  return "";
}

void keep_largest(std::map<std::string, int64_t>& bytes_by_name, size_t most) {
  if (bytes_by_name.size() <= most) return;
  std::vector<std::pair<int64_t, std::string>> all;
  for (const auto& [name, bytes] : bytes_by_name) all.emplace_back(-bytes, name);
  std::sort(all.begin(), all.end());
  for (size_t i = most; i < all.size(); ++i) bytes_by_name.erase(all[i].second);
}

bool may_be_recomputed(const ReportRow& row) {
  switch (row.role) {
    case Role::kParameter:
    case Role::kGradient:
    case Role::kOptimizerState:
    case Role::kBuffer:
    case Role::kInput:
      return false;
    default:
      return !is_workspace(row);
  }
}

prediction::MeasuredRow row_of(const GroupedRows& rows) {
  prediction::MeasuredRow row = row_of(*rows.first);
  if (!rows.name.empty()) row.name = rows.name;
  row.is_anonymous = rows.name.empty();
  if (!rows.module.empty()) row.layer = rows.module;
  if (rows.is_of_state) row.shape = row.place = "";
  row.bytes = rows.bytes;
  row.count = rows.count;
  row.each_bytes = rows.each;
  return row;
}

void add_rows(const RunOfDevice& run, prediction::MeasuredPeak& peak) {
  for (const ReportRow& row : run.peak.rows) {
    const int64_t bytes = row.nbytes.value_or(0);
    peak.by_role[is_workspace(row) ? "workspace" : std::string(machine_name(row.role))] += bytes;
    std::string layer = layer_of(row, row.module);
    if (layer.empty()) {
      peak.without_layer_bytes += bytes;
      continue;
    }
    if (may_be_recomputed(row)) peak.activations_by_layer[layer] += bytes;
    peak.by_layer[std::move(layer)] += bytes;
  }
  keep_largest(peak.by_layer, kLargestLayers);
  keep_largest(peak.activations_by_layer, kLargestLayers);
  const std::vector<GroupedRows> groups = grouped_rows(run.peak, run);
  for (size_t i = 0; i < std::min(groups.size(), kLargestRows); ++i)
    peak.largest.push_back(row_of(groups[i]));
  const ReportRow* const last = run.peak.row_that_made_peak();
  if (last == nullptr) return;
  peak.op = last->op;
  peak.phase = phase_text(last->phase);
  peak.place = last->where;
  peak.layer = layer_of(*last, last->module);
}

// Without the folders that Python's have: `moe.py:84 forward`.
std::string short_place(std::string place) {
  return !place.empty() && place.front() == '/' ? std::string(base_name(place)) : place;
}

// Where the program is; in backward, on a thread without its lines, where it called the operator
// whose node runs.
std::string place_of(const AllocationFailure& failed) {
  std::string place = short_place(to_string(virtual_gpu::take_program_line()));
  const std::vector<void*> addresses = stack_addresses(failed.stack);
  if (!place.empty() || addresses.empty()) return place;
  // The C++ stack of a Python program has the interpreter's functions.
  if (!is_of_python(addresses.front()) && dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr)
    return place;
  const StackFrame frame = program_frame(failed.stack);
  return frame.function.empty() ? place : to_string(frame);
}

MeasuredRead::Kind kind_of(virtual_gpu::ReadKind kind) {
  using virtual_gpu::ReadKind;
  switch (kind) {
    case ReadKind::kAssumedSize:
    case ReadKind::kUnboundedSize:
      break;
    case ReadKind::kNumber:
      return MeasuredRead::Kind::kNumber;
    case ReadKind::kReceived:
      return MeasuredRead::Kind::kReceived;
    case ReadKind::kFraction:
      return MeasuredRead::Kind::kFraction;
    case ReadKind::kScalar:
      return MeasuredRead::Kind::kBranch;
    case ReadKind::kSaid:
      return MeasuredRead::Kind::kSaid;
  }
  return MeasuredRead::Kind::kSize;
}

MeasuredRead read_of(const virtual_gpu::ReadRow& row) {
  using virtual_gpu::ReadKind;
  MeasuredRead read;
  read.op = row.op;
  read.place = short_place(row.where);
  read.count = static_cast<int64_t>(row.count);
  read.bytes = static_cast<int64_t>(row.dependent_bytes);
  read.kind = kind_of(row.kind);
  read.site = row.site;
  read.assumed = row.assumed;
  read.before_cap = static_cast<int64_t>(row.before_cap);
  read.loop = short_place(row.loop);
  read.last_read = static_cast<int64_t>(row.last_read);
  read.has_upper_bound =
      row.site.empty() && row.kind != ReadKind::kUnboundedSize && row.before_cap == 0;
  return read;
}

// What libraries took besides LibTorch's tensors and no run can be sure of.
void add_library_sizes(std::vector<MeasuredRead>& reads) {
  void* const ask = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_library_sizes");
  if (ask == nullptr) return;
  std::array<memledger_virtual_gpu_library_size, 16> rows{};
  const size_t count = reinterpret_cast<decltype(&memledger_virtual_gpu_library_sizes)>(ask)(
      rows.data(), rows.size());
  for (size_t i = 0; i < std::min(count, rows.size()); ++i) {
    MeasuredRead read;
    read.op = rows[i].what;
    read.count = static_cast<int64_t>(rows[i].count);
    read.has_upper_bound = rows[i].has_upper_bound != 0;
    if (!read.has_upper_bound) read.kind = MeasuredRead::Kind::kModel;
    reads.push_back(std::move(read));
  }
}

}  // namespace

std::vector<prediction::MeasuredDevice> measured_devices() {
  core::calling_out();
  std::vector<prediction::MeasuredDevice> result;
  const std::vector<memledger_virtual_gpu_use> all = uses();
  for (size_t i = 0; i < all.size(); ++i) {
    const memledger_virtual_gpu_use& use = all[i];
    const auto statistics = device_statistics(cuda(i));
    // The first allocation of all may be the one that fails.
    if (use.peak_bytes == 0 && !(statistics && statistics->out_of_memory_errors > 0)) continue;
    prediction::MeasuredDevice device;
    device.index = static_cast<int>(i);
    device.gpu = use.name;
    device.capacity_bytes = static_cast<int64_t>(use.total_bytes);
    device.process_peak = static_cast<int64_t>(use.peak_bytes);
    device.context_bytes = static_cast<int64_t>(use.context_bytes);
    device.failures = static_cast<int64_t>(use.unretried_failures);
    const BeforeResets before = before_resets(device.index);
    device.allocated_peak = before.allocated_peak;
    device.reserved_peak = before.reserved_peak;
    device.allocations = before.allocations;
    device.requested_in_all = before.requested_bytes;
    if (statistics) {
      device.allocated_peak = std::max(device.allocated_peak, statistics->allocated_bytes.peak);
      device.reserved_peak = std::max(device.reserved_peak, statistics->reserved_bytes.peak);
      device.allocations += statistics->allocations.allocated;
      device.requested_in_all += statistics->requested_bytes.allocated;
      device.fragmented_bytes = statistics->inactive_split_bytes.current;
      device.retries = statistics->allocation_retries;
      device.failures += statistics->out_of_memory_errors;
    }
    if (has_real_devices()) device.process_peak = device.reserved_peak + device.context_bytes;
    result.push_back(std::move(device));
  }
  return result;
}

prediction::MeasuredPeak measured_peak(int device) {
  const Report report = MemReporter().collect_peak(cuda(static_cast<size_t>(device)));
  prediction::MeasuredPeak peak;
  peak.device = device;
  for (const DeviceReport& of_device : report.devices) {
    const RunOfDevice run = run_of_device(of_device);
    add_rows(run, peak);
    for (const PartBytes& part : composition_of(run.peak, run))
      peak.parts.push_back({std::string(to_string(part.part)), part.bytes, part.inferred_bytes});
  }
  return peak;
}

std::vector<MeasuredRead> measured_reads(bool with_lines) {
  std::vector<MeasuredRead> reads;
  for (const virtual_gpu::ReadRow& row : virtual_gpu::unknown_reads(with_lines))
    reads.push_back(read_of(row));
  add_library_sizes(reads);
  return reads;
}

std::string missing_cudnn() {
  void* const ask = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_missing_cudnn");
  if (ask == nullptr) return "";
  const char* const missing =
      reinterpret_cast<decltype(&memledger_virtual_gpu_missing_cudnn)>(ask)();
  return missing == nullptr ? "" : missing;
}

prediction::MeasuredFailure measured_failure(const AllocationFailure& failed) {
  prediction::MeasuredFailure failure;
  failure.device = static_cast<unsigned char>(failed.device.index());
  failure.requested_bytes = failed.requested_bytes;
  failure.op = failed.op;
  failure.phase = phase_text(failed.phase);
  failure.layer = layer_of(
      failed, module_of(failed.parameter, static_cast<unsigned char>(failed.device.index())));
  failure.place = place_of(failed);
  const auto device = static_cast<size_t>(failure.device);
  if (const auto statistics = device_statistics(cuda(device))) {
    failure.allocated_bytes = statistics->allocated_bytes.current;
    failure.reserved_bytes = statistics->reserved_bytes.current;
  }
  if (const std::vector<memledger_virtual_gpu_use> all = uses(); device < all.size())
    failure.free_bytes = static_cast<int64_t>(all[device].total_bytes - all[device].used_bytes);
  return failure;
}

BytesNow bytes_now(int device) {
  BytesNow now;
  const auto statistics = device_statistics(cuda(static_cast<size_t>(device)));
  if (!statistics) return now;
  now.allocated = statistics->allocated_bytes.current;
  now.process = statistics->reserved_bytes.current;
  const auto ask = virtual_uses();
  if (has_real_devices() || ask == nullptr) return now;
  std::array<memledger_virtual_gpu_use, 16> rows = {};
  const auto place = static_cast<size_t>(device);
  if (place < rows.size() && ask(rows.data(), place + 1) > place)
    now.process = static_cast<int64_t>(rows[place].used_bytes);
  return now;
}

Totals measured_totals() {
  core::calling_out();  // LibTorch's allocator and the virtual GPU have locks of their own
  Totals totals;
  const std::vector<memledger_virtual_gpu_use> all = uses();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].peak_bytes == 0) continue;
    totals.peak_bytes += static_cast<int64_t>(all[i].peak_bytes);
    const BeforeResets before = before_resets(static_cast<int>(i));
    totals.allocations += before.allocations;
    totals.requested_in_all += before.requested_bytes;
    if (const auto statistics = device_statistics(cuda(i))) {
      totals.peak_bytes += std::max(before.allocated_peak, statistics->allocated_bytes.peak);
      totals.used_bytes += statistics->allocated_bytes.current;
      totals.allocations += statistics->allocations.allocated;
      totals.requested_in_all += statistics->requested_bytes.allocated;
    }
  }
  return totals;
}

uint64_t hash_of_blocks() {
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t value) {
    // FNV-1a by words, whose high bits are mixed down.
    hash = (hash ^ value) * 0x100000001b3;
    hash ^= hash >> 29;
  };
  const size_t devices = uses().size();
  for (size_t i = 0; i < devices; ++i) {
    const std::optional<DeviceBlocks> blocks = device_blocks(cuda(i));
    if (!blocks) continue;
    for (const DeviceSegment& segment : blocks->segments) {
      add(segment.address);
      add(segment.stream);
      for (const DeviceBlock& block : segment.blocks) {
        add(block.address);
        add(static_cast<uint64_t>(block.nbytes));
        add(static_cast<uint64_t>(block.state));
      }
    }
  }
  return hash;
}

void reset_measured_peaks() {
  // Puts our wrapper before the allocator where no operator has run yet: a failure is seen then.
  Registry::global().snapshot();
  if (void* const reset = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_reset_peaks"))
    reinterpret_cast<decltype(&memledger_virtual_gpu_reset_peaks)>(reset)();
  for (size_t i = 0; i < uses().size(); ++i) {
    reset_device_peaks(cuda(i));
    forget_peaks_before_reset(static_cast<int>(i));
    Registry::global().reset_peak(cuda(i));
  }
}

bool has_used_a_gpu() {
  // On real devices a child is not distinguished from its parent.
  if (has_real_devices()) return true;
  static const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_is_used)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_is_used"));
  return ask != nullptr && ask();
}

}  // namespace memledger::inside
