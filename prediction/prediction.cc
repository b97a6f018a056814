#include "prediction/prediction.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/assumed_reads.h"
#include "prediction/prediction_text.h"
#include "prediction/program_failure.h"
#include "prediction/seen_part.h"
#include "text/names.h"

namespace memledger::prediction {
namespace {

constexpr char kExpandable[] = "expandable_segments:True";
constexpr char kCudasPool[] = "cudaMallocAsync";
// Not among them: garbage_collection_threshold, which LibTorch heeds only where the program sets a
// fraction of the device's memory; backend:cudaMallocAsync, as it is not known how CUDA's own pool
// falls into pieces.
constexpr std::string_view kSettings[] = {kExpandable, "max_split_size_mb:128",
                                          "roundup_power2_divisions:8"};
// What a real device can take beyond the upper end, and later steps beyond those that were seen
// (docs/accuracy.md): one part in kMarginShare, but at least kMinMargin.
constexpr int64_t kMarginShare = 100;
// On an H200 the peaks of 14 programs lay at most 2.1 % above those with cuDNN's own plans
// (docs/accuracy.md).
constexpr int64_t kMarginShareOfPlans = 25;
constexpr int64_t kMinMargin = int64_t{24} << 20, kMinMarginForLater = int64_t{32} << 20;

// The sum of what several processes took of one device.
struct DeviceSum {
  std::string gpu;
  int64_t capacity = 0;
  int64_t allocated = 0, reserved = 0, process = 0, context = 0, fragmented = 0;
  int64_t by_driver = 0;  // of which the driver saw no more than that, without the context
  int64_t failures = 0;
  int processes = 0;
};

std::map<int, DeviceSum> sums_of(const Run& run) {
  std::map<int, DeviceSum> sums;
  for (const Measurement& process : run.processes) {
    for (const MeasuredDevice& device : process.devices) {
      DeviceSum& sum = sums[device.index];
      sum.gpu = device.gpu;
      sum.capacity = device.capacity_bytes;
      sum.allocated += device.allocated_peak;
      sum.reserved += device.reserved_peak;
      sum.process += device.process_peak;
      sum.context += device.context_bytes;
      sum.fragmented += device.fragmented_bytes;
      // If a torch reported its own figures, the rest belongs to libraries.
      if (process.is_by_driver && device.reserved_peak == 0)
        sum.by_driver += device.process_peak - device.context_bytes;
      sum.failures += device.failures;
      ++sum.processes;
    }
  }
  return sums;
}

bool are_alike(const Run& a, const Run& b) {
  return a.end == b.end && a.addresses == b.addresses && a.varies_sizes == b.varies_sizes;
}

// Whether peaks come from this run: not where the device was too small for them, and another run
// was made without a limit.
bool tells_peaks(const Run& run, const std::vector<Run>& runs) {
  if (!run.is_limited) return run.has_ended_well();
  return std::none_of(runs.begin(), runs.end(), [&run](const Run& other) {
    return !other.is_limited && are_alike(other, run) && other.has_ended_well();
  });
}

std::vector<Term> terms_between(const DeviceSum& low, const DeviceSum& high) {
  const auto rest = [](const DeviceSum& sum) {
    return sum.process - sum.reserved - sum.context - sum.by_driver;
  };
  return {{"tensors", low.allocated, high.allocated},
          {"cached by LibTorch", low.reserved - low.allocated, high.reserved - high.allocated},
          {"libraries", rest(low), rest(high)},
          {"allocations", low.by_driver, high.by_driver},
          {"CUDA context", low.context, high.context}};
}

class Combination {
 public:
  // `within`: runs whose peaks count, too.
  Combination(const std::vector<Run>& runs, const std::vector<Run>& within)
      : runs_(runs), within_(within) {}

  std::vector<DevicePrediction> devices() {
    for (const Run& run : runs_) {
      if (run.is_limited) note_capacity(run);
    }
    for (const Run& run : runs_) {
      if (tells_peaks(run, runs_)) note_peaks(run);
    }
    for (const Run& run : within_) note_peaks(run);
    std::vector<DevicePrediction> result;
    for (auto& [index, device] : devices_) {
      DevicePrediction& prediction = device.prediction;
      prediction.device = absl::StrCat("cuda:", index);
      prediction.terms = terms_between(device.least, device.most);
      prediction.verdict = verdict_of(device);
      result.push_back(std::move(prediction));
    }
    return result;
  }

 private:
  struct Device {
    DevicePrediction prediction;
    DeviceSum least, most;  // by the process's peak
    bool has_peaks = false;
    int fails_low = 0, fails_high = 0;  // runs
    bool is_shared = false;             // by processes that did not see each other
    bool was_cut_short = false;         // a run ended early because memory ran out elsewhere
  };

