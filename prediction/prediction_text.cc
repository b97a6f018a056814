#include "prediction/prediction_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "prediction/assumed_reads.h"
#include "prediction/prediction.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger::prediction {
namespace {

constexpr size_t kReadsShown = 5;
constexpr size_t kLayersShown = 4;
constexpr size_t kDevicesInDetail = 2;
constexpr size_t kLongestCell = 40;
constexpr size_t kLongestPlace = 100;

std::string words(int64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

// `11.9 to 12.1 GiB`, as short as it can be.
std::string range(const Interval& interval) {
  const std::string low = words(interval.low), high = words(interval.high);
  if (low == high) return low;
  const size_t unit = high.find(' ');
  const bool same_unit = unit != std::string::npos && low.size() > high.size() - unit &&
                         low.compare(low.find(' '), std::string::npos, high, unit) == 0;
  return (same_unit ? low.substr(0, low.find(' ')) : low) + " to " + high;
}

std::string phase_text(const std::string& phase) { return phase == "other" ? "" : phase; }

// A layer of a Sequential has a number for a name.
std::string layer_name(const std::string& layer) {
  const bool is_number = layer.find_first_not_of("0123456789.") == std::string::npos;
  return (is_number ? "layer " : "") + table_name(layer, kLongestCell);
}

// `layer4.2.conv3, backward`, as far as it is known.
std::string where_in_model(const std::string& op, const std::string& layer,
                           const std::string& phase) {
  std::string text = !layer.empty() ? layer_name(layer)
                     : !op.empty()  ? printable(op)
                                    : "code outside operators";
  if (!phase_text(phase).empty()) text += ", " + phase;
  return text;
}

// The bytes that reads steered, and the read that steered most.
struct ReadSum {
  const MeasuredRead* most = nullptr;
  int64_t bytes = 0;
};

template <typename Condition>
ReadSum sum_of(const std::vector<MeasuredRead>& reads, Condition condition) {
  ReadSum sum;
  for (const MeasuredRead& read : reads) {
    if (!condition(read)) continue;
    sum.bytes += read.bytes;
    if (sum.most == nullptr || read.bytes > sum.most->bytes) sum.most = &read;
  }
  return sum;
}

bool is_size(const MeasuredRead& read) { return read.kind == MeasuredRead::Kind::kSize; }
bool is_open(const MeasuredRead& read) { return !read.has_upper_bound; }

// `aten::nonzero in moe.cc:88`
std::string origin(const MeasuredRead& read) {
  return printable(read.op) + (read.place.empty() ? "" : " in " + short_place(read.place));
}

// `how often a loop runs (boxes.py:115) depends on a size that only the device has (aten::_unique2
// in boxes.py:114, capped at 128 of 180008); …`
std::string loop_text(const MeasuredRead& read) {
  std::string text = fmt::format(
      "how often a loop runs ({}) depends on a size that only the device has ({}, capped at {:.0f} "
      "of {})",
      short_place(read.loop), origin(read), read.assumed, read.before_cap);
  if (const std::string line = line_of(read); !line.empty())
    text += fmt::format("; --assume={}=VALUE says what it is", line);
  return text;
}

const MeasuredRead* capped_read(const std::vector<MeasuredRead>& reads) {
  const auto read = std::find_if(reads.begin(), reads.end(),
                                 [](const MeasuredRead& one) { return one.before_cap > 0; });
  return read == reads.end() ? nullptr : &*read;
}

std::string sum_text(const ReadSum& sum) {
  if (sum.most->kind == MeasuredRead::Kind::kModel)
    return fmt::format("nobody says at most how much memory {} takes", printable(sum.most->op));
  return sum.bytes == 0 ? fmt::format("a size depends on values that only the device has ({})",
                                      origin(*sum.most))
                        : fmt::format("{} depend on values that only the device has ({})",
                                      words(sum.bytes), origin(*sum.most));
}

// `it depends on a number that only the device has (aten::item in train.py:12 main); …`
std::string open_value_text(const MeasuredRead& read) {
  const char* const what = read.kind == MeasuredRead::Kind::kBranch     ? "condition"
                           : read.kind == MeasuredRead::Kind::kFraction ? "fraction"
                                                                        : "number";
  std::string text =
      fmt::format("it depends on a {} that only the device has ({})", what, origin(read));
  if (const std::string line = line_of(read); !line.empty())
    text += fmt::format("; --assume={}=VALUE says what it is", line);
  return text;
}

const DevicePrediction* fullest(const Prediction& prediction) {
  const auto fullest = std::min_element(prediction.devices.begin(), prediction.devices.end(),
                                        [](const DevicePrediction& a, const DevicePrediction& b) {
                                          return a.headroom_bytes() < b.headroom_bytes();
                                        });
  return fullest == prediction.devices.end() ? nullptr : &*fullest;
}

std::string shortage(const Prediction& prediction) {
  const DevicePrediction* const device = fullest(prediction);
  const int64_t missing = device == nullptr ? 0 : device->process_peak.low - device->capacity_bytes;
  std::string text = missing > 0 ? words(missing) + " short" : "";
  const auto& failure = prediction.failure;
  if (failure && !(failure->op.empty() && !prediction.why_by_driver.empty())) {
    text += text.empty() ? "at " : " at ";
    text += where_in_model(failure->op, failure->layer, failure->phase);
  }
  return text.empty() ? "" : ": " + text;
}

// Sizes that go up and down leave pieces in LibTorch's cache.
std::string little_for_varied_sizes(const Prediction& prediction, const DevicePrediction& device) {
  const ReadSum sizes = sum_of(prediction.unknown_reads, &is_size);
  const int64_t headroom = device.headroom_bytes();
  return fmt::format(
      "{} is to spare, and sizes that differ each time cut the cache into more pieces{}",
      headroom > 0 ? "only " + words(headroom) : "nothing",
      sizes.most == nullptr ? "" : " (" + origin(*sizes.most) + ")");
}

std::string little_to_spare(const Prediction& prediction, const DevicePrediction& device) {
  const int64_t headroom = device.headroom_bytes();
  const bool may_differ_later =
      prediction.ended == Ended::kAfterStep && prediction.kind_of_steps == Steps::kAlike;
  const char* const why =
      prediction.has_plans_of_cudnn()
          ? "a real device may take 4 % more, as it chooses other plans for convolutions"
      : may_differ_later
          ? "a step of another kind, such as an epoch's smaller last batch, may take "
            "more; --until=exit runs all"
          : "a real device may take up to 1 % or 24 MiB more";
  return fmt::format("{} is to spare, and {}", headroom > 0 ? "only " + words(headroom) : "nothing",
                     why);
}

// Why a program that fits at one end fails at the other, or may fail later.
std::string uncertainty(const Prediction& prediction) {
  if (const MeasuredRead* const capped = capped_read(prediction.unknown_reads))
    return loop_text(*capped);
  const auto is_cause = [&](const MeasuredRead& read) { return may_decide(read, prediction); };
  // One that the user may say, and that no operator takes for a size.
  const auto is_value = [&](const MeasuredRead& read) {
    return is_cause(read) && !read.site.empty();
  };
  const ReadSum open = sum_of(prediction.unknown_reads, is_cause);
  const ReadSum values = sum_of(prediction.unknown_reads, is_value);
  if (values.most != nullptr && open.bytes == 0) return open_value_text(*values.most);
  if (open.most != nullptr) return sum_text(open);
  const DevicePrediction* const device = fullest(prediction);
  if (device == nullptr) return "nothing was measured";
  if (prediction.lacks_varied_margin) return little_for_varied_sizes(prediction, *device);
  if (prediction.lacks_margin) return little_to_spare(prediction, *device);
  const ReadSum sizes = sum_of(prediction.unknown_reads, &is_size);
  const int64_t width = device->process_peak.high - device->process_peak.low;
  if (sizes.bytes > 0 && sizes.bytes >= width / 2) return sum_text(sizes);
  return fmt::format("it takes {}, and the device has {}", range(device->process_peak),
                     words(device->capacity_bytes));
}

// ` through step 289`: how much of the program was seen. Empty of a whole one.
std::string extent(const Prediction& prediction) {
  if (prediction.ended == Ended::kAfterStep)
    return fmt::format(" through step {}", prediction.steps);
  if (prediction.ended == Ended::kAfterCall)
    return fmt::format(" through run {} of the step", prediction.calls);
  return "";
}

std::string without_evaluation(const Prediction& prediction) {
  const bool has_one = prediction.ended == Ended::kAtExit || prediction.saw_evaluation;
  return has_one || extent(prediction).empty() ? "" : "; no evaluation was seen";
}

std::string to_spare(const DevicePrediction& device) {
  const int64_t headroom = device.headroom_bytes();
  if (headroom >= 0 && device.verdict == Verdict::kNotKnown)
    return words(headroom) + " left in these runs";
  if (headroom >= 0 && device.verdict == Verdict::kDoesNotFit) return "";
  if (headroom >= 0) return words(headroom) + " to spare";
  // Allocations that fail at first succeed once the cache is empty.
  if (device.verdict == Verdict::kFits) return "as LibTorch empties its cache";
  const Interval missing{device.process_peak.low - device.capacity_bytes, -headroom};
  return missing.low > 0 ? range(missing) + " short" : "up to " + words(missing.high) + " short";
}

std::string term_line(const char* name, int64_t low, int64_t high, const char* meaning) {
  std::string line =
      fmt::format("  {:<20}{:>12}{:>12}   {}", name, words(low), words(high), meaning);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

const char* meaning_of(const std::string& term) {
  if (term == "tensors") return "allocated at the peak";
  if (term == "cached by LibTorch") return "reserved, and not allocated then";
  if (term == "allocations") return "of processes that are not watched, as the driver saw them";
  return "";
}

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::kTraining:
      return "in training";
    case Stage::kEvaluation:
      return "in evaluation";
    case Stage::kNeither:
      break;
  }
  return "in neither";
}

// What the process takes in each stage of the program.
std::string stage_lines(const DevicePrediction& device) {
  if (device.stages.size() < 2) return "";
  std::string text = "\n";
  for (const StagePeaks& stage : device.stages) {
    text += fmt::format("  {:<20}{:>12}{:>12}   {} of tensors\n", name_of(stage.stage),
                        stage.process.low == 0 ? "?" : words(stage.process.low),
                        words(stage.process.high), words(stage.allocated.high));
  }
  return text;
}

std::string device_lines(const DevicePrediction& device) {
  std::string room = to_spare(device);
  if (!room.empty()) room = ", " + room;
  std::string text = fmt::format("\n{} ({}, {}): {}{}\n", device.device, printable(device.gpu),
                                 words(device.capacity_bytes), to_string(device.verdict), room);
  text += fmt::format("  {:<20}{:>12}{:>12}\n", "", "lowest run", "highest run");
  for (const Term& term : device.terms) {
    if (term.low != 0 || term.high != 0)
      text += term_line(term.name.c_str(), term.low, term.high, meaning_of(term.name));
  }
  return text + term_line("together", device.process_peak.low, device.process_peak.high, "") +
         stage_lines(device);
}

std::string short_device_line(const DevicePrediction& device) {
  return fmt::format("  {} ({}, {}): {}, takes {}\n", device.device, printable(device.gpu),
                     words(device.capacity_bytes), to_string(device.verdict),
                     range(device.process_peak));
}

// `cuda:0 (NVIDIA A100, 39.4 GiB): took 1.8 GiB in these runs, 406.0 MiB of it the CUDA context`
std::string unwatched_lines(const Prediction& prediction) {
  std::string text;
  for (const UnwatchedDevice& device : prediction.unwatched_devices) {
    text += fmt::format(
        "{}{} ({}, {}): took {} in these runs{}, {} of it the CUDA context\n",
        text.empty() ? "\n" : "", device.device, printable(device.gpu),
        words(device.capacity_bytes), range(device.process_peak),
        device.processes > 1 ? fmt::format(" (the sum of {} processes)", device.processes) : "",
        range(device.context));
  }
  if (!text.empty())
    text += "  by processes that are not watched; with other values it may be more or less\n";
  return text;
}

// Many devices of a machine would fill the screen; the fullest says most.
std::string devices_text(const Prediction& prediction) {
  const std::vector<DevicePrediction>& devices = prediction.devices;
  std::string text;
  if (devices.size() > kDevicesInDetail) {
    text += "\n";
    for (const DevicePrediction& device : devices) text += short_device_line(device);
    return text + device_lines(*fullest(prediction)) + unwatched_lines(prediction);
  }
  for (const DevicePrediction& device : devices) text += device_lines(device);
  return text + unwatched_lines(prediction);
}

using NamedBytes = std::vector<std::pair<std::string, int64_t>>;

// The largest first; those without bytes are left out.
NamedBytes by_size(const std::map<std::string, int64_t>& bytes_by_name) {
  NamedBytes rows;
  for (const auto& [name, bytes] : bytes_by_name) {
    if (bytes > 0) rows.emplace_back(name, bytes);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return rows;
}

// `parameters 97.5 MiB, gradients 97.5 MiB`.
std::string joined(const NamedBytes& rows) {
  std::string text;
  for (const auto& [name, bytes] : rows) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", table_name(name, kLongestCell),
                        words(bytes));
  }
  return text;
}

