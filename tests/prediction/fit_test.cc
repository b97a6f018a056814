// The search for the largest value that fits, driven by made-up programs whose answer is known.

#include "prediction/fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "prediction/fit_report.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int64_t kCapacity = int64_t{22} << 30;
constexpr double kContext = 359 * kMiB;

// No search needs more values than this, however misleading the peaks are.
constexpr size_t kMaxValues = 60;

using Bytes = std::function<double(double value)>;

// A program as a device sees it.
struct Program {
  Bytes allocated;          // the peak of its tensors at the high end
  double low_share = 0.97;  // of it, at the low end
  double cached_share = 0;  // what is reserved beyond it, without a limit
  double needed_share = 0;  // of what is reserved beyond it: cannot be freed
  int64_t fails_from = 0;   // 0: never
  int64_t times_out_from = 0;
};

// Peaks end at the capacity, unless they are wanted without a limit.
FitPoint run(const Program& program, int64_t value, bool wants_peaks = true) {
  FitPoint point;
  point.value = value;
  if (program.fails_from != 0 && value >= program.fails_from) {
    point.verdict = Verdict::kFailed;
    return point;
  }
  if (program.times_out_from != 0 && value >= program.times_out_from) return point;
  const double high = program.allocated(static_cast<double>(value));
  const double low = high * program.low_share;
  const auto bytes = [](double x) { return static_cast<int64_t>(x); };
  FitPeaks peaks;
  peaks.capacity = kCapacity;
  peaks.allocated = {bytes(low), bytes(high)};
  peaks.reserved = {bytes(low * (1 + program.cached_share)),
                    bytes(high * (1 + program.cached_share))};
  peaks.process = {peaks.reserved.low + bytes(kContext), peaks.reserved.high + bytes(kContext)};
  point.peaks = peaks;
  const auto fits = [&](double allocated) {
    return allocated * (1 + program.cached_share * program.needed_share) + kContext <= kCapacity;
  };
  point.verdict = fits(high)  ? Verdict::kFits
                  : fits(low) ? Verdict::kNotKnown
                              : Verdict::kDoesNotFit;
  if (!wants_peaks && peaks.process.high > kCapacity) {
    point.peaks->process.high = kCapacity;
    point.peaks->reserved.high = kCapacity - bytes(kContext);
    if (point.verdict != Verdict::kFits) point.peaks->allocated.high = bytes(high * 0.7);
  }
  return point;
}

struct Searched {
  FitOutcome outcome;
  std::vector<int64_t> values;
};

Searched search(const Program& program, FitBounds bounds = {}) {
  FitSearch search(bounds);
  Searched result;
  while (const std::optional<int64_t> value = search.next()) {
    REQUIRE(result.values.size() < kMaxValues);
    REQUIRE(*value >= bounds.from);
    REQUIRE(*value <= bounds.to.value_or(kLargestFitValue));
    REQUIRE(std::count(result.values.begin(), result.values.end(), *value) == 0);
    result.values.push_back(*value);
    search.note(run(program, *value, search.wants_peaks(*value)));
  }
  result.outcome = search.outcome();
  return result;
}

// The answer by trying all of them.
int64_t largest_by_hand(const Program& program) {
  int64_t value = 0;
  while (run(program, value + 1).verdict == Verdict::kFits) ++value;
  return value;
}

std::string text_of(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += std::to_string(value) + " ";
  return text;
}

// Returns the number of values that were tried.
size_t check_found(const Program& program, FitBounds bounds = {}) {
  const Searched searched = search(program, bounds);
  INFO("tried ", text_of(searched.values));
  const int64_t largest = largest_by_hand(program);
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == largest);
  CHECK(searched.outcome.next == largest + 1);
  const auto was_tried = [&](int64_t value) {
    return std::count(searched.values.begin(), searched.values.end(), value) == 1;
  };
  CHECK(was_tried(largest));
  CHECK(was_tried(largest + 1));
  return searched.values.size();
}

Bytes line(double constant_mib, double mib) {
  return [=](double value) { return (constant_mib + mib * value) * kMiB; };
}

TEST_CASE("a peak in proportion to the value is found in four values") {
  CHECK(check_found({line(0, 90)}) <= 4);
  CHECK(check_found({line(0, 3)}) <= 5);
  CHECK(check_found({line(0, 10000)}) <= 5);
}

TEST_CASE("a peak that is a constant and a multiple of the value is found in six values") {
  for (const double mib : {1.0, 7.0, 88.0, 700.0, 5000.0}) {
    CAPTURE(mib);
    CHECK(check_found({line(700, mib)}) <= 6);
    CHECK(check_found({line(9000, mib)}) <= 6);
    CHECK(check_found({line(700, mib)}, {1, 100000}) <= 6);
  }
}

