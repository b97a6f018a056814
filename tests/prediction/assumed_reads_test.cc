// Whether runs that assume something else of what a program read open or close the verdict.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "prediction/prediction.h"

namespace memledger::prediction {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr Run::End kLow = Run::End::kLow, kHigh = Run::End::kHigh;
using Kind = MeasuredRead::Kind;
using Effect = MeasuredRead::Effect;

MeasuredRead read_at(const std::string& site, Kind kind, double assumed = 0) {
  MeasuredRead read;
  read.op = "aten::item";
  read.place = "/home/me/" + site + ".py:12 main";
  read.kind = kind;
  read.count = 3;
  read.site = site;
  read.assumed = assumed;
  read.has_upper_bound = false;
  return read;
}

Run run(Run::End end, int64_t peak_mib, const std::vector<MeasuredRead>& reads) {
  Run run;
  run.end = end;
  run.addresses = end == kLow ? Run::Addresses::kDown : Run::Addresses::kUp;
  Measurement process;
  process.ended = Ended::kAtExit;
  process.unknown_reads = reads;
  MeasuredDevice device;
  device.gpu = "NVIDIA Test";
  device.capacity_bytes = 1000 * kMiB;
  device.context_bytes = 100 * kMiB;
  device.process_peak = peak_mib * kMiB;
  device.reserved_peak = device.process_peak - device.context_bytes;
  device.allocated_peak = device.reserved_peak;
  device.allocations = device.process_peak;
  process.devices = {device};
  run.processes = {process};
  return run;
}

Run without_memory(Run run) {
  run.program.status = 1;
  run.processes[0].ended = Ended::kNot;
  run.processes[0].devices[0].failures = 1;
  return run;
}

Run failed(Run run) {
  run.program.status = 1;
  run.processes[0].ended = Ended::kNot;
  return run;
}

Run timed_out(Run run) {
  run.program.timed_out = true;
  return run;
}

Run assuming(Run run, const std::string& site, const std::string& value) {
  run.assumed_reads = {{site, value}};
  return run;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// `site=value` of each, with `low:` in front of those of the low end.
std::vector<std::string> words(const std::vector<AssumingRun>& wanted) {
  std::vector<std::string> result;
  for (const AssumingRun& one : wanted) {
    for (const AssumedRead& read : one.assumed_reads)
      result.push_back((one.end == kLow ? "low:" : "") + read.site + "=" + read.value);
  }
  return result;
}

using Words = std::vector<std::string>;

// A program that read one value, with what runs say that assume the others.
class OneRead {
 public:
  explicit OneRead(Kind kind, double assumed = 0)
      : reads_{read_at("a", kind, assumed)},
        runs_{run(kLow, 700, reads_), run(kHigh, 800, reads_)} {}

  OneRead& with(const std::string& value, const Run& made) {
    runs_.push_back(assuming(made, "a", value));
    return *this;
  }
  Run of(int64_t peak_mib) const { return run(kHigh, peak_mib, reads_); }
  Prediction prediction() const { return predict("test", runs_); }
  MeasuredRead read() const { return prediction().unknown_reads.at(0); }
  Words wanted() const { return words(assuming_runs("test", runs_)); }

 private:
  std::vector<MeasuredRead> reads_;
  std::vector<Run> runs_;
};

TEST_CASE("each value of a read is tried, but for that of the first runs") {
  CHECK(OneRead(Kind::kNumber).wanted() == Words{"a=one", "a=large", "a=huge"});
  CHECK(OneRead(Kind::kFraction, 1).wanted() == Words{"a=small", "a=large", "a=huge"});
  CHECK(OneRead(Kind::kNumber, 7).wanted() == Words{"a=small", "a=one", "a=large", "a=huge"});
  CHECK(OneRead(Kind::kBranch).wanted() == Words{"a=other"});
  OneRead tried(Kind::kBranch);
  tried.with("other", tried.of(800));
  CHECK(tried.wanted().empty());
  // Nothing is tried of what nobody can assume, of a program that failed, or that fits at one end.
  MeasuredRead sent = read_at("", Kind::kBranch);
  CHECK(assuming_runs("test", {run(kLow, 700, {sent}), run(kHigh, 800, {sent})}).empty());
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kBranch)};
  CHECK(assuming_runs("test", {failed(run(kLow, 700, reads)), run(kHigh, 800, reads)}).empty());
  CHECK(assuming_runs("test", {run(kLow, 700, reads), without_memory(run(kHigh, 990, reads))})
            .empty());
}

