#include "runner/gpus_command.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/bytes.h"
#include "text/output.h"
#include "virtual_gpu/profile_json.h"
#include "virtual_gpu/profiles.h"

namespace memledger::runner {
namespace {

std::string size(uint64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

std::string json() {
  std::string rows;
  for (const virtual_gpu::Profile& profile : virtual_gpu::profiles())
    absl::StrAppend(&rows, rows.empty() ? "" : ",\n", virtual_gpu::profile_json(profile));
  return absl::StrCat("{\"schema\":\"memledger.gpus/1\",\"gpus\":[\n", rows, "\n]}\n");
}

std::string row(const virtual_gpu::Profile& profile) {
  std::string text =
      absl::StrFormat("%-9s  %-24s %4d.%d  %10s  %9s  %9s\n", profile.name, profile.device_name,
                      profile.major, profile.minor, size(profile.total_memory_bytes),
                      size(profile.least_context_bytes), size(profile.context_bytes));
  text += "           memory: " + profile.source + "\n";
  if (!profile.memory_note.empty()) text += "           or less: " + profile.memory_note + "\n";
  return text + "           context: " + profile.context_source + "\n";
}

std::string table() {
  std::string text = absl::StrFormat("%-9s  %-24s %6s  %10s  %20s\n", "GPU", "device", "comp.",
                                     "memory", "context, from and to");
  for (const virtual_gpu::Profile& profile : virtual_gpu::profiles()) text += row(profile);
  return text +
         "\ncomp.: the compute capability; context: what a process takes beyond its "
         "tensors,\nthe least and the most that was seen. The lines below a device say where the "
         "figures come\nfrom: its messages are out-of-memory errors that programs on such a device "
         "printed.\n";
}

}  // namespace

std::string gpus_text(const GpusOptions& options) { return options.json ? json() : table(); }

int gpus_command(const GpusOptions& options) {
  const absl::Status status = write_standard_output(gpus_text(options));
  if (!status.ok()) tell({std::string(status.message())});
  return status.ok() ? 0 : 1;
}

}  // namespace memledger::runner
