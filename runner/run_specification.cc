#include "runner/run_specification.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/output.h"
#include "virtual_gpu/profile_json.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

using prediction::Run;
using virtual_gpu::DeviceSpecification;
using virtual_gpu::Specification;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;  // the maximum of a virtual GPU
constexpr char kNoLimitText[] = ":1024GiB";

std::string options_of(const std::string& specification) {
  const size_t comma = specification.find(',');
  return comma == std::string::npos ? "" : specification.substr(comma);
}

// Whether each device still has its context, and NCCL's memory, if it has more memory: small
// devices have none.
bool keeps_its_own(const Specification& specification) {
  return std::all_of(
      specification.devices.begin(), specification.devices.end(),
      [&](const DeviceSpecification& device) {
        DeviceSpecification larger = device;
        larger.memory_bytes = kNoLimit;
        return specification.context_bytes_of(device) == specification.context_bytes_of(larger) &&
               specification.has_nccl_model(device) == specification.has_nccl_model(larger);
      });
}

// Writes a file of the device with another amount of memory. Its context stays.
absl::StatusOr<std::string> file_with_memory(const Specification& specification,
                                             const DeviceSpecification& device, uint64_t bytes,
                                             const std::string& folder) {
  static std::atomic<int> files{0};  // runs of several machines are made at once
  virtual_gpu::Profile profile = device.profile;
  profile.total_memory_bytes = bytes;
  profile.nominal_memory_bytes = std::max(profile.nominal_memory_bytes, bytes);
  profile.context_bytes = specification.context_bytes_of(device);
  profile.least_context_bytes = std::min(profile.least_context_bytes, profile.context_bytes);
  const std::string path = absl::StrCat(folder, "/device", ++files, ".json");
  const absl::Status status = write_file(path, "device", virtual_gpu::profile_json(profile) + "\n");
  if (!status.ok()) return status;
  return "@" + path;
}

// Writes a file of the device with `more` bytes added to its context.
absl::StatusOr<std::string> file_with_context(const Specification& specification,
                                              const DeviceSpecification& device, uint64_t more,
                                              const std::string& folder) {
  DeviceSpecification other = device;
  const uint64_t bytes = specification.context_bytes_of(device) + more;
  other.profile.context_bytes = other.profile.least_context_bytes = bytes;
  Specification with_file = specification;
  with_file.least_context = false;
  return file_with_memory(with_file, other, device.capacity_bytes(), folder);
}

// The bytes of each device's context; empty where they differ.
std::optional<uint64_t> context_of_all(const Specification& specification) {
  const uint64_t first = specification.context_bytes_of(specification.devices[0]);
  for (const DeviceSpecification& device : specification.devices) {
    if (specification.context_bytes_of(device) != first) return std::nullopt;
  }
  return first;
}

std::string without_option(std::string specification, std::string_view option) {
  const std::string begin = absl::StrCat(",", std::string(option), "=");
  const size_t at = specification.find(begin);
  if (at == std::string::npos) return specification;
  const size_t end = std::min(specification.find(',', at + 1), specification.size());
  return specification.erase(at, end - at);
}

// The options of a specification for devices that stand for those of `parsed`: small ones have no
// memory of NCCL's.
std::string options_for(const std::string& specification, const Specification& parsed) {
  const std::string options = options_of(specification);
  return parsed.has_nccl_model(parsed.devices[0]) ? options : with_option(options, "nccl", "0B");
}

}  // namespace

bool has_option(std::string_view specification, std::string_view option) {
  return absl::StrContains(std::string(specification), absl::StrCat(",", std::string(option), "="));
}

std::string with_option(std::string specification, std::string_view option,
                        std::string_view value) {
  if (!has_option(specification, option))
    absl::StrAppend(&specification, ",", std::string(option), "=", std::string(value));
  return specification;
}