// `activations 153.2 MiB, optimizer state 64.2 MiB`, the largest first.
std::string parts_text(const std::vector<MeasuredPart>& parts) {
  std::map<std::string, int64_t> bytes;
  for (const MeasuredPart& part : parts) bytes[part.part] += part.bytes;
  return joined(by_size(bytes));
}

// The largest layers, the rest of them, and what belongs to none: they add up to the parts.
std::string layers_text(const MeasuredPeak& peak) {
  NamedBytes rows = by_size(peak.by_layer);
  rows.resize(std::min(rows.size(), kLayersShown));
  int64_t rest = peak.total_bytes() - peak.without_layer_bytes;
  for (const auto& [layer, bytes] : rows) rest -= bytes;
  if (rest > 0) rows.emplace_back("other layers", rest);
  if (peak.without_layer_bytes > 0) rows.emplace_back("no layer", peak.without_layer_bytes);
  return joined(rows);
}

// Where something was made: `aten::conv2d, forward, in layer1.0.conv3, at train.cc:12 main`.
std::string origin_text(const std::string& op, const std::string& phase, const std::string& layer,
                        const std::string& place) {
  std::string text = op.empty() ? "code outside operators" : printable(op);
  if (!phase_text(phase).empty()) text += ", " + phase;
  if (!layer.empty()) text += ", in " + layer_name(layer);
  if (!place.empty()) text += ", at " + short_place(place);
  return text;
}

