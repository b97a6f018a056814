#include "prediction/seen_part.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace memledger::prediction {
namespace {

bool has_stage(const Run& run, Stage stage) {
  return std::any_of(run.processes.begin(), run.processes.end(), [stage](const Measurement& one) {
    return std::any_of(one.stages.begin(), one.stages.end(),
                       [stage](const MeasuredStage& seen) { return seen.stage == stage; });
  });
}

bool is_whole(const Run& run) {
  return run.has_ended_well() &&
         std::all_of(run.processes.begin(), run.processes.end(),
                     [](const Measurement& one) { return one.ended == Ended::kAtExit; });
}

// The sums of what several processes took in a stage, by device.
std::map<int, MeasuredStage> sums_of(const Run& run, Stage stage) {
  std::map<int, MeasuredStage> sums;
  for (const Measurement& process : run.processes) {
    for (const MeasuredStage& seen : process.stages) {
      if (seen.stage != stage) continue;
      MeasuredStage& sum = sums[seen.device];
      sum.allocated_peak += seen.allocated_peak;
      sum.process_peak += seen.process_peak;
    }
  }
  return sums;
}

// A run that ended before the stage does not show its minimum.
void include(StagePeaks& peaks, const MeasuredStage& sum, bool is_first) {
  if (is_first) {
    peaks.allocated = {sum.allocated_peak, sum.allocated_peak};
    peaks.process = {sum.process_peak, sum.process_peak};
  }
  peaks.allocated.include(sum.allocated_peak);
  peaks.process.include(sum.process_peak);
}

void add_stage(const std::vector<Run>& runs, Stage stage, DevicePrediction& device) {
  StagePeaks peaks;
  peaks.stage = stage;
  size_t found = 0;
  for (const Run& run : runs) {
    for (const auto& [index, sum] : sums_of(run, stage)) {
      if (device.device == absl::StrCat("cuda:", index)) include(peaks, sum, found++ == 0);
    }
  }
  if (found == 0) return;
  if (found < runs.size()) peaks.allocated.low = peaks.process.low = 0;
  device.stages.push_back(peaks);
}

}  // namespace

void note_seen_part(const std::vector<Run>& runs, const std::vector<Run>& with_peaks,
                    Prediction& prediction) {
  prediction.whole_run = std::any_of(runs.begin(), runs.end(), &is_whole);
  prediction.saw_evaluation = std::any_of(
      runs.begin(), runs.end(), [](const Run& run) { return has_stage(run, Stage::kEvaluation); });
  for (const Run& run : runs) {
    for (const Measurement& process : run.processes)
      prediction.calls = std::max(prediction.calls, process.calls);
  }
  if (prediction.whole_run && prediction.kind_of_steps != Steps::kDiffer)
    prediction.ended = Ended::kAtExit;
  for (DevicePrediction& device : prediction.devices) {
    for (const Stage stage : {Stage::kTraining, Stage::kEvaluation, Stage::kNeither})
      add_stage(with_peaks, stage, device);
  }
}

}  // namespace memledger::prediction
