#include "prediction/recorded_call.h"

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "prediction/measurement.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

Json json(const Writes& writes) {
  Json files = Json::array(), refusals = Json::array();
  for (const LayerFile& file : writes.files)
    files.push_back({{"path", file.path}, {"bytes", file.bytes}, {"is_removed", file.is_removed}});
  for (const Refusal& refusal : writes.refusals)
    refusals.push_back({{"what", refusal.what}, {"path", refusal.path}});
  return {{"held_by", to_string(writes.held_by)},
          {"files", files},
          {"written_count", writes.written_count},
          {"removed_count", writes.removed_count},
          {"bytes", writes.bytes},
          {"read_only", writes.read_only},
          {"refusals", refusals}};
}

Writes writes_of(const Json& json) {
  Writes writes;
  writes.held_by = held_by_of(json.at("held_by").get<std::string>());
  for (const Json& file : json.at("files"))
    writes.files.push_back({file.at("path"), file.at("bytes"), file.at("is_removed")});
  writes.written_count = json.at("written_count");
  writes.removed_count = json.at("removed_count");
  writes.bytes = json.at("bytes");
  writes.read_only = json.at("read_only").get<std::vector<std::string>>();
  for (const Json& refusal : json.at("refusals"))
    writes.refusals.push_back({refusal.at("what"), refusal.at("path")});
  return writes;
}

Json json(const Run& run) {
  Json processes = Json::array();
  for (const Measurement& process : run.processes)
    processes.push_back(Json::parse(to_json(process)));
  Json assumed = Json::array();
  for (const AssumedRead& read : run.assumed_reads)
    assumed.push_back({{"site", read.site}, {"value", read.value}});
  return {{"is_high", run.end == Run::End::kHigh},
          {"is_upwards", run.addresses == Run::Addresses::kUp},
          {"is_limited", run.is_limited},
          {"assumes_sizes", run.assumes_sizes},
          {"assumed_reads", assumed},
          {"varies_sizes", run.varies_sizes},
          {"held_back_bytes", run.held_back_bytes},
          {"goes_on", run.goes_on},
          {"was_enough", run.was_enough},
          {"why_unwatched", run.why_unwatched},
          {"why_by_driver", run.why_by_driver},
          {"assumes_ones", run.assumes_ones},
          {"as_far", run.as_far},
          {"status", run.program.status},
          {"timed_out", run.program.timed_out},
          {"timeout_s", run.program.timeout_s},
          {"read_input", run.program.read_input},
          {"last_lines", run.program.last_lines},
          {"took_ms", run.took_ms},
          {"steps", run.steps},
          {"processes", processes},
          {"writes", json(run.writes)}};
}

absl::StatusOr<Run> run_of(const Json& json) {
  Run run;
  run.end = json.at("is_high").get<bool>() ? Run::End::kHigh : Run::End::kLow;
  run.addresses = json.at("is_upwards").get<bool>() ? Run::Addresses::kUp : Run::Addresses::kDown;
  run.is_limited = json.at("is_limited");
  run.assumes_sizes = json.at("assumes_sizes");
  for (const Json& read : json.at("assumed_reads"))
    run.assumed_reads.push_back({read.at("site"), read.at("value")});
  run.varies_sizes = json.at("varies_sizes");
  run.held_back_bytes = json.at("held_back_bytes");
  run.goes_on = json.at("goes_on");
  run.was_enough = json.at("was_enough");
  run.why_unwatched = json.at("why_unwatched");
  run.why_by_driver = json.at("why_by_driver");
  run.assumes_ones = json.at("assumes_ones");
  run.as_far = json.at("as_far");
  run.program.status = json.at("status");
  run.program.timed_out = json.at("timed_out");
  run.program.timeout_s = json.at("timeout_s");
  run.program.read_input = json.at("read_input");
  run.program.last_lines = json.at("last_lines");
  run.took_ms = json.at("took_ms");
  run.steps = json.at("steps");
  run.writes = writes_of(json.at("writes"));
  for (const Json& process : json.at("processes")) {
    absl::StatusOr<Measurement> measurement = parse_measurement(process.dump());
    if (!measurement.ok()) return measurement.status();
    run.processes.push_back(*std::move(measurement));
  }
  return run;
}

}  // namespace

std::string to_json(const RecordedCall& call) {
  Json runs = Json::array();
  for (const Run& run : call.runs) runs.push_back(json(run));
  return memledger::to_text({{"key", call.key},
                             {"specification", call.specification},
                             {"has_settled", call.has_settled},
                             {"runs", std::move(runs)}}) +
         "\n";
}

absl::StatusOr<RecordedCall> parse_recorded_call(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    RecordedCall call;
    call.key = json.at("key");
    call.specification = json.at("specification");
    call.has_settled = json.at("has_settled");
    for (const Json& run : json.at("runs")) {
      absl::StatusOr<Run> parsed = run_of(run);
      if (!parsed.ok()) return parsed.status();
      call.runs.push_back(*std::move(parsed));
    }
    return call;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace memledger::prediction