// `64 x 24.0 MiB` of a row that stands for several.
std::string count_text(const MeasuredRow& row) {
  if (row.count <= 1) return "";
  return row.each_bytes > 0 ? fmt::format("{} x {}", row.count, words(row.each_bytes))
                            : fmt::format("{} x", row.count);
}

std::string shape_text(const MeasuredRow& row) {
  if (!row.shape.empty()) return printable(row.shape);
  return row.is_anonymous ? "(workspace)" : "";
}

// The largest in columns. A name that is only a number says nothing here.
std::string rows_text(const std::vector<MeasuredRow>& rows) {
  using Cells = std::array<std::string, 3>;  // count, name, shape
  std::vector<Cells> cells;
  std::array<size_t, 3> widths = {};
  for (const MeasuredRow& row : rows) {
    cells.push_back({count_text(row), row.is_anonymous ? "" : table_name(row.name, kLongestCell),
                     shape_text(row)});
    for (size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], count_characters(cells.back()[i]));
  }
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    const MeasuredRow& row = rows[i];
    text += fmt::format("  {:>12}  ", words(row.bytes));
    for (size_t column = 0; column < widths.size(); ++column) {
      if (widths[column] > 0) text += fmt::format("{:<{}}  ", cells[i][column], widths[column]);
    }
    // The layer is in the name of a parameter.
    text += origin_text(row.op, row.phase, row.is_anonymous ? row.layer : "", row.place) + "\n";
  }
  return text;
}