TEST_CASE("plateaus of segments cost few values more") {
  for (const double segment : {2.0, 20.0, 200.0}) {
    for (const double mib : {11.0, 88.0, 700.0}) {
      if (segment > 10 * mib) continue;
      CAPTURE(segment);
      CAPTURE(mib);
      CHECK(check_found({[=](double value) {
              return std::ceil((500 + mib * value) / segment) * segment * kMiB;
            }}) <= 10);
    }
  }
}

TEST_CASE("what LibTorch has cached and can free again is told from what it needs") {
  for (const double cached : {0.02, 0.15, 0.5}) {
    for (const double needed : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
      CAPTURE(cached);
      CAPTURE(needed);
      Program program{line(700, 88)};
      program.cached_share = cached;
      program.needed_share = needed;
      CHECK(check_found(program) <= 12);
    }
  }
}

TEST_CASE("a quadratic peak is found") {
  for (const double square : {0.002, 0.05, 3.0}) {
    CAPTURE(square);
    const auto bytes = [=](double value) {
      return (400 + 2 * value + square * value * value) * kMiB;
    };
    CHECK(check_found({bytes}) <= 10);
    CHECK(check_found({bytes}, {1, 5000}) <= 10);
  }
}

TEST_CASE("a peak in steps is found") {
  CHECK(check_found({[](double value) { return std::ceil(value / 8) * 700 * kMiB; }}) <= 12);
}

TEST_CASE("a wall that no peak foretells is found by halving") {
  const Program wall{[](double value) { return (value <= 300 ? 100 + value : 40000) * kMiB; }};
  CHECK(check_found(wall, {200, 512}) <= 12);
  CHECK(check_found(wall, {290, 512}) <= 12);
}

TEST_CASE("estimates that creep along one side end all the same, with both sides") {
  // What fits is decided by something else than the peaks: fragments, say.
  size_t most = 0;
  for (int64_t wall = 20; wall < 3000; wall += 7) {
    CAPTURE(wall);
    for (const double share : {0.3, 0.9, 1.1, 3.0}) {
      CAPTURE(share);
      const double mib = share * (kCapacity - kContext) / kMiB / static_cast<double>(wall);
      FitSearch search({});
      while (const std::optional<int64_t> value = search.next()) {
        REQUIRE(search.tried().size() < kMaxValues);
        FitPoint point = run({line(0, mib)}, *value, search.wants_peaks(*value));
        point.verdict = *value <= wall ? Verdict::kFits : Verdict::kDoesNotFit;
        search.note(point);
      }
      CHECK(search.outcome().end == FitEnd::kFound);
      CHECK(search.outcome().largest == wall);
      CHECK(search.outcome().next == wall + 1);
      most = std::max(most, search.tried().size());
    }
  }
  CHECK(most > 12);
  CHECK(most <= 36);
}

TEST_CASE("a value that turns out not to fit sends the search on below it") {
  const Program program{line(700, 88)}, later{line(700, 120)};
  FitSearch search({});
  while (const std::optional<int64_t> value = search.next())
    search.note(run(program, *value, search.wants_peaks(*value)));
  const int64_t first = *search.outcome().largest;
  search.replace(run(later, first));
  CHECK(search.outcome().end == FitEnd::kGaveUp);
  while (const std::optional<int64_t> value = search.next()) {
    REQUIRE(search.tried().size() < kMaxValues);
    CHECK(*value < first);
    search.note(run(later, *value));
  }
  CHECK(search.outcome().end == FitEnd::kFound);
  CHECK(search.outcome().largest == largest_by_hand(later));
}

TEST_CASE("random programs with a smooth peak and some noise") {
  std::mt19937 random(1);
  int programs = 0;
  for (int i = 0; i < 500; ++i) {
    const auto between = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    const double constant = between(0, 12000), mib = std::exp(between(-1, 8)),
                 power = between(0.8, 1.6), noise = between(0, 0.002);
    Program program{[=](double value) {
      const double wave = 1 + noise * std::sin(value * 1.7);
      return (constant + mib * std::pow(value, power)) * wave * kMiB;
    }};
    program.cached_share = between(0, 0.5);
    program.needed_share = between(0, 1);
    program.low_share = between(0.6, 1);
    if (run(program, 1).verdict != Verdict::kFits) continue;
    const Searched searched = search(program);
    INFO("constant ", constant, " mib ", mib, " power ", power, " noise ", noise, " cached ",
         program.cached_share, " needed ", program.needed_share, " tried ",
         text_of(searched.values));
    REQUIRE(searched.outcome.largest);
    REQUIRE(searched.outcome.next);
    const int64_t largest = *searched.outcome.largest, next = *searched.outcome.next;
    CHECK(run(program, largest).verdict == Verdict::kFits);
    CHECK(run(program, next).verdict != Verdict::kFits);
    ++programs;
    CHECK(searched.outcome.end == FitEnd::kFound);
    CHECK(next == largest + 1);
  }
  CHECK(programs > 400);
}