TEST_CASE("a read is open until it was tried") {
  for (const Kind kind : {Kind::kNumber, Kind::kFraction, Kind::kBranch}) {
    const Prediction prediction = OneRead(kind).prediction();
    CHECK(prediction.verdict == Verdict::kNotKnown);
    CHECK(prediction.unknown_reads.at(0).effect == Effect::kNotTried);
    CHECK(contains(prediction.sentence(), "that only the device has (aten::item in"));
    CHECK(contains(prediction.sentence(), "; --assume=a.py:12=VALUE says what it is"));
  }
}

TEST_CASE("where memory was short that is why, and settings are tried") {
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kFraction, 1)};
  Run high = without_memory(run(kHigh, 990, reads));
  high.processes[0].failure = MeasuredFailure{};
  high.processes[0].devices[0].reserved_peak -= 50 * kMiB;
  const Prediction prediction = predict("test", {run(kLow, 700, reads), high});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(contains(prediction.sentence(), "not known: it takes 700.0 to 990.0 MiB"));
  CHECK_FALSE(settings_worth_trying(prediction, "").empty());
}

TEST_CASE("a read that is known to be harmless is not tried, and closes nothing") {
  MeasuredRead harmless = read_at("a", Kind::kFraction, 1);
  harmless.is_harmless = true;
  const std::vector<MeasuredRead> reads = {harmless, read_at("b", Kind::kBranch)};
  std::vector<Run> runs = {run(kLow, 700, reads), run(kHigh, 800, reads)};
  CHECK(words(assuming_runs("test", runs)) == Words{"b=other"});
  runs.push_back(assuming(run(kHigh, 800, reads), "b", "other"));
  CHECK(predict("test", runs).verdict == Verdict::kFits);
}

TEST_CASE("values that allocate alike close it, and the text says with how many it was tried") {
  OneRead one(Kind::kFraction, 1);
  one.with("small", one.of(800)).with("large", one.of(800)).with("huge", one.of(800));
  CHECK(one.prediction().verdict == Verdict::kFits);
  CHECK(one.read().effect == Effect::kNone);
  CHECK(contains(one.prediction().to_text(),
                 "a fraction, tried with 4 values, which make the same allocations"));
  CHECK(one.prediction().devices[0].process_peak.high == 800 * kMiB);
}

TEST_CASE("a number is open where larger ones take more, and closed where the program bounds it") {
  OneRead grows(Kind::kNumber);
  grows.with("one", grows.of(800)).with("large", grows.of(810)).with("huge", grows.of(900));
  CHECK(grows.prediction().verdict == Verdict::kNotKnown);
  CHECK(grows.read().effect == Effect::kOpen);

  OneRead bounded(Kind::kNumber);
  bounded.with("one", bounded.of(800)).with("large", bounded.of(950)).with("huge", bounded.of(950));
  CHECK(bounded.prediction().verdict == Verdict::kFits);
  CHECK(bounded.read().effect == Effect::kWithin);
  CHECK(bounded.prediction().devices[0].process_peak.high == 950 * kMiB);
  CHECK(contains(bounded.prediction().to_text(), "whose peaks are in the interval"));

  OneRead runs_out(Kind::kNumber);
  runs_out.with("one", runs_out.of(800)).with("large", runs_out.of(800));
  runs_out.with("huge", without_memory(runs_out.of(990)));
  CHECK(runs_out.prediction().verdict == Verdict::kNotKnown);
  CHECK(runs_out.read().effect == Effect::kOpen);

  OneRead never_ends(Kind::kNumber);
  never_ends.with("one", never_ends.of(800)).with("large", never_ends.of(800));
  never_ends.with("huge", timed_out(never_ends.of(800)));
  CHECK(never_ends.prediction().verdict == Verdict::kNotKnown);
}