std::string rest_text(const MeasuredPeak& peak) {
  int64_t rest = peak.total_bytes();
  for (const MeasuredRow& row : peak.largest) rest -= row.bytes;
  return rest > 0 ? fmt::format("  {:>12}  all others\n", words(rest)) : "";
}

std::string peak_lines(const Prediction& prediction) {
  if (!prediction.peak) return "";
  const MeasuredPeak& peak = *prediction.peak;
  std::string text =
      "\nThe peak is in " + origin_text(peak.op, peak.phase, peak.layer, peak.place) + "\n";
  if (!peak.parts.empty()) {
    text += fmt::format("  tensors requested {}\n", words(peak.total_bytes()));
    const bool are_known = peak.parts.size() > 1 || peak.parts.front().part != kUnknownPart;
    if (are_known) text += "  by part:  " + parts_text(peak.parts) + "\n";
  }
  if (!peak.by_layer.empty()) text += "  by layer: " + layers_text(peak) + "\n";
  return text + "  largest:\n" + rows_text(peak.largest) + rest_text(peak);
}

std::string failure_line(const Prediction& prediction) {
  if (!prediction.failure || prediction.verdict == Verdict::kFits) return "";
  const MeasuredFailure& failure = *prediction.failure;
  std::string text = fmt::format("\nThe first allocation that fails: {} asks for {}",
                                 failure.op.empty() ? "the program" : printable(failure.op),
                                 words(failure.requested_bytes));
  if (!failure.place.empty()) text += " at " + short_place(failure.place);
  if (failure.reserved_bytes > 0) {
    text += fmt::format(
        "; tensors have {}, {} is cached, {} is free", words(failure.allocated_bytes),
        words(failure.reserved_bytes - failure.allocated_bytes), words(failure.free_bytes));
  }
  return text + "\n";
}

