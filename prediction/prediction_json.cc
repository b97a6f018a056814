#include <algorithm>

#include "prediction/prediction.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

constexpr char kSchema[] = "memledger.prediction/1";

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json(const Interval& interval) { return {{"low", interval.low}, {"high", interval.high}}; }

Json json(const std::vector<Term>& terms) {
  Json rows = Json::array();
  for (const Term& term : terms)
    rows.push_back({{"name", term.name}, {"low", term.low}, {"high", term.high}});
  return rows;
}

Json json(const std::vector<StagePeaks>& stages) {
  Json rows = Json::array();
  for (const StagePeaks& stage : stages) {
    rows.push_back({{"stage", to_string(stage.stage)},
                    {"allocated_peak", json(stage.allocated)},
                    {"process_peak", json(stage.process)}});
  }
  return rows;
}

Json json(const std::map<std::string, int64_t>& bytes_by_name) {
  Json result = Json::object();
  for (const auto& [name, bytes] : bytes_by_name) result[name] = bytes;
  return result;
}

// Whether LibTorch's figures are in it: the driver sees none of them.
bool tells_of_tensors(const DevicePrediction& device) {
  return std::none_of(device.terms.begin(), device.terms.end(),
                      [](const Term& term) { return term.name == "allocations" && term.high > 0; });
}

Json json(const Prediction& prediction, const DevicePrediction& device) {
  const bool tells_tensors = tells_of_tensors(device);
  Json row = {{"device", device.device},
              {"gpu", device.gpu},
              {"specification", prediction.specification},
              {"capacity_bytes", device.capacity_bytes},
              {"allocated_peak", tells_tensors ? json(device.allocated_peak) : Json(nullptr)},
              {"reserved_peak", tells_tensors ? json(device.reserved_peak) : Json(nullptr)},
              {"process_peak", json(device.process_peak)},
              {"headroom_bytes", device.headroom_bytes()},
              {"verdict", to_string(device.verdict)},
              {"terms", json(device.terms)},
              {"stages", json(device.stages)}};
  if (!prediction.remedy.empty()) row["remedy"] = prediction.remedy;
  return row;
}

Json json(const MeasuredRow& row) {
  return {{"name", row.name},
          {"bytes", row.bytes},
          {"count", row.count},
          {"operator", text_or_null(row.op)},
          {"phase", row.phase},
          {"layer", text_or_null(row.layer)},
          {"place", text_or_null(row.place)},
          {"shape", text_or_null(row.shape)}};
}

Json json(const std::optional<MeasuredPeak>& peak) {
  if (!peak) return nullptr;
  Json parts = Json::array();
  for (const MeasuredPart& part : peak->parts) {
    parts.push_back(
        {{"part", part.part}, {"bytes", part.bytes}, {"inferred_bytes", part.inferred_bytes}});
  }
  Json rows = Json::array();
  for (const MeasuredRow& row : peak->largest) rows.push_back(json(row));
  return {{"operator", text_or_null(peak->op)},
          {"layer", text_or_null(peak->layer)},
          {"phase", peak->phase},
          {"place", text_or_null(peak->place)},
          {"parts", parts},
          {"by_role", json(peak->by_role)},
          {"by_layer", json(peak->by_layer)},
          {"without_layer_bytes", peak->without_layer_bytes},
          {"total_bytes", peak->total_bytes()},
          {"largest", rows}};
}

Json json(const std::optional<MeasuredFailure>& failure) {
  if (!failure) return nullptr;
  return {
      {"requested_bytes", failure->requested_bytes}, {"operator", text_or_null(failure->op)},
      {"layer", text_or_null(failure->layer)},       {"phase", failure->phase},
      {"place", text_or_null(failure->place)},       {"allocated_bytes", failure->allocated_bytes},
      {"reserved_bytes", failure->reserved_bytes},   {"free_bytes", failure->free_bytes}};
}

Json json(const std::vector<MeasuredRead>& reads) {
  Json rows = Json::array();
  for (const MeasuredRead& read : reads) {
    rows.push_back({{"operator", read.op},
                    {"place", text_or_null(read.place)},
                    {"count", read.count},
                    {"bytes", read.bytes},
                    {"kind", to_string(read.kind)},
                    {"has_upper_bound", read.has_upper_bound},
                    {"value", read.assumed},
                    {"values_tried", read.values_tried},
                    {"effect", to_string(read.effect)},
                    {"before_cap", read.before_cap > 0 ? Json(read.before_cap) : Json(nullptr)},
                    {"loop", text_or_null(read.loop)}});
  }
  return rows;
}