  void note_capacity(const Run& run) {
    if (run.end == Run::End::kLow) ++low_runs_;
    for (const auto& [index, sum] : sums_of(run)) {
      Device& device = devices_[index];
      device.prediction.gpu = sum.gpu;
      device.prediction.capacity_bytes = sum.capacity;
      if (sum.processes > 1) device.is_shared = true;
      if (sum.failures > 0) {
        const bool is_proof = run.end == Run::End::kLow && !run.assumes_sizes;
        ++(is_proof ? device.fails_low : device.fails_high);
      } else if (!run.has_ended_well()) {
        device.was_cut_short = true;
      }
    }
  }

  void note_peaks(const Run& run) {
    for (const auto& [index, sum] : sums_of(run)) {
      Device& device = devices_[index];
      DevicePrediction& prediction = device.prediction;
      const auto include = [&](Interval& interval, int64_t bytes) {
        if (!device.has_peaks) interval = {bytes, bytes};
        interval.include(bytes);
      };
      include(prediction.allocated_peak, sum.allocated);
      include(prediction.reserved_peak, sum.reserved);
      include(prediction.process_peak, sum.process);
      include(prediction.context, sum.context);
      include(prediction.fragmented, sum.fragmented);
      if (!device.has_peaks || sum.process < device.least.process) device.least = sum;
      if (!device.has_peaks || sum.process > device.most.process) device.most = sum;
      device.has_peaks = true;
    }
  }

  // Each process of several had the device to itself, so their sum decides. So do the runs without
  // a limit where a run ended before this device was full.
  Verdict verdict_of(const Device& device) const {
    if (device.fails_low > 0 && device.fails_low == low_runs_) return Verdict::kDoesNotFit;
    if (device.fails_low + device.fails_high > 0) return Verdict::kNotKnown;
    const bool needs_room = device.is_shared || device.was_cut_short;
    if (needs_room && device.prediction.headroom_bytes() < 0) return Verdict::kNotKnown;
    return Verdict::kFits;
  }