// `a fraction, tried with 4 values: they make the same allocations`
std::string tried_text(const char* what, const MeasuredRead& read) {
  const auto with = fmt::format("{}, tried with {} value{}", what, read.values_tried,
                                read.values_tried == 1 ? "" : "s");
  switch (read.effect) {
    case MeasuredRead::Effect::kNone:
      return read.values_tried == 1 ? fmt::format("{}; with another the program fails", what)
                                    : with + ", which make the same allocations";
    case MeasuredRead::Effect::kSamePeak:
      return with + ", which have the same peak";
    case MeasuredRead::Effect::kWithin:
      return with + ", whose peaks are in the interval";
    case MeasuredRead::Effect::kOpen:
      return fmt::format("{}, on which the memory depends; no largest is known", what);
    case MeasuredRead::Effect::kNotTried:
      break;
  }
  return fmt::format("{}, which was not tried with other values", what);
}

std::string kind_text(const MeasuredRead& read) {
  switch (read.kind) {
    case MeasuredRead::Kind::kSize:
      break;
    case MeasuredRead::Kind::kNumber:
      return tried_text("a number", read);
    case MeasuredRead::Kind::kReceived:
      return "a number of other ranks, taken to be this one's";
    case MeasuredRead::Kind::kFraction:
      return tried_text("a fraction", read);
    case MeasuredRead::Kind::kBranch:
      return is_sent(read) ? "fractions for other ranks, sent as 0"
                           : tried_text("a condition", read);
    case MeasuredRead::Kind::kSaid:
      return "as --assume says";
    case MeasuredRead::Kind::kModel:
      return "memory without an upper bound";
  }
  if (read.before_cap > 0) {
    return fmt::format("a size that a loop follows ({}), capped at {:.0f} of {}",
                       short_place(read.loop), read.assumed, read.before_cap);
  }
  return is_open(read) ? "a size without an upper bound" : "a size";
}

std::string read_line(const MeasuredRead& read) {
  std::string text = fmt::format("  {}: {}, {}", origin(read), kind_text(read),
                                 read.count == 1 ? "once" : fmt::format("{} times", read.count));
  if (read.bytes > 0) text += fmt::format(", {} depend on it", words(read.bytes));
  return text + "\n";
}

std::string read_lines(const char* title, const std::vector<MeasuredRead>& reads) {
  if (reads.empty()) return "";
  std::string text = fmt::format("\n{}:\n", title);
  for (size_t i = 0; i < std::min(reads.size(), kReadsShown); ++i) text += read_line(reads[i]);
  if (reads.size() > kReadsShown)
    text += fmt::format("  and {} more (--json has all)\n", reads.size() - kReadsShown);
  return text;
}

