#include "prediction/measurement.h"

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

constexpr char kSchema[] = "memledger.measurement/1";

Json json(const MeasuredDevice& device) {
  return {{"index", device.index},
          {"gpu", device.gpu},
          {"capacity_bytes", device.capacity_bytes},
          {"allocated_peak_bytes", device.allocated_peak},
          {"reserved_peak_bytes", device.reserved_peak},
          {"process_peak_bytes", device.process_peak},
          {"context_bytes", device.context_bytes},
          {"fragmented_bytes", device.fragmented_bytes},
          {"retries", device.retries},
          {"failures", device.failures},
          {"allocations", device.allocations},
          {"requested_bytes_in_all", device.requested_in_all}};
}

MeasuredDevice device_of(const Json& json) {
  MeasuredDevice device;
  device.index = json.at("index");
  device.gpu = json.at("gpu");
  device.capacity_bytes = json.at("capacity_bytes");
  device.allocated_peak = json.at("allocated_peak_bytes");
  device.reserved_peak = json.at("reserved_peak_bytes");
  device.process_peak = json.at("process_peak_bytes");
  device.context_bytes = json.at("context_bytes");
  device.fragmented_bytes = json.at("fragmented_bytes");
  device.retries = json.at("retries");
  device.failures = json.at("failures");
  device.allocations = json.at("allocations");
  device.requested_in_all = json.at("requested_bytes_in_all");
  return device;
}

Json json(const MeasuredStage& stage) {
  return {{"stage", to_string(stage.stage)},
          {"device", stage.device},
          {"allocated_peak_bytes", stage.allocated_peak},
          {"process_peak_bytes", stage.process_peak}};
}

MeasuredStage stage_of(const Json& json) {
  MeasuredStage result;
  for (const Stage stage : {Stage::kTraining, Stage::kEvaluation}) {
    if (json.at("stage") == to_string(stage)) result.stage = stage;
  }
  result.device = json.at("device");
  result.allocated_peak = json.at("allocated_peak_bytes");
  result.process_peak = json.at("process_peak_bytes");
  return result;
}

Json json(const MeasuredRow& row) {
  return {{"name", row.name},   {"bytes", row.bytes},
          {"op", row.op},       {"phase", row.phase},
          {"where", row.place}, {"shape", row.shape},
          {"layer", row.layer}, {"anonymous", row.is_anonymous},
          {"count", row.count}, {"each_bytes", row.each_bytes}};
}

MeasuredRow row_of(const Json& json) {
  MeasuredRow row;
  row.name = json.at("name");
  row.bytes = json.at("bytes");
  row.op = json.at("op");
  row.phase = json.at("phase");
  row.place = json.at("where");
  row.shape = json.at("shape");
  row.layer = json.at("layer");
  row.is_anonymous = json.at("anonymous");
  row.count = json.at("count");
  row.each_bytes = json.at("each_bytes");
  return row;
}

Json json(const std::map<std::string, int64_t>& bytes_by_name) {
  Json result = Json::object();
  for (const auto& [name, bytes] : bytes_by_name) result[name] = bytes;
  return result;
}

std::map<std::string, int64_t> map_of(const Json& json) {
  std::map<std::string, int64_t> result;
  for (const auto& [name, bytes] : json.items()) result[name] = bytes;
  return result;
}

Json json(const MeasuredPart& part) {
  return {{"part", part.part}, {"bytes", part.bytes}, {"inferred_bytes", part.inferred_bytes}};
}

MeasuredPart part_of(const Json& json) {
  return {json.at("part"), json.at("bytes"), json.at("inferred_bytes")};
}

Json json(const std::optional<MeasuredPeak>& peak) {
  if (!peak) return nullptr;
  Json parts = Json::array();
  for (const MeasuredPart& part : peak->parts) parts.push_back(json(part));
  Json rows = Json::array();
  for (const MeasuredRow& row : peak->largest) rows.push_back(json(row));
  return {{"device", peak->device},
          {"op", peak->op},
          {"phase", peak->phase},
          {"layer", peak->layer},
          {"where", peak->place},
          {"parts", parts},
          {"largest", rows},
          {"by_role", json(peak->by_role)},
          {"by_layer", json(peak->by_layer)},
          {"without_layer_bytes", peak->without_layer_bytes},
          {"activations_by_layer", json(peak->activations_by_layer)}};
}