  const std::vector<Run>& runs_;
  const std::vector<Run>& within_;
  int low_runs_ = 0;  // at the device's capacity
  std::map<int, Device> devices_;
};

// The process whose device was the fullest, of the runs of one end.
const Measurement* fullest(const std::vector<Run>& runs, Run::End end) {
  const Measurement* result = nullptr;
  int64_t most = -1;
  for (const Run& run : runs) {
    if (run.end != end || !tells_peaks(run, runs)) continue;
    for (const Measurement& process : run.processes) {
      for (const MeasuredDevice& device : process.devices) {
        if (device.process_peak <= most) continue;
        most = device.process_peak;
        result = &process;
      }
    }
  }
  return result;
}

Verdict worst(const std::vector<DevicePrediction>& devices) {
  Verdict worst = Verdict::kFits;
  for (const DevicePrediction& device : devices) {
    if (device.verdict == Verdict::kDoesNotFit) return Verdict::kDoesNotFit;
    if (device.verdict != Verdict::kFits) worst = device.verdict;
  }
  return worst;
}

bool has_open_read(const std::vector<MeasuredRead>& reads) {
  return std::any_of(reads.begin(), reads.end(),
                     [](const MeasuredRead& read) { return !read.has_upper_bound; });
}

// Takes the first run that did not end well and did not run out of memory either.
const Run* failed_run(const std::vector<Run>& runs) {
  const auto run = std::find_if(runs.begin(), runs.end(), [](const Run& candidate) {
    return candidate.is_limited && !candidate.has_ended_well() && !candidate.failed_allocation();
  });
  return run == runs.end() ? nullptr : &*run;
}

bool all_failed(const std::vector<Run>& runs) {
  return std::none_of(runs.begin(), runs.end(), [](const Run& run) {
    return run.has_ended_well() || run.failed_allocation();
  });
}

// The one that says less about later steps.
Steps worse(Steps a, Steps b) {
  for (const Steps steps : {Steps::kDiffer, Steps::kAlike, Steps::kRepeat}) {
    if (a == steps || b == steps) return steps;
  }
  return Steps::kNone;
}

void note_program(const std::vector<Run>& runs, Prediction& prediction) {
  prediction.program = runs.front().program;
  for (const Run& run : runs) {
    for (const Measurement& process : run.processes) {
      prediction.steps = std::max(prediction.steps, process.steps);
      prediction.unstepped_parameters =
          std::max(prediction.unstepped_parameters, process.unstepped_parameters);
      prediction.kind_of_steps = worse(prediction.kind_of_steps, process.kind_of_steps);
      if (process.ended != Ended::kNot) prediction.ended = process.ended;
      if (!process.missing_cudnn.empty()) prediction.missing_cudnn = process.missing_cudnn;
      if (process.libraries.size() > prediction.libraries.size())
        prediction.libraries = process.libraries;
    }
    if (!prediction.failure && run.end == Run::End::kLow && run.is_limited)
      prediction.failure = run.failure();
  }
  if (prediction.failure) return;
  for (const Run& run : runs) {
    if (!prediction.failure && run.is_limited) prediction.failure = run.failure();
  }
}

// All runs together: each file once, with its largest size.
Writes writes_of(const std::vector<Run>& runs) {
  Writes sum;
  std::map<std::string, LayerFile> files;
  std::set<std::string> read_only, host_files;
  std::set<std::pair<std::string, std::string>> refusals;
  for (const Run& run : runs) {
    sum.held_by = run.writes.held_by;
    sum.written_count = std::max(sum.written_count, run.writes.written_count);
    sum.removed_count = std::max(sum.removed_count, run.writes.removed_count);
    sum.bytes = std::max(sum.bytes, run.writes.bytes);
    for (const LayerFile& file : run.writes.files) {
      LayerFile& known = files.try_emplace(file.path, file).first->second;
      known.is_removed = known.is_removed && file.is_removed;
      known.bytes = std::max(known.bytes, file.bytes);
    }
    read_only.insert(run.writes.read_only.begin(), run.writes.read_only.end());
    host_files.insert(run.writes.host_files.begin(), run.writes.host_files.end());
    for (const Refusal& refusal : run.writes.refusals) refusals.emplace(refusal.what, refusal.path);
  }
  for (const auto& [path, file] : files) sum.files.push_back(file);
  sum.read_only.assign(read_only.begin(), read_only.end());
  sum.host_files.assign(host_files.begin(), host_files.end());
  for (const auto& [what, path] : refusals) sum.refusals.push_back({what, path});
  return sum;
}

// The program may have taken another way than it would.
void heed_refusals(Prediction& prediction) {
  const std::vector<Refusal>& refusals = prediction.writes.refusals;
  if (refusals.empty()) return;
  std::string reason = absl::StrCat("a call on files was not answered as it is outside a dry run: ",
                                    refusals.front().what, ", ", printable(refusals.front().path));
  if (refusals.size() > 1) absl::StrAppend(&reason, ", and ", refusals.size() - 1, " more");
  absl::StrAppend(&reason, "; --writes=allow lets the program write for real");
  if (!prediction.reason.empty()) absl::StrAppend(&reason, ". Besides, ", prediction.reason);
  prediction.reason = std::move(reason);
  prediction.verdict = Verdict::kNotKnown;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
}

// A program that fails at one end only has no figures of that end.
void note_failed_run(const Run& failed, const std::vector<Run>& runs, Prediction& prediction) {
  prediction.program = failed.program;
  prediction.reason = why_it_failed(failed);
  if (failed.program.timed_out || !all_failed(runs)) {
    prediction.verdict = Verdict::kNotKnown;
  } else {
    prediction.verdict = Verdict::kFailed;
  }
  // What the other runs say of a device is not all.
  for (DevicePrediction& device : prediction.devices) {
    if (device.verdict == Verdict::kFits) device.verdict = Verdict::kNotKnown;
  }
  if (prediction.verdict != Verdict::kNotKnown || failed.program.timed_out) return;
  if (failed.goes_on && failed.came_to_its_peak()) {
    prediction.reason += " (after the steps that were seen, in the run that went on)";
  } else {
    prediction.reason += failed.end == Run::End::kLow
                             ? " (where sizes that only the device has are the smallest possible)"
                             : " (where sizes that only the device has are the largest possible)";
  }
}

// One that ended well, or had no process that is watched: another failure says more.
const Run* unwatched_run(const std::vector<Run>& runs) {
  const auto found = std::find_if(runs.begin(), runs.end(), [](const Run& run) {
    const bool has_none = run.program.status == 0 && !run.program.timed_out;
    return !run.why_unwatched.empty() && (run.has_ended_well() || has_none);
  });
  return found == runs.end() ? nullptr : &*found;
}

// The sums of a run by device.
std::map<int, UnwatchedDevice> unwatched_sums(const Run& run) {
  std::map<int, UnwatchedDevice> sums;
  for (const DeviceUse& use : run.unwatched_uses) {
    UnwatchedDevice& sum = sums[use.index];
    sum.device = absl::StrCat("cuda:", use.index);
    sum.gpu = use.gpu;
    sum.capacity_bytes = use.capacity_bytes;
    sum.process_peak = {sum.process_peak.low + use.process_peak,
                        sum.process_peak.high + use.process_peak};
    ++sum.processes;
    sum.context = {sum.context.low + use.context_bytes, sum.context.high + use.context_bytes};
  }
  return sums;
}

std::vector<UnwatchedDevice> unwatched_devices(const std::vector<Run>& runs) {
  std::map<int, UnwatchedDevice> all;
  for (const Run& run : runs) {
    for (const auto& [index, sum] : unwatched_sums(run)) {
      const auto [known, is_new] = all.emplace(index, sum);
      if (is_new) continue;
      known->second.process_peak.include(sum.process_peak.low);
      known->second.context.include(sum.context.low);
      known->second.processes = std::max(known->second.processes, sum.processes);
    }
  }
  for (const Run& run : runs) {
    const std::map<int, UnwatchedDevice> sums = unwatched_sums(run);
    for (auto& [index, device] : all) {
      if (sums.count(index) == 0) device.process_peak.low = device.context.low = 0;
    }
  }
  std::vector<UnwatchedDevice> devices;
  for (auto& [index, device] : all) devices.push_back(std::move(device));
  return devices;
}

// No verdict, whatever the runs say: another value may lead to other allocations.
void note_unwatched(const std::string& why, Prediction& prediction) {
  prediction.verdict = Verdict::kNotKnown;
  prediction.reason =
      absl::StrCat(prediction.unwatched_devices.empty() ? "what it takes is not measured: "
                                                        : "not all of it is watched: ",
                   why);
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
}

// Sizes that have no largest value: what the runs took is no upper end.
void heed_open_reads(Prediction& prediction) {
  if (!has_open_read(prediction.unknown_reads)) return;
  for (DevicePrediction& device : prediction.devices) {
    if (device.verdict == Verdict::kFits) device.verdict = Verdict::kNotKnown;
  }
  if (prediction.verdict == Verdict::kFits) prediction.verdict = Verdict::kNotKnown;
}

// LibTorch takes another plan for a convolution whose workspace is not to be had.
bool catches_failures(const std::vector<Run>& runs) {
  bool has_failure = false;
  for (const Run& run : runs) {
    if (run.is_limited && !run.has_ended_well()) return false;
    has_failure = has_failure || (run.is_limited && run.failed_allocation());
  }
  return has_failure;
}

// LibTorch's own cache is not in use then.
bool uses_cudas_pool(const std::vector<Run>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const Run& run) {
    return std::any_of(run.processes.begin(), run.processes.end(), [](const Measurement& process) {
      return absl::StrContains(process.allocator_settings, kCudasPool);
    });
  });
}