std::string read_lines(const std::vector<MeasuredRead>& all) {
  std::vector<MeasuredRead> models, reads;
  for (const MeasuredRead& read : all)
    (read.kind == MeasuredRead::Kind::kModel ? models : reads).push_back(read);
  return read_lines("What libraries took beside tensors is not known", models) +
         read_lines("Values that only the device has were read", reads);
}

const char* why_ended(Steps steps) {
  switch (steps) {
    case Steps::kRepeat:
      return "as steps of several kinds came again and left the cache as it was";
    case Steps::kDiffer:
      return "as its steps went on to differ";
    case Steps::kAlike:
    case Steps::kNone:
      break;
  }
  return "as the peak no longer moved and all steps were alike: what a smaller last batch leaves "
         "of LibTorch's cache is not in it";
}

// Whether cuDNN's own answers would make a difference.
bool wants_cudnn(const Prediction& prediction) {
  const DevicePrediction* const device = fullest(prediction);
  return !prediction.missing_cudnn.empty() && device != nullptr &&
         device->process_peak.high - device->context.high >
             device->process_peak.low - device->context.low;
}

std::string end_line(const Prediction& prediction) {
  std::string text;
  if (!prediction.note.empty()) text += prediction.note + "\n";
  if (!prediction.why_by_driver.empty()) {
    text += fmt::format(
        "Not watched: {}. Of such processes the driver sees sizes, copies and kernels; names and "
        "layers are not known.\n",
        printable(prediction.why_by_driver));
  }
  if (wants_cudnn(prediction)) {
    text += fmt::format(
        "Workspaces of convolutions are between a model's sizes and an upper bound; with cuDNN's "
        "library, which needs\nno GPU, they are cuDNN's own: pip install '{}'\n",
        prediction.missing_cudnn);
  }
  if (prediction.varied_margin_bytes > 0) {
    text += fmt::format(
        "It fits with {} less, too, where sizes that only the device has differ each time.\n",
        words(prediction.varied_margin_bytes));
  }
  if (prediction.margin_bytes > 0 && prediction.verdict == Verdict::kFits)
    text += fmt::format("It fits with {} less, too.\n", words(prediction.margin_bytes));
  if (prediction.ended == Ended::kAfterStep) {
    text += fmt::format("Ended after optimizer step {}, {}; --until=exit runs all.\n",
                        prediction.steps, why_ended(prediction.kind_of_steps));
    if (prediction.unstepped_parameters > 0) {
      text += fmt::format(
          "{} parameter{} that the forward pass uses had not been trained by then: if a later step "
          "trains them, it takes more.\n",
          prediction.unstepped_parameters, prediction.unstepped_parameters == 1 ? "" : "s");
    }
  }
  return text.empty() ? "" : "\n" + text;
}

std::string details(const Prediction& prediction) {
  if (prediction.verdict == Verdict::kFailed) return "";
  const std::string libraries =
      prediction.libraries.empty()
          ? ""
          : fmt::format("\nNVIDIA's own libraries: {}\n", prediction.libraries);
  return libraries + devices_text(prediction) + peak_lines(prediction) + failure_line(prediction) +
         read_lines(prediction.unknown_reads) + end_line(prediction);
}

// `fits through step 289, 38.0 MiB to spare; no evaluation was seen`.
std::string sentence_with_room(const Prediction& prediction) {
  const DevicePrediction* const device = fullest(prediction);
  if (prediction.verdict != Verdict::kFits || device == nullptr) return sentence_of(prediction);
  return "fits" + extent(prediction) + ", " + to_spare(*device) + without_evaluation(prediction);
}

// Whether there is one thing to say of all: it is the program that failed.
bool fail_alike(const std::vector<Prediction>& predictions) {
  return std::all_of(predictions.begin(), predictions.end(), [&](const Prediction& one) {
    return one.verdict == Verdict::kFailed && one.devices.empty() &&
           one.reason == predictions.front().reason;
  });
}