TEST_CASE("nothing fits where the first value does not") {
  const Searched searched = search({line(30000, 1)});
  CHECK(searched.values == std::vector<int64_t>{1});
  CHECK(searched.outcome.end == FitEnd::kNoneFits);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.outcome.next == 1);
}

TEST_CASE("where all fit up to --to, that is the answer, found in few values") {
  const Searched searched = search({line(700, 88)}, {1, 100});
  CHECK(searched.outcome.end == FitEnd::kAllFit);
  CHECK(searched.outcome.largest == 100);
  CHECK_FALSE(searched.outcome.next);
  CHECK(searched.values.size() <= 4);
  CHECK(search({line(700, 88)}, {7, 7}).values == std::vector<int64_t>{7});
  CHECK(search({line(700, 88)}, {7, 7}).outcome.end == FitEnd::kAllFit);
}

TEST_CASE("a value whose next is the upper bound and does not fit") {
  const int64_t largest = largest_by_hand({line(700, 88)});
  const Searched searched = search({line(700, 88)}, {1, largest + 1});
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == largest);
}

TEST_CASE("the search begins where it is told to") {
  const Searched searched = search({line(700, 88)}, {100, std::nullopt});
  CHECK(searched.values.front() == 100);
  CHECK(searched.outcome.largest == largest_by_hand({line(700, 88)}));
}

TEST_CASE("a program that fails ends the search") {
  Program program{line(700, 88)};
  program.fails_from = 1;
  CHECK(search(program).values.size() == 1);
  CHECK(search(program).outcome.end == FitEnd::kProgramFailed);
  program.fails_from = 100;
  const Searched searched = search(program);
  CHECK(searched.outcome.end == FitEnd::kProgramFailed);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.values.back() >= 100);
  CHECK(searched.values.size() <= 4);
}

TEST_CASE("a program that does not end in time bounds the answer from above") {
  Program program{line(700, 88)};
  program.times_out_from = 100;
  const Searched searched = search(program);
  INFO("tried ", text_of(searched.values));
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == 99);
  program.times_out_from = 1;
  CHECK(search(program).outcome.end == FitEnd::kNoneFits);
}

TEST_CASE("a program that ignores the value is found out") {
  const Program program{line(700, 0)};
  const Searched searched = search(program);
  CHECK(searched.outcome.end == FitEnd::kValueUnused);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.values.size() == 4);
  // What is asked has an answer all the same.
  CHECK(search(program, {1, 10}).outcome.end == FitEnd::kAllFit);
}

TEST_CASE("a peak that falls is told") {
  const Searched rising = search({line(700, 88)});
  CHECK_FALSE(rising.outcome.falling);
  const Searched falling =
      search({[](double value) { return (value < 4 ? 5000 : 700 + 88 * value) * kMiB; }});
  INFO("tried ", text_of(falling.values));
  REQUIRE(falling.outcome.falling);
  CHECK(*falling.outcome.falling == std::pair<int64_t, int64_t>(1, falling.values[1]));
  CHECK(falling.outcome.largest == rising.outcome.largest);
}

TEST_CASE("a needle is found, and where the time is over what is known is told") {
  // Each value that is tried says nothing of the next.
  const int64_t edge = 1234567;
  const Program needle{[=](double value) {
    return (value + (value <= edge ? 100 : 40000)) * 0.0001 * kMiB +
           (value <= edge ? 0 : 40000 * kMiB);
  }};
  FitSearch search({});
  while (const std::optional<int64_t> value = search.next()) {
    REQUIRE(search.tried().size() < kMaxValues);
    search.note(run(needle, *value, search.wants_peaks(*value)));
    if (search.tried().size() != 8) continue;
    CHECK(search.outcome().end == FitEnd::kGaveUp);
    REQUIRE(search.outcome().largest);
    CHECK(*search.outcome().largest <= edge);
  }
  CHECK(search.outcome().end == FitEnd::kFound);
  CHECK(search.outcome().largest == edge);
}