bool assumes_sizes(const std::vector<Run>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.assumes_sizes; });
}

// Returns the operator of a value that may have kept the program from stepping: it computed
// gradients, and no optimizer stepped. LBFGS takes gradients that read as zero for the end of its
// work, and a program may skip steps whose loss is not finite.
std::string what_may_skip_steps(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    for (const Measurement& process : run.processes) {
      if (process.steps > 0 || !process.peak) continue;
      const auto gradients = process.peak->by_role.find("gradient");
      if (gradients == process.peak->by_role.end() || gradients->second == 0) continue;
      for (const MeasuredRead& read : process.unknown_reads) {
        const bool may_steer =
            read.kind == MeasuredRead::Kind::kBranch || read.kind == MeasuredRead::Kind::kFraction;
        if (may_steer && !is_sent(read)) return read.op;
      }
    }
  }
  return "";
}

// Batches may differ in size, and a later one may be the largest.
void heed_different_steps(Prediction& prediction) {
  if (prediction.kind_of_steps != Steps::kDiffer || prediction.verdict != Verdict::kFits) return;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
  prediction.verdict = Verdict::kNotKnown;
  prediction.reason =
      absl::StrCat("its steps differ in what they allocate, so one after the ", prediction.steps,
                   " that were seen may take more; --until=exit runs all");
}

int64_t margin_of(const DevicePrediction& device, int64_t least) {
  return std::max(least, device.process_peak.high / kMarginShare);
}

// A later step of another kind may come where all that were seen were alike.
int64_t margin_of(const Prediction& prediction, const DevicePrediction& device) {
  const bool may_differ_later =
      prediction.ended == Ended::kAfterStep && prediction.kind_of_steps == Steps::kAlike;
  const int64_t least = may_differ_later ? kMinMarginForLater : kMinMargin;
  const int64_t of_plans =
      prediction.has_plans_of_cudnn() ? device.process_peak.high / kMarginShareOfPlans : 0;
  return margin_of(device, std::max(least, of_plans));
}

