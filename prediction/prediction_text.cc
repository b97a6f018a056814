#include "prediction/prediction_text.h"

#include <fmt/format.h>

#include <cmath>

#include "prediction/prediction.h"
#include "text/bytes.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger::prediction {
namespace {

constexpr size_t kReadsShown = 5;

std::string words(int64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

Json json(const Interval& interval) { return {{"low", interval.low}, {"high", interval.high}}; }

Json json(const DevicePrediction& device) {
  return {{"device", device.device},
          {"gpu", device.gpu},
          {"capacity_bytes", device.capacity_bytes},
          {"allocated_peak", json(device.allocated_peak)},
          {"reserved_peak", json(device.reserved_peak)},
          {"process_peak", json(device.process_peak)},
          {"headroom_bytes", device.headroom_bytes()},
          {"verdict", to_string(device.verdict)}};
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json(const MeasuredRow& row) {
  return {{"name", row.name},
          {"bytes", row.bytes},
          {"operator", text_or_null(row.op)},
          {"phase", row.phase},
          {"place", text_or_null(row.place)},
          {"shape", text_or_null(row.shape)}};
}

Json json(const std::optional<MeasuredPeak>& peak) {
  if (!peak) return nullptr;
  Json roles = Json::object(), rows = Json::array();
  for (const auto& [role, bytes] : peak->by_role) roles[role] = bytes;
  for (const MeasuredRow& row : peak->largest) rows.push_back(json(row));
  return {{"operator", text_or_null(peak->op)},
          {"layer", text_or_null(peak->layer)},
          {"phase", peak->phase},
          {"place", text_or_null(peak->place)},
          {"by_role", roles},
          {"largest", rows}};
}

Json json(const std::optional<MeasuredFailure>& failure) {
  if (!failure) return nullptr;
  return {{"requested_bytes", failure->requested_bytes},
          {"operator", text_or_null(failure->op)},
          {"layer", text_or_null(failure->layer)},
          {"phase", failure->phase},
          {"place", text_or_null(failure->place)}};
}

// Sums over the devices, so that they add up to the process's peak.
Json terms_of(const Prediction& prediction) {
  Interval context, reserved, rest;
  for (const DevicePrediction& device : prediction.devices) {
    context.low += device.context.low;
    context.high += device.context.high;
    reserved.low += device.reserved_peak.low;
    reserved.high += device.reserved_peak.high;
    rest.low += device.process_peak.low - device.context.low - device.reserved_peak.low;
    rest.high += device.process_peak.high - device.context.high - device.reserved_peak.high;
  }
  const auto term = [](const char* name, const Interval& interval) {
    return Json{{"name", name}, {"low", interval.low}, {"high", interval.high}};
  };
  return Json::array(
      {term("reserved", reserved), term("context", context), term("libraries and others", rest)});
}

// `aten::convolution, backward, layer4.2.conv3, train.cc:42 main`, as far as it is known.
std::string moment(const std::string& op, const std::string& phase, const std::string& layer,
                   const std::string& place) {
  std::string text = op.empty() ? "code outside operators" : printable(op);
  if (!phase.empty() && phase != "other") text += ", " + phase;
  if (!layer.empty()) text += ", " + printable(layer);
  if (!place.empty()) text += ", " + printable(place);
  return text;
}

std::string reads_in_short(const std::vector<MeasuredRead>& reads) {
  const MeasuredRead* most = nullptr;
  int64_t bytes = 0;
  for (const MeasuredRead& read : reads) {
    bytes += read.bytes;
    if (most == nullptr || read.bytes > most->bytes) most = &read;
  }
  if (most == nullptr) return "";
  const std::string where = most->place.empty() ? "" : " in " + printable(most->place);
  return bytes == 0 ? fmt::format("values that only the device has steer it ({}{})",
                                  printable(most->op), where)
                    : fmt::format("{} depend on values that only the device has ({}{})",
                                  words(bytes), printable(most->op), where);
}

const DevicePrediction* fullest(const Prediction& prediction) {
  const DevicePrediction* fullest = nullptr;
  for (const DevicePrediction& device : prediction.devices) {
    if (fullest == nullptr || device.headroom_bytes() < fullest->headroom_bytes())
      fullest = &device;
  }
  return fullest;
}

std::string shortage(const Prediction& prediction) {
  const DevicePrediction* const device = fullest(prediction);
  const int64_t missing = device == nullptr ? 0 : device->process_peak.low - device->capacity_bytes;
  std::string text = missing > 0 ? ": " + words(missing) + " short" : "";
  if (const auto& failure = prediction.failure) {
    text += text.empty() ? ": " : " ";
    text += "at " + moment(failure->op, failure->phase, failure->layer, failure->place);
    text += fmt::format(", which asks for {}", words(failure->requested_bytes));
  }
  return text;
}

std::string interval_line(const char* name, const Interval& interval) {
  return fmt::format("  {:<18}{:>14}{:>14}\n", name, words(interval.low), words(interval.high));
}

std::string device_lines(const DevicePrediction& device) {
  const int64_t headroom = device.headroom_bytes();
  std::string text =
      fmt::format("{} ({}, {}): {}, {}\n", device.device, printable(device.gpu),
                  words(device.capacity_bytes), to_string(device.verdict),
                  headroom < 0 ? words(-headroom) + " short" : words(headroom) + " to spare");
  text += fmt::format("  {:<18}{:>14}{:>14}\n", "", "low", "high");
  text += interval_line("allocated, peak", device.allocated_peak) +
          interval_line("reserved, peak", device.reserved_peak) +
          interval_line("process, peak", device.process_peak) +
          interval_line("of it context", device.context) +
          interval_line("fragments at end", device.fragmented);
  return text;
}

std::string peak_lines(const MeasuredPeak& peak) {
  std::string text =
      fmt::format("The peak is at {}\n", moment(peak.op, peak.phase, peak.layer, peak.place));
  std::string roles;
  for (const auto& [role, bytes] : peak.by_role) {
    if (bytes != 0) roles += fmt::format("{}{} {}", roles.empty() ? "" : ", ", role, words(bytes));
  }
  text += "  by role: " + roles + "\n";
  for (const MeasuredRow& row : peak.largest) {
    text += fmt::format("  {:>12}  {} {}  {}\n", words(row.bytes), printable(row.name),
                        printable(row.shape), moment(row.op, row.phase, "", row.place));
  }
  return text;
}

std::string read_lines(const std::vector<MeasuredRead>& reads) {
  if (reads.empty()) return "";
  std::string text = "Values that only the device has were read:\n";
  for (size_t i = 0; i < reads.size() && i < kReadsShown; ++i) {
    text += fmt::format("  {} {} times{}{}\n", printable(reads[i].op), reads[i].count,
                        reads[i].place.empty() ? "" : " at " + printable(reads[i].place),
                        reads[i].bytes == 0 ? "" : ", " + words(reads[i].bytes) + " depend on it");
  }
  if (reads.size() > kReadsShown)
    text += fmt::format("  and {} more\n", reads.size() - kReadsShown);
  return text;
}

std::string setting_lines(const Prediction& prediction) {
  std::string text;
  for (const SettingTried& tried : prediction.settings) {
    text += fmt::format("With PYTORCH_CUDA_ALLOC_CONF={}: {}, reserved peak {} to {}\n",
                        tried.setting, to_string(tried.verdict), words(tried.reserved_peak.low),
                        words(tried.reserved_peak.high));
  }
  return text;
}

std::string end_line(const Prediction& prediction) {
  if (prediction.ended != Ended::kAfterStep) return "";
  return fmt::format(
      "Ended after optimizer step {}, as the peak no longer moved; --until=exit runs all.\n",
      prediction.steps);
}

}  // namespace

std::string sentence_of(const Prediction& prediction) {
  switch (prediction.verdict) {
    case Verdict::kFits:
      return "fits";
    case Verdict::kDoesNotFit:
      return prediction.remedy.empty() ? "does not fit" + shortage(prediction)
                                       : "fits with " + prediction.remedy;
    case Verdict::kNotKnown: {
      const std::string reads = reads_in_short(prediction.unknown_reads);
      if (!prediction.reason.empty()) return "not known: " + prediction.reason;
      return reads.empty() ? "not known: it fits at the low end of the prediction and fails at the "
                             "high end"
                           : "not known: " + reads;
    }
    case Verdict::kFailed:
      break;
  }
  return "failed: " + prediction.reason;
}

std::string json_of(const Prediction& prediction) {
  Json devices = Json::array(), reads = Json::array(), settings = Json::array();
  for (const DevicePrediction& device : prediction.devices) devices.push_back(json(device));
  for (const MeasuredRead& read : prediction.unknown_reads) {
    reads.push_back({{"operator", read.op},
                     {"place", text_or_null(read.place)},
                     {"count", read.count},
                     {"bytes", read.bytes}});
  }
  for (const SettingTried& tried : prediction.settings) {
    settings.push_back({{"setting", tried.setting},
                        {"verdict", to_string(tried.verdict)},
                        {"reserved_peak", json(tried.reserved_peak)}});
  }
  Json result = {{"schema", "memledger.prediction/1"},
                 {"verdict", to_string(prediction.verdict)},
                 {"sentence", sentence_of(prediction)},
                 {"specification", prediction.specification}};
  if (!prediction.remedy.empty()) result["remedy"] = prediction.remedy;
  result["devices"] = std::move(devices);
  result["terms"] = terms_of(prediction);
  result["unknown_reads"] = std::move(reads);
  result["peak"] = json(prediction.peak);
  result["failure"] = json(prediction.failure);
  result["settings"] = std::move(settings);
  result["program"] = {{"status", prediction.program.status},
                       {"ended", to_string(prediction.ended)},
                       {"steps", prediction.steps}};
  return to_text(result);
}

std::string device_text(const DevicePrediction& device) { return device_lines(device); }

std::string text_of(const Prediction& prediction) {
  std::string text = prediction.specification + ": " + sentence_of(prediction) + "\n";
  if (prediction.verdict == Verdict::kFailed) return text;
  for (const DevicePrediction& device : prediction.devices) text += device_lines(device);
  if (prediction.peak) text += peak_lines(*prediction.peak);
  return text + read_lines(prediction.unknown_reads) + setting_lines(prediction) +
         end_line(prediction);
}

}  // namespace memledger::prediction