FitReport report_of(const Program& program, FitBounds bounds = {}) {
  FitSearch search(bounds);
  while (const std::optional<int64_t> value = search.next()) {
    FitPoint point = run(program, *value, search.wants_peaks(*value));
    point.sentence = std::string(to_string(point.verdict));
    search.note(std::move(point));
  }
  FitReport report;
  report.gpu = "l4";
  report.arguments = {"--batch={}", "--again={}"};
  report.bounds = bounds;
  report.tried = search.tried();
  report.outcome = search.outcome();
  // The command, too, measures the next value for what would free memory.
  for (FitPoint& point : report.tried) {
    if (point.value == report.outcome.next && point.verdict != Verdict::kFailed)
      point.peaks = run(program, point.value).peaks;
  }
  report.runs = 2 * report.tried.size();
  return report;
}

TEST_CASE("the report's sentence says how the search ended") {
  Program program{line(700, 88)};
  program.low_share = 1;
  CHECK(report_of(program).sentence() ==
        "the largest that fits is --batch=243; --batch=244 does not fit");
  CHECK(report_of(program, {1, 100}).sentence() ==
        "the largest that fits is --batch=100, and no larger value was asked for");
  CHECK(report_of({line(30000, 1)}).sentence() == "none fits: --batch=1 does not fit");
  CHECK(report_of({line(1024, 0)}).sentence() ==
        "no answer: the value does not change the peak, 1.0 GiB with --batch=1 as with "
        "--batch=4096");
  program.fails_from = 100;
  const FitReport failed = report_of(program);
  CHECK(failed.sentence().find("no answer: --batch=") == 0);
  CHECK(failed.sentence().find("failed; --batch=16 fits; is there a largest") != std::string::npos);
  CHECK(exit_status(failed) == 12);
  CHECK(exit_status(report_of({line(30000, 1)})) == 10);
  CHECK(exit_status(report_of({line(700, 0)})) == 2);
  CHECK(exit_status(report_of({line(700, 88)})) == 0);
}

TEST_CASE(
    "what was not seen of the largest value is said, and how long a search took that gave up") {
  FitReport report = report_of({line(700, 88)});
  for (FitPoint& point : report.tried) {
    if (point.verdict == Verdict::kFits)
      point.sentence = "fits through step 20; no evaluation was seen";
  }
  CHECK(report.sentence().rfind(
            "the largest that fits is --batch=243, through step 20; no evaluation was seen; ", 0) ==
        0);
  report.outcome.end = FitEnd::kGaveUp;
  report.seconds = 90;
  CHECK(report.sentence().find(" that were tried in 90 s; ") != std::string::npos);
}

TEST_CASE("only what helps is told") {
  FitReport report = report_of({line(700, 88)});
  report.remedied = report.tried.back();
  report.remedied->verdict = Verdict::kDoesNotFit;
  const FitPeaks same = *report.remedied->peaks;
  FitPeaks more = same, less = same;
  more.process.high += int64_t{836} << 20;
  less.process.high = kCapacity + kCapacity / 20;
  report.remedied->peaks->process.high = kCapacity + kCapacity / 10;
  more.process.high = kCapacity + kCapacity / 5;
  report.measured = {{"NO=1", Verdict::kDoesNotFit, more},
                     {"FITS=1", Verdict::kFits, more},
                     {"LESS=1", Verdict::kNotKnown, less}};
  const std::string text = report.to_text(80);
  CHECK(text.find("NO=1") == std::string::npos);
  CHECK(text.find("FITS=1: fits") != std::string::npos);
  CHECK(text.find("LESS=1: not known") != std::string::npos);
  CHECK(text.find("-") == text.find("--batch"));  // no negative bytes
  CHECK(Json::parse(report.to_json())["remedies"].size() == 2);
  report.measured = {{"NO=1", Verdict::kDoesNotFit, more}};
  CHECK(
      report.to_text(80).find("Other settings of LibTorch and cuBLAS do not help with --batch=") !=
      std::string::npos);
  // Nor what would free nothing.
  MeasuredPeak peak;
  peak.by_role = {{"parameter", 100}, {"gradient", 100}};
  for (const EstimatedRemedy& remedy : estimated_remedies(peak)) CHECK(remedy.bytes > 0);
}

TEST_CASE("the report says where fragments decide") {
  const auto is_said = [](const FitReport& report) {
    return report.to_text(80).find("fragments of LibTorch's cache decide") != std::string::npos;
  };
  Program program{line(700, 88)};
  CHECK_FALSE(report_of(program).do_fragments_decide());
  CHECK_FALSE(is_said(report_of(program)));
  program.cached_share = 0.4;
  program.needed_share = 0.5;
  CHECK(report_of(program).do_fragments_decide());
  CHECK(is_said(report_of(program)));
}