// Returns how much more should be free on each device; 0: enough is.
int64_t missing_margin(const Prediction& prediction) {
  int64_t missing = 0;
  if (prediction.verdict != Verdict::kFits) return missing;
  for (const DevicePrediction& device : prediction.devices) {
    const int64_t margin = margin_of(prediction, device);
    if (device.headroom_bytes() < margin) missing = std::max(missing, margin);
  }
  return missing;
}

bool all_fit(const std::vector<Run>& runs) {
  return !runs.empty() && std::all_of(runs.begin(), runs.end(), [](const Run& run) {
    return run.has_ended_well() && !run.failed_allocation();
  });
}

bool fit_with_less(const std::vector<Run>& runs, int64_t bytes) {
  return all_fit(runs) && std::all_of(runs.begin(), runs.end(),
                                      [&](const Run& run) { return run.held_back_bytes >= bytes; });
}

bool has_sizes(const std::vector<MeasuredRead>& reads) {
  return std::any_of(reads.begin(), reads.end(), [](const MeasuredRead& read) {
    return read.kind == MeasuredRead::Kind::kSize && read.count > 0;
  });
}

// What such sizes can take of a device at most: all of it where the low end assumed them, too.
int64_t bytes_of_sizes(const DevicePrediction& device, bool are_assumed) {
  return device.allocated_peak.high - (are_assumed ? 0 : device.allocated_peak.low);
}

// The part of it that pieces of LibTorch's cache may add: twice what was seen of a program whose
// sizes are drawn at random (docs/accuracy.md).
constexpr int64_t kShareOfSizes = 4;

// Returns how much more should be free on each device for sizes that differ; 0: enough is.
int64_t missing_for_varied(const Prediction& prediction, bool are_assumed) {
  int64_t missing = 0;
  for (const DevicePrediction& device : prediction.devices) {
    const int64_t bytes = bytes_of_sizes(device, are_assumed);
    if (device.headroom_bytes() < bytes)
      missing = std::max({missing, margin_of(device, kMinMarginForLater), bytes / kShareOfSizes});
  }
  return missing;
}

// `varied`: runs in which sizes differ, with less memory where that was wanted.
void heed_varied_sizes(const std::vector<Run>& varied, bool are_assumed, Prediction& prediction) {
  if (prediction.verdict != Verdict::kFits || !has_sizes(prediction.unknown_reads)) return;
  // The user has said what to assume.
  if (absl::StrContains(prediction.specification, ",reads=")) return;
  std::vector<Run> limited;
  std::copy_if(varied.begin(), varied.end(), std::back_inserter(limited),
               [](const Run& run) { return run.is_limited; });
  const int64_t missing = missing_for_varied(prediction, are_assumed);
  const bool has_failed = std::any_of(limited.begin(), limited.end(),
                                      [](const Run& run) { return run.failed_allocation(); });
  if (!has_failed && missing == 0) return;
  if (!has_failed && fit_with_less(limited, missing)) {
    prediction.varied_margin_bytes = missing;
    return;
  }
  prediction.lacks_varied_margin = true;
  prediction.verdict = Verdict::kNotKnown;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
}

// Sizes that differ may leave more in the cache than the largest ones.
void include_peaks(const std::vector<Run>& varied, Prediction& prediction) {
  for (const Run& run : varied) {
    if (!run.has_ended_well() || !tells_peaks(run, varied)) continue;
    const std::map<int, DeviceSum> sums = sums_of(run);
    for (DevicePrediction& device : prediction.devices) {
      const auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& entry) {
        return device.device == absl::StrCat("cuda:", entry.first);
      });
      if (sum == sums.end()) continue;
      DeviceSum of_run = sum->second;
      // They are part of the context there.
      const int64_t held_back = std::min(run.held_back_bytes, of_run.context);
      of_run.process -= held_back;
      of_run.context -= held_back;
      if (of_run.process > device.process_peak.high) {
        const std::vector<Term> terms = terms_between(of_run, of_run);
        for (size_t i = 0; i < terms.size(); ++i) device.terms[i].high = terms[i].high;
      }
      const auto raise = [](Interval& interval, int64_t bytes) {
        interval.high = std::max(interval.high, bytes);
      };
      raise(device.allocated_peak, of_run.allocated);
      raise(device.reserved_peak, of_run.reserved);
      raise(device.process_peak, of_run.process);
      raise(device.fragmented, of_run.fragmented);
    }
  }
}

// `with_less`: runs that held some memory back.
void heed_little_to_spare(const std::vector<Run>& with_less, Prediction& prediction) {
  const int64_t missing = missing_margin(prediction);
  if (missing == 0) return;
  if (fit_with_less(with_less, missing)) {
    prediction.margin_bytes = missing;
    return;
  }
  prediction.lacks_margin = true;
  prediction.verdict = Verdict::kNotKnown;
  for (DevicePrediction& device : prediction.devices) {
    if (device.headroom_bytes() < margin_of(prediction, device))
      device.verdict = Verdict::kNotKnown;
  }
}