TEST_CASE("values with which the program fails are none that it goes on with") {
  OneRead index(Kind::kNumber);
  index.with("one", index.of(800)).with("large", failed(index.of(800)));
  index.with("huge", failed(index.of(800)));
  CHECK(index.prediction().verdict == Verdict::kFits);
  CHECK(contains(index.prediction().to_text(), "tried with 2 values"));
  // Unless others already made other allocations: more may take more.
  OneRead hidden(Kind::kNumber);
  Run other = hidden.of(800);
  ++other.processes[0].devices[0].allocations;
  hidden.with("one", hidden.of(800)).with("large", other).with("huge", failed(hidden.of(800)));
  CHECK(hidden.prediction().verdict == Verdict::kNotKnown);
  // Or all fail.
  OneRead all(Kind::kNumber);
  for (const char* const value : {"one", "large", "huge"}) all.with(value, failed(all.of(800)));
  CHECK(all.prediction().verdict == Verdict::kNotKnown);
  // A check ends the program.
  OneRead check(Kind::kBranch);
  check.with("other", failed(check.of(800)));
  CHECK(check.prediction().verdict == Verdict::kFits);
  CHECK(contains(check.prediction().to_text(), "a condition; with another the program fails"));
}

TEST_CASE("where a program takes no huge number, a million has to allocate as a large one does") {
  OneRead token(Kind::kNumber);
  Run other = token.of(800);
  ++other.processes[0].devices[0].allocations;
  token.with("one", other).with("large", other).with("huge", failed(token.of(800)));
  CHECK(token.prediction().verdict == Verdict::kNotKnown);
  CHECK(token.wanted() == Words{"a=million"});
  SUBCASE("it does") {
    token.with("million", other);
    CHECK(token.wanted().empty());
    CHECK(token.prediction().verdict == Verdict::kFits);
    CHECK(token.read().effect == Effect::kSamePeak);
    CHECK(contains(token.prediction().to_text(), "tried with 4 values, which have the same peak"));
  }
  SUBCASE("it allocates more below the same peak") {
    Run more = other;
    more.processes[0].devices[0].requested_in_all += 4 * kMiB;
    token.with("million", more);
    CHECK(token.prediction().verdict == Verdict::kNotKnown);
  }
  SUBCASE("the program takes no million either") {
    token.with("million", failed(token.of(800)));
    CHECK(token.wanted().empty());
    CHECK(token.prediction().verdict == Verdict::kNotKnown);
  }
  SUBCASE("a huge one that ends is what counts") {
    OneRead taken(Kind::kNumber);
    taken.with("one", other).with("large", other).with("huge", taken.of(900));
    taken.with("million", other);
    CHECK(taken.prediction().verdict == Verdict::kNotKnown);
  }
  // Where all allocate alike, nothing is open.
  OneRead index(Kind::kNumber);
  index.with("one", index.of(800)).with("large", index.of(800)).with("huge", failed(index.of(800)));
  CHECK(index.wanted().empty());
}

TEST_CASE("a condition's other way gives the other end of the interval") {
  OneRead more(Kind::kBranch);
  more.with("other", more.of(900));
  CHECK(more.wanted().empty());
  CHECK(more.prediction().verdict == Verdict::kFits);
  CHECK(more.prediction().devices[0].process_peak.low == 700 * kMiB);
  CHECK(more.prediction().devices[0].process_peak.high == 900 * kMiB);

  OneRead less(Kind::kBranch);
  less.with("other", less.of(500));
  CHECK(less.wanted() == Words{"low:a=other"});
  less.with("other", run(kLow, 400, {read_at("a", Kind::kBranch)}));
  CHECK(less.wanted().empty());
  CHECK(less.prediction().devices[0].process_peak.low == 400 * kMiB);
  CHECK(less.prediction().devices[0].process_peak.high == 800 * kMiB);

  OneRead too_much(Kind::kBranch);
  too_much.with("other", without_memory(too_much.of(990)));
  CHECK(too_much.prediction().verdict == Verdict::kNotKnown);
}