std::string table_of(const std::vector<Prediction>& predictions) {
  size_t width = 0;
  for (const Prediction& one : predictions)
    width = std::max(width, printable(one.specification).size());
  std::string text = fmt::format("{:<{}}  {:>10}  {:>22}  {}\n", "GPU", width, "memory",
                                 "the program takes", "verdict");
  for (const Prediction& one : predictions) {
    const DevicePrediction* const device = fullest(one);
    text +=
        fmt::format("{:<{}}  {:>10}  {:>22}  {}\n", printable(one.specification), width,
                    device == nullptr ? "?" : words(device->capacity_bytes),
                    device == nullptr ? "?" : range(device->process_peak), sentence_with_room(one));
  }
  return text;
}

}  // namespace

std::string short_place(const std::string& place) {
  int depth = 0;
  size_t end = place.size();
  for (size_t i = place.size(); i-- > 0;) {
    if (place[i] == ')') ++depth;
    if (place[i] == '(' && --depth == 0) {
      end = i;
      break;
    }
  }
  // What is in brackets may be a part of the name: `(anonymous namespace)::train`, `operator()`.
  const size_t begin = place.find_first_not_of(' ');
  const bool is_name = end == 0 || end <= begin || place[end - 1] == ' ' || place[end - 1] == ':' ||
                       (end >= 8 && place.compare(end - 8, 8, "operator") == 0);
  return table_name(is_name ? place : place.substr(0, end), kLongestPlace);
}

std::string line_of(const MeasuredRead& read) {
  const std::string line = read.place.substr(0, read.place.find(' '));
  return absl::StrContains(line, ':') ? line.substr(line.rfind('/') + 1) : "";
}

std::string sentence_of(const Prediction& prediction) {
  switch (prediction.verdict) {
    case Verdict::kFits:
      return "fits" + extent(prediction) + without_evaluation(prediction);
    case Verdict::kDoesNotFit:
      return prediction.remedy.empty() ? "does not fit" + shortage(prediction)
                                       : "fits with " + prediction.remedy;
    case Verdict::kNotKnown: {
      const std::string reason =
          prediction.reason.empty() ? uncertainty(prediction) : prediction.reason;
      return prediction.remedy.empty()
                 ? "not known: " + reason
                 : fmt::format("fits with {}, not known without: {}", prediction.remedy, reason);
    }
    case Verdict::kFailed:
      break;
  }
  return "failed: " + prediction.reason;
}

std::string headline_of(const Prediction& prediction) {
  return printable(prediction.specification) + ": " + sentence_with_room(prediction);
}

std::string to_text(const std::vector<Prediction>& predictions) {
  if (predictions.size() == 1)
    return headline_of(predictions.front()) + "\n" + details(predictions.front());
  if (fail_alike(predictions)) {
    std::string text;
    for (const Prediction& one : predictions)
      text += (text.empty() ? "" : ", ") + printable(one.specification);
    return text + ": " + sentence_of(predictions.front()) + "\n";
  }
  const std::vector<Prediction> ordered = in_reading_order(predictions);
  const Prediction& first = ordered.front();
  const std::string text = details(first);
  return table_of(ordered) +
         (text.empty() ? "" : "\n" + printable(first.specification) + " in detail:\n" + text);
}

std::string settings_text(const Prediction& prediction) {
  if (prediction.settings.empty()) return "";
  std::string text = fmt::format("\nWith another PYTORCH_CUDA_ALLOC_CONF on {}:\n",
                                 printable(prediction.specification));
  Interval reserved_now;
  for (const DevicePrediction& device : prediction.devices) {
    reserved_now.low = std::max(reserved_now.low, device.reserved_peak.low);
    reserved_now.high = std::max(reserved_now.high, device.reserved_peak.high);
  }
  text += fmt::format("  {:<30}  {}, {} reserved\n", "as it is", to_string(prediction.verdict),
                      range(reserved_now));
  for (const SettingTried& tried : prediction.settings) {
    // What a device that is too small reserves says nothing.
    const std::string reserved =
        tried.verdict == Verdict::kFits ? ", " + range(tried.reserved_peak) + " reserved" : "";
    text += fmt::format("  {:<30}  {}{}\n", printable(tried.setting), to_string(tried.verdict),
                        reserved);
  }
  return text;
}

}  // namespace memledger::prediction
