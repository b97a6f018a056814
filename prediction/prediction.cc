#include "prediction/prediction.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "prediction/prediction_text.h"

namespace memledger::prediction {
namespace {

// The sum of what several processes took of one device.
struct DeviceSum {
  std::string gpu;
  int64_t capacity = 0;
  int64_t allocated = 0, reserved = 0, process = 0, context = 0, fragmented = 0;
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
      sum.failures += device.failures;
      ++sum.processes;
    }
  }
  return sums;
}

bool has_unlimited(const std::vector<Run>& runs, Run::End end) {
  return std::any_of(runs.begin(), runs.end(), [end](const Run& run) {
    return run.end == end && !run.is_limited && run.has_ended_well();
  });
}

class Combination {
 public:
  explicit Combination(const std::vector<Run>& runs) : runs_(runs) {}

  std::vector<DevicePrediction> devices() {
    for (const Run& run : runs_) {
      if (run.is_limited) note_capacity(run);
      if (run.is_limited == has_unlimited(runs_, run.end)) continue;
      note_peaks(run);
    }
    std::vector<DevicePrediction> result;
    for (auto& [index, device] : devices_) {
      device.prediction.device = absl::StrCat("cuda:", index);
      device.prediction.verdict = verdict_of(device);
      result.push_back(device.prediction);
    }
    return result;
  }

 private:
  struct Device {
    DevicePrediction prediction;
    bool has_peaks = false;
    bool fails_low = false, fails_high = false;
    bool is_shared = false;  // by processes that did not see each other
  };

  void note_capacity(const Run& run) {
    for (const auto& [index, sum] : sums_of(run)) {
      Device& device = devices_[index];
      device.prediction.gpu = sum.gpu;
      device.prediction.capacity_bytes = sum.capacity;
      if (sum.processes > 1) device.is_shared = true;
      if (sum.failures == 0) continue;
      (run.end == Run::End::kLow ? device.fails_low : device.fails_high) = true;
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
      device.has_peaks = true;
    }
  }

  // Each process of several had the device to itself, so their sum decides.
  static Verdict verdict_of(const Device& device) {
    if (device.fails_low) return Verdict::kDoesNotFit;
    if (device.fails_high) return Verdict::kNotKnown;
    if (device.is_shared && device.prediction.headroom_bytes() < 0) return Verdict::kNotKnown;
    return Verdict::kFits;
  }

  const std::vector<Run>& runs_;
  std::map<int, Device> devices_;
};

// The process whose device was the fullest, of the runs of one end.
const Measurement* fullest(const std::vector<Run>& runs, Run::End end) {
  const Measurement* result = nullptr;
  int64_t most = -1;
  for (const Run& run : runs) {
    if (run.end != end || run.is_limited == has_unlimited(runs, end)) continue;
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

// Reads by operator and place, of the process that has most of each.
void add_reads(const Run& run, std::vector<MeasuredRead>& reads) {
  for (const Measurement& process : run.processes) {
    for (const MeasuredRead& read : process.unknown_reads) {
      const auto same = std::find_if(reads.begin(), reads.end(), [&](const MeasuredRead& other) {
        return other.op == read.op && other.place == read.place;
      });
      if (same == reads.end()) {
        reads.push_back(read);
      } else {
        same->count = std::max(same->count, read.count);
        same->bytes = std::max(same->bytes, read.bytes);
      }
    }
  }
}

Verdict worst(const std::vector<DevicePrediction>& devices) {
  Verdict worst = Verdict::kFits;
  for (const DevicePrediction& device : devices) {
    if (device.verdict == Verdict::kDoesNotFit) return Verdict::kDoesNotFit;
    if (device.verdict != Verdict::kFits) worst = device.verdict;
  }
  return worst;
}

// Takes the first run that did not end well and did not run out of memory either.
const Run* failed_run(const std::vector<Run>& runs) {
  const auto run = std::find_if(runs.begin(), runs.end(), [](const Run& candidate) {
    return !candidate.has_ended_well() && !candidate.failed_allocation();
  });
  return run == runs.end() ? nullptr : &*run;
}

void note_program(const std::vector<Run>& runs, Prediction& prediction) {
  prediction.program = runs.front().program;
  for (const Run& run : runs) {
    for (const Measurement& process : run.processes) {
      prediction.steps = std::max(prediction.steps, process.steps);
      if (process.ended != Ended::kNot) prediction.ended = process.ended;
    }
    if (!prediction.failure && run.end == Run::End::kLow && run.is_limited)
      prediction.failure = run.failure();
  }
  if (prediction.failure) return;
  for (const Run& run : runs) {
    if (!prediction.failure && run.is_limited) prediction.failure = run.failure();
  }
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
  return std::any_of(processes.begin(), processes.end(),
                     [](const Measurement& process) { return process.ended == Ended::kAfterStep; });
}

std::optional<MeasuredFailure> Run::failure() const {
  for (const Measurement& process : processes) {
    if (process.failure) return process.failure;
  }
  return std::nullopt;
}

Prediction predict(std::string specification, const std::vector<Run>& runs) {
  Prediction prediction;
  prediction.specification = std::move(specification);
  note_program(runs, prediction);
  prediction.devices = Combination(runs).devices();
  for (const Run& run : runs) add_reads(run, prediction.unknown_reads);
  if (const Measurement* const process = fullest(runs, Run::End::kHigh))
    prediction.peak = process->peak;
  prediction.verdict = worst(prediction.devices);
  if (prediction.verdict == Verdict::kDoesNotFit) return prediction;
  if (const Run* const failed = failed_run(runs)) {
    prediction.program = failed->program;
    prediction.verdict = failed->program.timed_out ? Verdict::kNotKnown : Verdict::kFailed;
    prediction.reason = failed->program.timed_out ? "the program did not end in time"
                        : failed->program.status == 0
                            ? "it used no GPU: there is nothing to measure"
                            : absl::StrCat("the program ended with ", failed->program.status);
  } else if (prediction.devices.empty()) {
    prediction.verdict = Verdict::kFailed;
    prediction.reason = "it used no GPU: there is nothing to measure";
  }
  return prediction;
}

std::string Prediction::sentence() const { return sentence_of(*this); }
std::string Prediction::to_json() const { return json_of(*this); }
std::string Prediction::to_text() const { return text_of(*this); }

void add_setting(std::string setting, const Prediction& tried, Prediction& prediction) {
  if (tried.devices.empty()) return;
  SettingTried result{std::move(setting), tried.devices.front().reserved_peak, tried.verdict};
  for (const DevicePrediction& device : tried.devices) {
    result.reserved_peak.low = std::max(result.reserved_peak.low, device.reserved_peak.low);
    result.reserved_peak.high = std::max(result.reserved_peak.high, device.reserved_peak.high);
  }
  if (prediction.verdict == Verdict::kDoesNotFit && tried.verdict == Verdict::kFits)
    prediction.remedy = result.setting.substr(0, result.setting.find(':'));
  prediction.settings.push_back(std::move(result));
}

int exit_status(const std::vector<Prediction>& predictions) {
  constexpr int kFits = 0, kDoesNotFit = 10, kNotKnown = 11, kFailed = 12;
  const auto any = [&](Verdict verdict) {
    return std::any_of(predictions.begin(), predictions.end(),
                       [verdict](const Prediction& one) { return one.verdict == verdict; });
  };
  if (any(Verdict::kFailed)) return kFailed;
  if (any(Verdict::kDoesNotFit)) return kDoesNotFit;
  return any(Verdict::kNotKnown) ? kNotKnown : kFits;
}

}  // namespace memledger::prediction