std::optional<MeasuredPeak> peak_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  MeasuredPeak peak;
  peak.device = json.at("device");
  peak.op = json.at("op");
  peak.phase = json.at("phase");
  peak.layer = json.at("layer");
  peak.place = json.at("where");
  for (const Json& part : json.at("parts")) peak.parts.push_back(part_of(part));
  peak.by_role = map_of(json.at("by_role"));
  peak.by_layer = map_of(json.at("by_layer"));
  peak.without_layer_bytes = json.at("without_layer_bytes");
  peak.activations_by_layer = map_of(json.at("activations_by_layer"));
  for (const Json& row : json.at("largest")) peak.largest.push_back(row_of(row));
  return peak;
}

Json json(const std::optional<MeasuredFailure>& failure) {
  if (!failure) return nullptr;
  return {{"device", failure->device},
          {"requested_bytes", failure->requested_bytes},
          {"op", failure->op},
          {"phase", failure->phase},
          {"layer", failure->layer},
          {"where", failure->place},
          {"allocated_bytes", failure->allocated_bytes},
          {"reserved_bytes", failure->reserved_bytes},
          {"free_bytes", failure->free_bytes}};
}

std::optional<MeasuredFailure> failure_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  MeasuredFailure failure;
  failure.device = json.at("device");
  failure.requested_bytes = json.at("requested_bytes");
  failure.op = json.at("op");
  failure.phase = json.at("phase");
  failure.layer = json.at("layer");
  failure.place = json.at("where");
  failure.allocated_bytes = json.at("allocated_bytes");
  failure.reserved_bytes = json.at("reserved_bytes");
  failure.free_bytes = json.at("free_bytes");
  return failure;
}

Json json(const MeasuredRead& read) {
  return {{"op", read.op},
          {"where", read.place},
          {"count", read.count},
          {"bytes", read.bytes},
          {"kind", to_string(read.kind)},
          {"has_upper_bound", read.has_upper_bound},
          {"site", read.site},
          {"assumed", read.assumed},
          {"before_cap", read.before_cap},
          {"loop", read.loop},
          {"last_read", read.last_read}};
}

MeasuredRead::Kind kind_of(const std::string& text) {
  using Kind = MeasuredRead::Kind;
  for (const Kind kind : {Kind::kNumber, Kind::kReceived, Kind::kFraction, Kind::kBranch,
                          Kind::kSaid, Kind::kModel}) {
    if (text == to_string(kind)) return kind;
  }
  return Kind::kSize;
}

MeasuredRead read_of(const Json& json) {
  MeasuredRead read;
  read.op = json.at("op");
  read.place = json.at("where");
  read.count = json.at("count");
  read.bytes = json.at("bytes");
  read.kind = kind_of(json.at("kind"));
  read.has_upper_bound = json.at("has_upper_bound");
  read.site = json.at("site");
  read.assumed = json.at("assumed");
  read.before_cap = json.at("before_cap");
  read.loop = json.at("loop");
  read.last_read = json.at("last_read");
  return read;
}

Ended ended_of(const std::string& text) {
  for (const Ended ended : {Ended::kAtExit, Ended::kAfterStep, Ended::kAfterCall}) {
    if (text == to_string(ended)) return ended;
  }
  return Ended::kNot;
}

Steps kind_of_steps_of(const std::string& text) {
  for (const Steps steps : {Steps::kAlike, Steps::kRepeat, Steps::kDiffer}) {
    if (text == to_string(steps)) return steps;
  }
  return Steps::kNone;
}

Measurement measurement_of(const Json& json) {
  Measurement measurement;
  measurement.process = json.at("process");
  measurement.rank = json.at("rank");
  measurement.ended = ended_of(json.at("ended"));
  measurement.cause = json.at("cause");
  measurement.steps = json.at("steps");
  measurement.calls = json.at("calls");
  measurement.kind_of_steps = kind_of_steps_of(json.at("kind_of_steps"));
  measurement.kind_when_settled = kind_of_steps_of(json.at("kind_when_settled"));
  measurement.has_grown_since = json.at("has_grown_since");
  measurement.unstepped_parameters = json.at("unstepped_parameters");
  for (const Json& device : json.at("devices")) measurement.devices.push_back(device_of(device));
  for (const Json& stage : json.at("stages")) measurement.stages.push_back(stage_of(stage));
  measurement.peak = peak_of(json.at("peak"));
  measurement.failure = failure_of(json.at("failure"));
  for (const Json& read : json.at("unknown_reads"))
    measurement.unknown_reads.push_back(read_of(read));
  measurement.allocator_settings = json.at("allocator_settings");
  measurement.missing_cudnn = json.at("missing_cudnn");
  measurement.libraries = json.at("libraries");
  measurement.is_by_driver = json.at("is_by_driver");
  return measurement;
}

}  // namespace