std::string on_end(std::string specification, Run::End end, Run::Addresses addresses) {
  const bool is_low = end == Run::End::kLow;
  specification = with_option(std::move(specification), "events", is_low ? "once" : "late");
  specification = with_option(std::move(specification), "reads", is_low ? "none" : "all");
  // Smaller workspaces can leave pieces in LibTorch's cache by which more is reserved in the end,
  // so the two runs of the low end have either.
  const char* const low_workspaces = addresses == Run::Addresses::kDown ? "least" : "expected";
  specification =
      with_option(std::move(specification), "workspaces", is_low ? low_workspaces : "upper");
  specification = with_option(std::move(specification), "context", is_low ? "least" : "most");
  // Boards differ in what cuDNN chooses plans by (virtual_gpu/gpc_layout.h), so each of the four
  // runs is of another one.
  const int unevenness = (is_low ? 0 : 2) + (addresses == Run::Addresses::kDown ? 0 : 1);
  specification = with_option(std::move(specification), "uneven", std::to_string(unevenness));
  // The model of NCCL's memory is an upper bound.
  if (is_low) specification = with_option(std::move(specification), "nccl", "0B");
  return with_option(std::move(specification), "addresses",
                     addresses == Run::Addresses::kDown ? "down" : "up");
}

absl::StatusOr<std::string> without_limit(const std::string& specification,
                                          const std::string& folder) {
  const auto parsed = virtual_gpu::parse_specification(specification);
  if (!parsed.specification) return absl::InvalidArgumentError(parsed.error);
  const bool needs_files = !keeps_its_own(*parsed.specification);
  std::string result;
  for (const DeviceSpecification& device : parsed.specification->devices) {
    if (!result.empty()) result += "+";
    const bool is_known =
        virtual_gpu::find_profile(device.profile.name) != nullptr &&
        virtual_gpu::profile_json(*virtual_gpu::find_profile(device.profile.name)) ==
            virtual_gpu::profile_json(device.profile);
    if (is_known && !needs_files) {
      absl::StrAppend(&result, device.profile.name, kNoLimitText);
      continue;
    }
    const auto file = file_with_memory(*parsed.specification, device, kNoLimit, folder);
    if (!file.ok()) return file.status();
    result += *file;
  }
  return result + options_for(specification, *parsed.specification);
}

absl::StatusOr<std::string> with_less(const std::string& specification, int64_t bytes,
                                      const std::string& folder) {
  const auto parsed = virtual_gpu::parse_specification(specification);
  if (!parsed.specification) return absl::InvalidArgumentError(parsed.error);
  const Specification& machine = *parsed.specification;
  const auto less = static_cast<uint64_t>(bytes);
  // With `context=` the code of libraries is not charged in addition to it (hold_library_code()),
  // so that is said only where the user has, and of small devices, which have no such code.
  const std::optional<uint64_t> context = context_of_all(machine);
  if (context && (*context == 0 || machine.context_bytes)) {
    return with_option(without_option(specification, "context"), "context",
                       absl::StrCat(*context + less, "B"));
  }
  std::string result;
  for (const DeviceSpecification& device : machine.devices) {
    const auto file =
        machine.context_bytes_of(device) == 0
            ? file_with_memory(machine, device, device.capacity_bytes() - less, folder)
            : file_with_context(machine, device, less, folder);
    if (!file.ok()) return file.status();
    absl::StrAppend(&result, result.empty() ? "" : "+", *file);
  }
  return result + options_for(specification, machine);
}

std::string notes_on_memory(const std::string& specification,
                            const std::vector<prediction::DevicePrediction>& devices) {
  const auto parsed = virtual_gpu::parse_specification(specification);
  if (!parsed.specification) return "";
  std::string notes;
  for (const prediction::DevicePrediction& device : devices) {
    const std::vector<DeviceSpecification>& known = parsed.specification->devices;
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto& candidate) {
      return candidate.profile.name == device.gpu && !candidate.memory_bytes;
    });
    if (found == known.end() || found->profile.memory_note.empty()) continue;
    const auto sure = static_cast<int64_t>(found->profile.sure_memory_bytes);
    if (device.process_peak.high <= sure || device.headroom_bytes() < 0) continue;
    absl::StrAppend(&notes, notes.empty() ? "" : "\n", device.device,
                    " may have less: ", found->profile.memory_note, ".");
  }
  return notes;
}

}  // namespace memledger::runner