TEST_CASE("what does not fit with what is likely may fit otherwise") {
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kBranch, 1)};
  std::vector<Run> runs = {without_memory(run(kLow, 990, reads)),
                           without_memory(run(kHigh, 990, reads))};
  CHECK(predict("test", runs).verdict == Verdict::kDoesNotFit);
  CHECK(words(assuming_runs("test", runs)) == Words{"low:a=other"});
  std::vector<Run> neither = runs;
  neither.push_back(assuming(without_memory(run(kLow, 990, reads)), "a", "other"));
  CHECK(assuming_runs("test", neither).empty());
  CHECK(predict("test", neither).verdict == Verdict::kDoesNotFit);
  runs.push_back(assuming(run(kLow, 300, reads), "a", "other"));
  CHECK(predict("test", runs).verdict == Verdict::kNotKnown);
}

TEST_CASE("many reads are tried at once, and one by one where something came of it") {
  std::vector<MeasuredRead> reads;
  for (const char* const site : {"a", "b", "c", "d"})
    reads.push_back(read_at(site, Kind::kFraction, 1));
  reads.push_back(read_at("e", Kind::kBranch));
  std::vector<Run> runs = {run(kLow, 700, reads), run(kHigh, 800, reads)};
  CHECK(words(assuming_runs("test", runs)) ==
        Words{"numbers=small", "numbers=large", "numbers=huge", "e=other"});
  const auto add = [&](const char* site, const char* value, int64_t peak) {
    runs.push_back(assuming(run(kHigh, peak, reads), site, value));
  };
  add("numbers", "small", 800);
  add("numbers", "large", 800);
  add("e", "other", 800);
  SUBCASE("they allocate alike") {
    add("numbers", "huge", 800);
    CHECK(assuming_runs("test", runs).empty());
    CHECK(predict("test", runs).verdict == Verdict::kFits);
  }
  SUBCASE("they do not") {
    add("numbers", "huge", 900);
    CHECK(predict("test", runs).verdict == Verdict::kNotKnown);
    // Only with the value of which something came.
    CHECK(words(assuming_runs("test", runs)) == Words{"a=huge", "b=huge", "c=huge", "d=huge"});
    for (const char* const site : {"a", "b", "c", "d"})
      add(site, "huge", std::string(site) == "c" ? 900 : 800);
    CHECK(assuming_runs("test", runs).empty());
    const Prediction prediction = predict("test", runs);
    CHECK(prediction.verdict == Verdict::kNotKnown);
    CHECK(contains(prediction.sentence(), "c.py:12"));
    CHECK(prediction.unknown_reads.at(0).effect == Effect::kOpen);
    CHECK(prediction.unknown_reads.at(1).effect == Effect::kNone);
  }
  SUBCASE("the program takes no huge one") {
    runs.push_back(assuming(failed(run(kHigh, 800, reads)), "numbers", "huge"));
    CHECK(words(assuming_runs("test", runs)) == Words{"numbers=million"});
    CHECK(predict("test", runs).verdict == Verdict::kNotKnown);
    std::vector<Run> alike = runs;
    alike.push_back(assuming(run(kHigh, 800, reads), "numbers", "million"));
    CHECK(assuming_runs("test", alike).empty());
    CHECK(predict("test", alike).verdict == Verdict::kFits);
    // Nor a million: which one it does not take is found one by one.
    runs.push_back(assuming(failed(run(kHigh, 800, reads)), "numbers", "million"));
    CHECK(words(assuming_runs("test", runs)) == Words{"a=huge", "b=huge", "c=huge", "d=huge"});
  }
}

TEST_CASE("a read that only the run that went on has seen is tried by one that comes as far") {
  const std::vector<MeasuredRead> none, evaluation = {read_at("a", Kind::kBranch)};
  Run further = run(kHigh, 800, evaluation);
  further.addresses = Run::Addresses::kDown;
  further.goes_on = true;
  const std::vector<Run> ends = {run(kLow, 700, none), run(kHigh, 800, none), further};
  const std::vector<AssumingRun> wanted = assuming_runs("test", ends);
  REQUIRE(words(wanted) == Words{"a=other"});
  CHECK(wanted[0].as_far);

  const auto with = [&](Run made) {
    std::vector<Run> runs = ends;
    runs.push_back(assuming(std::move(made), "a", "other"));
    return predict("test", runs);
  };
  // One that ended before the read says nothing of it.
  CHECK(with(run(kHigh, 800, none)).verdict == Verdict::kNotKnown);
  for (const int64_t peak_mib : {800, 900}) {
    Run as_far = run(kHigh, peak_mib, evaluation);
    as_far.addresses = Run::Addresses::kDown;
    as_far.as_far = true;
    const Prediction prediction = with(as_far);
    CHECK(prediction.verdict == Verdict::kFits);
    CHECK(prediction.devices[0].process_peak.high == peak_mib * kMiB);
  }
}