int64_t MeasuredPeak::total_bytes() const {
  int64_t bytes = 0;
  for (const MeasuredPart& part : parts) bytes += part.bytes;
  return bytes;
}

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::kTraining:
      return "training";
    case Stage::kEvaluation:
      return "evaluation";
    case Stage::kNeither:
      break;
  }
  return "neither";
}

std::string_view to_string(Ended ended) {
  switch (ended) {
    case Ended::kAtExit:
      return "exit";
    case Ended::kAfterStep:
      return "step";
    case Ended::kAfterCall:
      return "call";
    case Ended::kNot:
      break;
  }
  return "not";
}

std::string_view to_string(Steps steps) {
  switch (steps) {
    case Steps::kAlike:
      return "alike";
    case Steps::kRepeat:
      return "repeat";
    case Steps::kDiffer:
      return "differ";
    case Steps::kNone:
      break;
  }
  return "none";
}

std::string_view to_string(MeasuredRead::Kind kind) {
  switch (kind) {
    case MeasuredRead::Kind::kSize:
      break;
    case MeasuredRead::Kind::kNumber:
      return "number";
    case MeasuredRead::Kind::kReceived:
      return "received";
    case MeasuredRead::Kind::kFraction:
      return "fraction";
    case MeasuredRead::Kind::kBranch:
      return "branch";
    case MeasuredRead::Kind::kModel:
      return "model";
    case MeasuredRead::Kind::kSaid:
      return "said";
  }
  return "size";
}

std::string_view to_string(MeasuredRead::Effect effect) {
  switch (effect) {
    case MeasuredRead::Effect::kNotTried:
      break;
    case MeasuredRead::Effect::kNone:
      return "none";
    case MeasuredRead::Effect::kSamePeak:
      return "same_peak";
    case MeasuredRead::Effect::kWithin:
      return "within";
    case MeasuredRead::Effect::kOpen:
      return "open";
  }
  return "not_tried";
}

bool is_sent(const MeasuredRead& read) {
  return read.kind == MeasuredRead::Kind::kBranch && absl::StartsWith(read.op, "c10d::");
}

std::string to_json(const Measurement& measurement) {
  Json devices = Json::array(), stages = Json::array(), reads = Json::array();
  for (const MeasuredDevice& device : measurement.devices) devices.push_back(json(device));
  for (const MeasuredStage& stage : measurement.stages) stages.push_back(json(stage));
  for (const MeasuredRead& read : measurement.unknown_reads) reads.push_back(json(read));
  return to_text({{"schema", kSchema},
                  {"process", measurement.process},
                  {"rank", measurement.rank},
                  {"ended", to_string(measurement.ended)},
                  {"cause", measurement.cause},
                  {"steps", measurement.steps},
                  {"calls", measurement.calls},
                  {"kind_of_steps", to_string(measurement.kind_of_steps)},
                  {"kind_when_settled", to_string(measurement.kind_when_settled)},
                  {"has_grown_since", measurement.has_grown_since},
                  {"unstepped_parameters", measurement.unstepped_parameters},
                  {"devices", devices},
                  {"stages", stages},
                  {"peak", json(measurement.peak)},
                  {"failure", json(measurement.failure)},
                  {"unknown_reads", reads},
                  {"allocator_settings", measurement.allocator_settings},
                  {"missing_cudnn", measurement.missing_cudnn},
                  {"libraries", measurement.libraries},
                  {"is_by_driver", measurement.is_by_driver}}) +
         "\n";
}

absl::StatusOr<Measurement> parse_measurement(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("schema") != kSchema)
      return absl::InvalidArgumentError(absl::StrCat("its schema is not ", kSchema));
    return measurement_of(json);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace memledger::prediction