void heed_skipped_steps(const std::vector<Run>& runs, Prediction& prediction) {
  const std::string op = what_may_skip_steps(runs);
  if (op.empty() || prediction.verdict != Verdict::kFits) return;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
  prediction.verdict = Verdict::kNotKnown;
  prediction.reason = absl::StrCat(
      "it computed gradients and no optimizer stepped, perhaps because of a value that only the "
      "device has (",
      op, ")");
}

}  // namespace

void Interval::include(int64_t bytes) {
  low = std::min(low, bytes);
  high = std::max(high, bytes);
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "fits";
    case Verdict::kDoesNotFit:
      return "does not fit";
    case Verdict::kNotKnown:
      return "not known";
    case Verdict::kFailed:
      break;
  }
  return "failed";
}

bool Run::failed_allocation() const {
  return std::any_of(processes.begin(), processes.end(), [](const Measurement& process) {
    return std::any_of(process.devices.begin(), process.devices.end(),
                       [](const MeasuredDevice& device) { return device.failures > 0; });
  });
}

bool Run::has_ended_well() const {
  if (program.timed_out || processes.empty()) return false;
  if (program.status == 0) return true;
  // It failed in what came after its peak, such as an evaluation.
  if ((goes_on || as_far) && !was_enough) return false;
  return std::any_of(processes.begin(), processes.end(),
                     [](const Measurement& process) { return process.ended == Ended::kAfterStep; });
}

bool Run::came_to_its_peak() const {
  return std::any_of(processes.begin(), processes.end(), [](const Measurement& process) {
    return process.kind_when_settled != Steps::kNone || process.ended == Ended::kAfterStep;
  });
}

std::optional<MeasuredFailure> Run::failure() const {
  for (const Measurement& process : processes) {
    if (process.failure) return process.failure;
  }
  return std::nullopt;
}

namespace {

// Assumed reads may be otherwise, and with some it fits.
void heed_other_reads(const ReadsTried& tried, Prediction& prediction) {
  if (!tried.fits_otherwise || prediction.verdict != Verdict::kDoesNotFit) return;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
  prediction.verdict = Verdict::kNotKnown;
  prediction.reason = "whether it fits depends on values that only the device has";
}

// Whether the last line, which names an exception, mentions memory.
bool speaks_of_memory(std::string output) {
  absl::StripAsciiWhitespace(&output);
  const std::string line = absl::AsciiStrToLower(output.substr(output.rfind('\n') + 1));
  return absl::StrContains(line, "out of memory") || absl::StrContains(line, "out_of_memory") ||
         absl::StrContains(line, "outofmemory") || absl::StrContains(line, "memory allocation") ||
         absl::StrContains(line, "memoryallocation");
}

// Whether the run lacked the memory that was refused: it does not where there is enough. Where no
// such run was made, the program's last words decide. The driver sees no more than that it ended.
bool failed_for_memory(const Run& run, const std::vector<Run>& runs) {
  const auto unlimited = std::find_if(runs.begin(), runs.end(), [&run](const Run& other) {
    return !other.is_limited && are_alike(other, run);
  });
  if (unlimited != runs.end()) return unlimited->has_ended_well();
  return run.program.status != 0 && speaks_of_memory(run.program.last_lines);
}

void heed_other_failures(const std::vector<Run>& runs, Prediction& prediction) {
  const bool is_doubtful = std::any_of(runs.begin(), runs.end(), [&runs](const Run& run) {
    return run.end == Run::End::kLow && run.is_limited && !run.why_by_driver.empty() &&
           run.failed_allocation() && !failed_for_memory(run, runs);
  });
  if (!is_doubtful || prediction.verdict != Verdict::kDoesNotFit) return;
  for (DevicePrediction& device : prediction.devices) device.verdict = Verdict::kNotKnown;
  prediction.verdict = Verdict::kNotKnown;
  prediction.reason = "memory was refused, and what came of that is not known";
}

std::vector<Run> those_with_peaks(const std::vector<Run>& runs) {
  std::vector<Run> result;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(result),
               [&runs](const Run& run) { return tells_peaks(run, runs); });
  return result;
}

std::vector<Run> joined(std::vector<Run> runs, const std::vector<Run>& others) {
  runs.insert(runs.end(), others.begin(), others.end());
  return runs;
}