TEST_CASE("a run that ended before its end's others came further is made again") {
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kBranch)};
  Run low = run(kLow, 900, reads), high = run(kHigh, 950, reads);
  low.as_far = high.as_far = true;
  std::vector<Run> runs = {run(kLow, 700, reads), run(kHigh, 800, reads), low, high};
  // Its peak is one of the part that they had in common.
  runs.push_back(assuming(run(kHigh, 810, reads), "a", "other"));
  CHECK(words(assuming_runs("test", runs)) == Words{"a=other"});
  CHECK(predict("test", runs).verdict == Verdict::kNotKnown);
  Run as_far = run(kHigh, 970, reads);
  as_far.as_far = true;
  runs.push_back(assuming(as_far, "a", "other"));
  CHECK(assuming_runs("test", runs).empty());
  CHECK(predict("test", runs).verdict == Verdict::kFits);
  CHECK(predict("test", runs).devices[0].process_peak.high == 970 * kMiB);
}

TEST_CASE("where memory is short with what is likely, saying so is no advice, settings are") {
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kFraction, 1)};
  Run low = run(kLow, 990, reads), high = without_memory(run(kHigh, 1000, reads));
  for (Run* const one : {&low, &high}) one->processes[0].devices[0].allocated_peak = 500 * kMiB;
  high.processes[0].failure = MeasuredFailure{};
  const Prediction prediction = predict("test", {low, high});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK_FALSE(contains(prediction.sentence(), "--assume"));
  CHECK(contains(prediction.sentence(), "it takes"));
  CHECK(settings_worth_trying(prediction, "").size() == 3);
}

TEST_CASE("a size that was capped for its loop opens the verdict and says which line to say") {
  MeasuredRead size;
  size.op = "aten::_unique2";
  size.place = "boxes.py:114 nms";
  size.count = 2;
  size.assumed = 128;
  size.before_cap = 90000;
  size.loop = "boxes.py:115 nms";
  size.has_upper_bound = false;
  const Prediction prediction = predict("test", {run(kLow, 700, {}), run(kHigh, 800, {size})});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.sentence() ==
        "not known: how often a loop runs (boxes.py:115 nms) depends on a size that only the "
        "device has (aten::_unique2 in boxes.py:114 nms, capped at 128 of 90000); "
        "--assume=boxes.py:114=VALUE says what it is");
  CHECK(contains(prediction.to_text(),
                 "a size that a loop follows (boxes.py:115 nms), capped at "
                 "128 of 90000, 2 times"));
  CHECK(contains(prediction.to_json(), "\"before_cap\":90000"));
}

TEST_CASE("a run that assumes something of all reads and fails says nothing of each") {
  std::vector<MeasuredRead> reads;
  for (int i = 0; i < 9; ++i) reads.push_back(read_at("r" + std::to_string(i), Kind::kBranch));
  const std::vector<Run> runs = {run(kLow, 700, reads), run(kHigh, 800, reads),
                                 assuming(failed(run(kHigh, 800, reads)), "truths", "other")};
  const Prediction prediction = predict("test", runs);
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.unknown_reads.at(0).effect == Effect::kNotTried);
}

TEST_CASE("what the user has said of whole numbers is not tried") {
  const std::vector<MeasuredRead> reads = {read_at("a", Kind::kNumber)};
  const std::vector<Run> runs = {run(kLow, 700, reads), run(kHigh, 800, reads)};
  CHECK(assuming_runs("h100,numbers=one", runs).empty());
  MeasuredRead said = read_at("", Kind::kSaid, 5);
  said.has_upper_bound = true;
  const std::vector<Run> known = {run(kLow, 700, {said}), run(kHigh, 800, {said})};
  CHECK(assuming_runs("h100", known).empty());
  CHECK(predict("h100", known).verdict == Verdict::kFits);
  CHECK(contains(predict("h100", known).to_json(), "\"kind\":\"said\""));
}

}  // namespace
}  // namespace memledger::prediction