TEST_CASE("the report as JSON") {
  FitReport report = report_of({line(700, 88)});
  report.remedied = report.tried.back();
  report.measured = {{"A=b", Verdict::kFits, report.tried.front().peaks}};
  report.estimated = {{"less", "it is so", 77, true}};
  const Json json = Json::parse(report.to_json());
  CHECK(json.begin().key() == "schema");
  CHECK(json["schema"] == "memledger.fit/1");
  CHECK(json["largest"] == *report.outcome.largest);
  CHECK(json["to"].is_null());
  REQUIRE(json["tried"].size() == report.tried.size());
  for (size_t i = 0; i < report.tried.size(); ++i) {
    CHECK(json["tried"][i]["value"] == report.tried[i].value);
    CHECK(json["tried"][i]["process_peak"]["high"] == report.tried[i].peaks->process.high);
  }
  CHECK(json["remedies"][0]["source"] == "measured");
  CHECK(json["remedies"][0]["freed_bytes"] ==
        report.tried.back().peaks->process.high - report.tried.front().peaks->process.high);
  CHECK(json["remedies"][1]["source"] == "estimated");
  CHECK(json["remedies"][1]["at_most"] == true);
}

TEST_CASE("the bars fit the width, and the capacity is one column") {
  for (const size_t width : {60, 80, 120}) {
    const std::string text = report_of({line(700, 88)}).to_text(width);
    size_t capacity_at = 0, bars = 0, begin = text.find("low");
    begin = text.find('\n', begin) + 1;
    for (size_t end = text.find('\n', begin); end != begin; end = text.find('\n', begin)) {
      const std::string row = text.substr(begin, end - begin);
      INFO(row);
      CHECK(row.size() <= width);
      if (capacity_at == 0) capacity_at = row.find('|');
      CHECK(row.find('|') == capacity_at);
      const bool is_full = row.find_first_of("#+>", capacity_at) != std::string::npos;
      CHECK(is_full == (row.find("fits") == std::string::npos));
      ++bars;
      begin = end + 1;
    }
    CHECK(bars == report_of({line(700, 88)}).tried.size());
  }
}

TEST_CASE("a text and a picture that no argument can spoil") {
  FitReport report = report_of({line(700, 88)});
  report.arguments = {"--x=\x1b[31m<script>{}"};
  CHECK(report.to_text(80).find('\x1b') == std::string::npos);
  CHECK(report.to_svg().find("<script>") == std::string::npos);
  CHECK(report.to_svg().find("&lt;script&gt;243") != std::string::npos);
}

TEST_CASE("estimates come from the roles of what is alive at the peak") {
  MeasuredPeak peak;
  peak.by_role = {{"tensor", 1000}};
  CHECK(estimated_remedies(peak).empty());
  peak.by_role = {{"parameter", 100}, {"gradient", 100}, {"optimizer_state", 200},
                  {"buffer", 7},      {"input", 11},     {"saved", 500},
                  {"tensor", 50},     {"temporary", 30}};
  peak.by_layer = {{"fc", 10}, {"layer1", 340}, {"layer2", 150}, {"layer3", 20}};
  peak.activations_by_layer = {{"fc", 10}, {"layer1", 300}, {"layer2", 120}, {"layer3", 20}};
  const std::vector<EstimatedRemedy> remedies = estimated_remedies(peak);
  std::vector<int64_t> bytes;
  for (const EstimatedRemedy& remedy : remedies) bytes.push_back(remedy.bytes);
  // All layers, layer1, the optimizer's state, layer2, weights and gradients, layer3.
  CHECK(bytes == std::vector<int64_t>{580, 300, 150, 120, 100, 20});
  CHECK(remedies[1].change == "a checkpoint around layer1");
  CHECK(remedies[1].is_upper_bound);
}

TEST_CASE("the point of a prediction has the peaks of its fullest device") {
  Prediction prediction;
  prediction.verdict = Verdict::kFits;
  DevicePrediction roomy, full;
  roomy.capacity_bytes = full.capacity_bytes = 1000;
  roomy.process_peak = {400, 500};
  full.process_peak = {800, 900};
  full.allocated_peak = {600, 700};
  prediction.devices = {roomy, full};
  const FitPoint point = fit_point(8, prediction);
  CHECK(point.value == 8);
  REQUIRE(point.peaks);
  CHECK(point.peaks->process.high == 900);
  CHECK(point.peaks->allocated.low == 600);
  CHECK_FALSE(fit_point(8, Prediction{}).peaks);
}

}  // namespace
}  // namespace memledger::prediction