Json json(const std::vector<SettingTried>& settings) {
  Json rows = Json::array();
  for (const SettingTried& tried : settings) {
    rows.push_back({{"setting", tried.setting},
                    {"verdict", to_string(tried.verdict)},
                    {"reserved_peak", json(tried.reserved_peak)}});
  }
  return rows;
}

Json json(const std::vector<Refusal>& refusals) {
  Json rows = Json::array();
  for (const Refusal& refusal : refusals)
    rows.push_back({{"call", refusal.what}, {"path", refusal.path}});
  return rows;
}

Json paths_of(const Writes& writes, bool removed) {
  Json paths = Json::array();
  for (const LayerFile& file : writes.files) {
    if (file.is_removed == removed) paths.push_back(file.path);
  }
  return paths;
}

Json json(const std::vector<UnwatchedDevice>& devices) {
  Json rows = Json::array();
  for (const UnwatchedDevice& device : devices)
    rows.push_back({{"device", device.device},
                    {"gpu", device.gpu},
                    {"capacity_bytes", device.capacity_bytes},
                    {"process_peak", json(device.process_peak)},
                    {"context", json(device.context)},
                    {"processes", device.processes}});
  return rows;
}

// Sums over the devices of a machine.
std::vector<Term> terms_of(const Prediction& prediction) {
  std::vector<Term> sums;
  for (const DevicePrediction& device : prediction.devices) {
    for (size_t i = 0; i < device.terms.size(); ++i) {
      if (i == sums.size()) sums.push_back({device.terms[i].name, 0, 0});
      sums[i].low += device.terms[i].low;
      sums[i].high += device.terms[i].high;
    }
  }
  return sums;
}

// The first machine whose verdict is that of all.
const Prediction& deciding(const std::vector<Prediction>& predictions) {
  const Verdict verdict = verdict_of(predictions);
  return *std::find_if(predictions.begin(), predictions.end(),
                       [verdict](const Prediction& one) { return one.verdict == verdict; });
}

// How much of the program the figures are of.
std::string_view until(const Prediction& prediction) {
  return prediction.ended == Ended::kAfterStep ? to_string(prediction.kind_of_steps)
                                               : to_string(prediction.ended);
}

}  // namespace

std::string to_json(const std::vector<Prediction>& predictions) {
  const Prediction& decides = deciding(predictions);
  Json devices = Json::array();
  for (const Prediction& prediction : predictions) {
    for (const DevicePrediction& device : prediction.devices)
      devices.push_back(json(prediction, device));
  }
  Json result = {{"schema", kSchema},
                 {"verdict", to_string(decides.verdict)},
                 {"sentence", decides.sentence()},
                 {"specification", decides.specification}};
  if (!decides.remedy.empty()) result["remedy"] = decides.remedy;
  const bool is_cut = decides.ended == Ended::kAfterStep;
  result["whole_run"] = decides.ended == Ended::kAtExit;
  result["through_step"] = is_cut ? Json(decides.steps) : Json(nullptr);
  result["evaluation_seen"] =
      decides.why_by_driver.empty() ? Json(decides.saw_evaluation) : Json(nullptr);
  result["devices"] = std::move(devices);
  result["unwatched_devices"] = json(decides.unwatched_devices);
  result["unwatched_because"] = text_or_null(decides.why_by_driver);
  result["terms"] = json(terms_of(decides));
  result["unknown_reads"] = json(decides.unknown_reads);
  result["peak"] = json(decides.peak);
  result["failure"] = json(decides.failure);
  result["settings"] = json(decides.settings);
  result["missing_library"] = text_or_null(decides.missing_cudnn);
  result["real_libraries"] = text_or_null(decides.libraries);
  result["writes_held_by"] = to_string(decides.writes.held_by);
  result["written_files"] = paths_of(decides.writes, /*removed=*/false);
  result["removed_files"] = paths_of(decides.writes, /*removed=*/true);
  result["written_bytes"] = decides.writes.bytes;
  result["read_only_folders"] = decides.writes.read_only;
  result["refused_calls"] = json(decides.writes.refusals);
  result["program"] = {{"status", decides.program.status},
                       {"ended", to_string(decides.ended)},
                       {"until", until(decides)},
                       {"unstepped_parameters", decides.unstepped_parameters},
                       {"steps", decides.steps}};
  return memledger::to_text(result);
}

}  // namespace memledger::prediction