// What runs of both ends say, and `assuming` ones; without a look at what is to spare.
// `superseded`: the runs of ends that ended earlier than those made in their places.
Prediction combined(std::string specification, const std::vector<Run>& runs,
                    const std::vector<Run>& assuming, const std::vector<Run>& superseded) {
  Prediction prediction;
  prediction.specification = std::move(specification);
  note_program(runs, prediction);
  for (const Run& run : runs) add_reads(run, prediction.unknown_reads);
  const ReadsTried tried =
      judge_reads(joined(runs, superseded), assuming, prediction.unknown_reads);
  prediction.devices = Combination(runs, tried.within).devices();
  note_seen_part(runs, those_with_peaks(runs), prediction);
  sort_reads(prediction.unknown_reads);
  const Measurement* process = fullest(runs, Run::End::kHigh);
  if (process == nullptr) process = fullest(runs, Run::End::kLow);
  if (process != nullptr) prediction.peak = process->peak;
  if (catches_failures(runs)) {
    prediction.note =
        "LibTorch or the program caught the failure and went on, maybe with something slower that "
        "takes less.";
  }
  if (uses_cudas_pool(runs)) {
    prediction.note =
        "With backend:cudaMallocAsync CUDA's pool takes the place of LibTorch's cache: how it "
        "falls "
        "into pieces is not known and not counted.";
  }
  if (assumes_sizes(runs)) {
    prediction.note =
        "The program fails if sizes that only the device has are the smallest possible, so the low "
        "end assumes the largest, too.";
  }
  for (const Run& run : runs) {
    if (prediction.why_by_driver.empty()) prediction.why_by_driver = run.why_by_driver;
  }
  if (std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.assumes_ones; })) {
    prediction.note =
        "The program fails if what it copies to the host is zeros, so it is ones at first.";
  }
  prediction.verdict = worst(prediction.devices);
  if (prediction.verdict == Verdict::kDoesNotFit) {
    heed_other_reads(tried, prediction);
    heed_other_failures(runs, prediction);
    return prediction;
  }
  const Run* const unwatched = unwatched_run(runs);
  if (unwatched != nullptr || prediction.devices.empty())
    prediction.unwatched_devices = unwatched_devices(runs);
  if (unwatched != nullptr) {
    note_unwatched(printable(unwatched->why_unwatched), prediction);
  } else if (const Run* const failed = failed_run(runs)) {
    note_failed_run(*failed, runs, prediction);
  } else if (prediction.devices.empty()) {
    prediction.verdict = Verdict::kFailed;
    prediction.reason = "it used no GPU: there is nothing to measure";
  } else {
    heed_open_reads(prediction);
    heed_skipped_steps(runs, prediction);
    heed_different_steps(prediction);
  }
  return prediction;
}

struct RunsByUse {
  std::vector<Run> of_ends, assuming, varied, with_less;
  std::vector<Run> superseded;  // by those of ends that came further
};

bool is_of_end(const Run& run) {
  return run.assumed_reads.empty() && !run.varies_sizes && run.held_back_bytes == 0;
}

bool is_superseded(const Run& run, const std::vector<Run>& runs) {
  if (run.as_far || run.goes_on) return false;
  return std::any_of(runs.begin(), runs.end(), [&run](const Run& other) {
    return is_of_end(other) && other.as_far && are_alike(other, run) &&
           other.is_limited == run.is_limited;
  });
}

RunsByUse by_use(const std::vector<Run>& runs) {
  RunsByUse result;
  for (const Run& run : runs) {
    (!run.assumed_reads.empty() ? result.assuming
     : run.varies_sizes         ? result.varied
     : run.held_back_bytes > 0  ? result.with_less
     : is_superseded(run, runs) ? result.superseded
                                : result.of_ends)
        .push_back(run);
  }
  return result;
}

}  // namespace

Prediction predict(std::string specification, const std::vector<Run>& runs) {
  const RunsByUse used = by_use(runs);
  Prediction prediction =
      combined(std::move(specification), used.of_ends, used.assuming, used.superseded);
  heed_varied_sizes(used.varied, assumes_sizes(used.of_ends), prediction);
  heed_little_to_spare(used.with_less, prediction);
  // Last: what has to be to spare follows from the ends alone, as when runs with less were made.
  include_peaks(used.varied, prediction);
  prediction.writes = writes_of(runs);
  heed_refusals(prediction);
  return prediction;
}

std::vector<AssumingRun> assuming_runs(std::string_view specification,
                                       const std::vector<Run>& runs) {
  const RunsByUse used = by_use(runs);
  return wanted_runs(specification, joined(used.of_ends, used.superseded), used.assuming);
}

VariedSizes varied_sizes_to_test(const std::vector<Run>& runs) {
  const RunsByUse used = by_use(runs);
  const Prediction prediction = combined("", used.of_ends, used.assuming, used.superseded);
  if (prediction.verdict != Verdict::kFits || !has_sizes(prediction.unknown_reads)) return {};
  return {true, missing_for_varied(prediction, assumes_sizes(used.of_ends))};
}

int64_t margin_to_test(const std::vector<Run>& runs) {
  const RunsByUse used = by_use(runs);
  return missing_margin(combined("", used.of_ends, used.assuming, used.superseded));
}

bool needs_others_as_far(const std::vector<Run>& runs) {
  const std::vector<Run> ends = by_use(runs).of_ends;
  return std::any_of(ends.begin(), ends.end(), [](const Run& run) {
    if (!run.goes_on || run.program.timed_out) return false;
    return std::any_of(
        run.processes.begin(), run.processes.end(), [&run](const Measurement& process) {
          const bool shows_all_kinds =
              process.ended == Ended::kAtExit && process.kind_when_settled == Steps::kDiffer;
          const bool fails_later =
              run.failed_allocation() && process.kind_when_settled != Steps::kNone;
          return process.has_grown_since || shows_all_kinds || fails_later;
        });
  });
}

bool Prediction::has_plans_of_cudnn() const { return absl::StrContains(libraries, "cuDNN"); }

std::string Prediction::sentence() const { return sentence_of(*this); }
std::string Prediction::headline() const { return headline_of(*this); }
std::string Prediction::to_json() const { return prediction::to_json({*this}); }
std::string Prediction::to_text() const { return prediction::to_text({*this}); }

std::vector<std::string> settings_worth_trying(const Prediction& prediction,
                                               std::string_view setting) {
  if (prediction.verdict == Verdict::kFailed || !prediction.reason.empty()) return {};
  // They are settings of LibTorch's own cache.
  if (setting.find(kCudasPool) != std::string_view::npos) return {};
  if (prediction.verdict == Verdict::kFits) return {};
  if (std::any_of(prediction.unknown_reads.begin(), prediction.unknown_reads.end(),
                  [&](const MeasuredRead& read) { return may_decide(read, prediction); }))
    return {};
  for (const DevicePrediction& device : prediction.devices) {
    // Settings change what is cached, not what tensors and libraries take.
    const int64_t cached = device.reserved_peak.low - device.allocated_peak.low;
    if (device.process_peak.low - cached > device.capacity_bytes) return {};
  }
  std::vector<std::string> worth_it;
  for (const std::string_view candidate : kSettings) {
    const std::string_view name = candidate.substr(0, candidate.find(':'));
    if (setting.find(name) == std::string_view::npos) worth_it.emplace_back(candidate);
  }
  return worth_it;
}

void add_setting(std::string setting, const Prediction& tried, Prediction& prediction) {
  if (tried.devices.empty()) return;
  SettingTried result{std::move(setting), tried.devices.front().reserved_peak, tried.verdict};
  for (const DevicePrediction& device : tried.devices) {
    result.reserved_peak.low = std::max(result.reserved_peak.low, device.reserved_peak.low);
    result.reserved_peak.high = std::max(result.reserved_peak.high, device.reserved_peak.high);
  }
  const bool helps = prediction.verdict != Verdict::kFits && tried.verdict == Verdict::kFits;
  if (helps && prediction.remedy.empty())
    prediction.remedy = result.setting == kExpandable ? "expandable_segments" : result.setting;
  prediction.settings.push_back(std::move(result));
}

std::vector<Prediction> in_reading_order(std::vector<Prediction> predictions) {
  const auto capacity = [](const Prediction& prediction) {
    int64_t bytes = 0;
    for (const DevicePrediction& device : prediction.devices) bytes += device.capacity_bytes;
    return bytes;
  };
  const auto key = [&](const Prediction& prediction) {
    return std::make_pair(prediction.verdict != Verdict::kFits, capacity(prediction));
  };
  std::stable_sort(predictions.begin(), predictions.end(),
                   [&](const Prediction& a, const Prediction& b) { return key(a) < key(b); });
  return predictions;
}

Verdict verdict_of(const std::vector<Prediction>& predictions) {
  for (const Verdict verdict : {Verdict::kFailed, Verdict::kDoesNotFit, Verdict::kNotKnown}) {
    const auto has = [verdict](const Prediction& one) { return one.verdict == verdict; };
    if (std::any_of(predictions.begin(), predictions.end(), has)) return verdict;
  }
  return Verdict::kFits;
}

int exit_status(const std::vector<Prediction>& predictions) {
  switch (verdict_of(predictions)) {
    case Verdict::kFits:
      return 0;
    case Verdict::kDoesNotFit:
      return 10;
    case Verdict::kNotKnown:
      return 11;
    case Verdict::kFailed:
      break;
  }
  return 12;
}

}  // namespace memledger::prediction
