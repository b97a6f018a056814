#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "prediction/prediction.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "prediction/run_files.h"
#include "text/json.h"

namespace memledger::prediction {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kCapacity = 1000 * kMiB;

MeasuredDevice device(int64_t process_peak_mib, int64_t failures = 0, int index = 0) {
  MeasuredDevice device;
  device.index = index;
  device.gpu = "NVIDIA Test";
  device.capacity_bytes = kCapacity;
  device.context_bytes = 100 * kMiB;
  device.process_peak = process_peak_mib * kMiB;
  device.reserved_peak = device.process_peak - device.context_bytes;
  device.allocated_peak = device.reserved_peak - 10 * kMiB;
  device.failures = failures;
  return device;
}

Run run(Run::End end, std::vector<MeasuredDevice> devices, bool is_limited = true) {
  Run run;
  run.end = end;
  run.is_limited = is_limited;
  Measurement process;
  process.ended = Ended::kAtExit;
  process.devices = std::move(devices);
  run.processes.push_back(std::move(process));
  return run;
}

constexpr Run::End kLow = Run::End::kLow, kHigh = Run::End::kHigh;

// A run that an allocation ended.
Run failed_run(Run::End end, int64_t peak_mib) {
  Run failed = run(end, {device(peak_mib, 1)});
  failed.program.status = 134;
  failed.processes[0].ended = Ended::kNot;
  failed.processes[0].failure = MeasuredFailure{0, 64 * kMiB, "aten::mm", "backward", "net.2", ""};
  return failed;
}

TEST_CASE("a program fits where no allocation fails at either end") {
  const Prediction prediction =
      predict("test", {run(kLow, {device(700)}), run(kHigh, {device(800)})});
  CHECK(prediction.verdict == Verdict::kFits);
  REQUIRE(prediction.devices.size() == 1);
  const DevicePrediction& cuda = prediction.devices[0];
  CHECK(cuda.device == "cuda:0");
  CHECK(cuda.process_peak.low == 700 * kMiB);
  CHECK(cuda.process_peak.high == 800 * kMiB);
  CHECK(cuda.allocated_peak.high == 690 * kMiB);
  CHECK(cuda.headroom_bytes() == 200 * kMiB);
  CHECK(prediction.sentence() == "fits");
  CHECK(exit_status({prediction}) == 0);
}

TEST_CASE(
    "it does not fit where one fails at the low end, and peaks come from runs without limit") {
  const Prediction prediction =
      predict("test", {failed_run(kLow, 990), failed_run(kHigh, 995),
                       run(kLow, {device(1200)}, false), run(kHigh, {device(1300)}, false)});
  CHECK(prediction.verdict == Verdict::kDoesNotFit);
  CHECK(prediction.devices[0].process_peak.low == 1200 * kMiB);
  CHECK(prediction.devices[0].process_peak.high == 1300 * kMiB);
  CHECK(prediction.devices[0].headroom_bytes() == -300 * kMiB);
  CHECK(prediction.sentence() ==
        "does not fit: 200.0 MiB short at aten::mm, backward, net.2, which asks for 64.0 MiB");
  CHECK(exit_status({prediction}) == 10);
}

TEST_CASE("it is not known where only the high end fails") {
  const Prediction prediction = predict("test", {run(kLow, {device(900)}), failed_run(kHigh, 990),
                                                 run(kHigh, {device(1010)}, false)});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.devices[0].process_peak.low == 900 * kMiB);
  CHECK(prediction.devices[0].process_peak.high == 1010 * kMiB);
  CHECK(exit_status({prediction}) == 11);
}

TEST_CASE("an allocation that failed and was caught does not fit either") {
  Run caught = run(kLow, {device(990, 1)});
  const Prediction prediction = predict("test", {caught, caught});
  CHECK(prediction.verdict == Verdict::kDoesNotFit);
}

TEST_CASE("ranks that each had a device to themselves are not told to fit on one together") {
  Run two = run(kLow, {device(600)});
  two.processes.push_back(two.processes[0]);
  Run high = two;
  high.end = kHigh;
  const Prediction prediction = predict("test", {two, high});
  CHECK(prediction.devices[0].process_peak.high == 1200 * kMiB);
  CHECK(prediction.verdict == Verdict::kNotKnown);
}

TEST_CASE("a program that failed for another reason is no verdict") {
  Run bad = run(kLow, {device(500)});
  bad.program.status = 1;
  bad.processes[0].ended = Ended::kNot;
  Prediction prediction = predict("test", {bad, bad});
  CHECK(prediction.verdict == Verdict::kFailed);
  CHECK(prediction.sentence() == "failed: the program ended with 1");
  CHECK(exit_status({prediction}) == 12);

  Run silent;
  prediction = predict("test", {silent, silent});
  CHECK(prediction.verdict == Verdict::kFailed);
  CHECK(prediction.sentence() == "failed: it used no GPU: there is nothing to measure");

  Run slow = run(kLow, {device(500)});
  slow.program.timed_out = true;
  prediction = predict("test", {slow, slow});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(exit_status({prediction}) == 11);
}

TEST_CASE("a process that was ended after a step has ended well, whatever its launcher says") {
  Run ended = run(kLow, {device(500)});
  ended.program.status = 1;
  ended.processes[0].ended = Ended::kAfterStep;
  CHECK(ended.has_ended_well());
  CHECK(predict("test", {ended, ended}).verdict == Verdict::kFits);
}

TEST_CASE("of several GPUs the worst decides: failed, then does not fit, then not known") {
  Prediction fits, no, unknown, failed;
  fits.verdict = Verdict::kFits;
  no.verdict = Verdict::kDoesNotFit;
  unknown.verdict = Verdict::kNotKnown;
  failed.verdict = Verdict::kFailed;
  CHECK(exit_status({fits, unknown}) == 11);
  CHECK(exit_status({fits, unknown, no}) == 10);
  CHECK(exit_status({fits, failed, no}) == 12);
}

TEST_CASE("the JSON has the members that scripts read") {
  Prediction prediction = predict("h100", {failed_run(kLow, 990), failed_run(kHigh, 990)});
  prediction.remedy = "expandable_segments";
  prediction.unknown_reads = {{"aten::nonzero", "moe.cc:88", 3, 64 * kMiB}};
  const Json json = Json::parse(prediction.to_json());
  CHECK(json["schema"] == "memledger.prediction/1");
  CHECK(json["verdict"] == "does not fit");
  CHECK(json["remedy"] == "expandable_segments");
  CHECK(json["devices"][0]["device"] == "cuda:0");
  CHECK(json["devices"][0]["capacity_bytes"] == kCapacity);
  CHECK(json["devices"][0]["process_peak"]["high"] == 990 * kMiB);
  CHECK(json["devices"][0]["headroom_bytes"] == 10 * kMiB);
  CHECK(json["unknown_reads"][0]["operator"] == "aten::nonzero");
  CHECK(json["unknown_reads"][0]["count"] == 3);
  CHECK(json["program"]["status"] == 134);
  int64_t low = 0;
  for (const Json& term : json["terms"]) low += term["low"].get<int64_t>();
  CHECK(low == 990 * kMiB);
  CHECK(prediction.sentence() == "fits with expandable_segments");
}

TEST_CASE("a measurement is read as it was written, and what is none is named") {
  Measurement measurement = failed_run(kHigh, 500).processes[0];
  measurement.process = 7;
  measurement.steps = 3;
  measurement.peak = MeasuredPeak{0,
                                  "aten::mm",
                                  "forward",
                                  "net.0",
                                  "a.cc:1 f",
                                  {{"parameter", 5}},
                                  {{"T", "op", "other", "", "(1,)", 9}},
                                  {{"net.0", 5}, {"net.2", 7}}};
  measurement.cause = "SIGSEGV";
  measurement.unstepped_parameters = 13;
  measurement.failure->free_bytes = 3;
  measurement.allocator_settings = "max_split_size_mb:64";
  measurement.devices[0].allocations = 11;
  measurement.devices[0].requested_in_all = 12;
  using Kind = MeasuredRead::Kind;
  measurement.unknown_reads = {{"aten::nonzero", "b.cc:2", 4, 8},
                               {"aten::one_hot", "b.cc:3", 1, 0, Kind::kSize, false},
                               {"aten::item", "b.cc:4", 1, 0, Kind::kNumber, false},
                               {"aten::is_nonzero", "", 2, 0, Kind::kBranch}};
  const std::string text = to_json(measurement);
  const auto read = parse_measurement(text);
  REQUIRE(read.ok());
  CHECK(to_json(*read) == text);
  CHECK(read->failure->layer == "net.2");
  CHECK(read->peak->by_role.at("parameter") == 5);
  CHECK(read->peak->by_layer.at("net.2") == 7);
  CHECK(read->cause == "SIGSEGV");
  CHECK(read->unstepped_parameters == 13);
  CHECK(read->failure->free_bytes == 3);
  CHECK(read->allocator_settings == "max_split_size_mb:64");
  CHECK(read->devices[0].requested_in_all == 12);
  REQUIRE(read->unknown_reads.size() == 4);
  CHECK(read->unknown_reads[0].has_upper_bound);
  CHECK(read->unknown_reads[1].kind == Kind::kSize);
  CHECK_FALSE(read->unknown_reads[1].has_upper_bound);
  CHECK(read->unknown_reads[2].kind == Kind::kNumber);
  CHECK(read->unknown_reads[3].kind == Kind::kBranch);
  CHECK_FALSE(parse_measurement("{}").ok());
  CHECK_FALSE(parse_measurement("{\"schema\":\"other\"}").ok());
  CHECK_FALSE(parse_measurement("no JSON").ok());
}

// A folder of one run.
class RunFolder {
 public:
  explicit RunFolder(const char* name)
      : path_(std::filesystem::path(std::getenv("TEST_TMPDIR")) / name) {
    std::filesystem::create_directory(path_);
  }
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

TEST_CASE("progress is that of the process that has made most steps") {
  const RunFolder folder("progress");
  CHECK(read_progress(folder.path()).steps == 0);
  CHECK(read_progress(folder.path() + "/missing").steps == 0);
  folder.write("7.progress", progress_text({7, 3, 2, "epoch 1\nevaluation"}));
  folder.write("8.progress", progress_text({8, 1, 0, "x"}));
  folder.write("9.progress", "");
  CHECK(read_progress(folder.path()).steps == 3);
  CHECK(read_progress(folder.path()).label == "epoch 1 evaluation");
  CHECK(progress_text({}).size() ==
        progress_text({1 << 30, 1 << 30, 1, std::string(500, 'x')}).size());
  folder.write("8.progress", progress_text({8, 4, 0, "x"}));
  CHECK(read_progress(folder.path()).label == "x");
  const std::vector<Progress> all = read_all_progress(folder.path());
  REQUIRE(all.size() == 2);
  CHECK(all[0].process == 7);
  CHECK(all[0].settled_at == 2);
  CHECK(all[1].settled_at == 0);
}

TEST_CASE("files that a run wrote are those that are still there, each once") {
  const RunFolder folder("written_files");
  CHECK(read_written_files(folder.path()).count == 0);
  const std::string model = folder.write("model\n.pt", "zeros");
  const std::string log = folder.write("a.log", "");
  const auto line = [](const std::string& path) { return path + '\0'; };
  folder.write("written", line(model) + line(log) + line(model) + line(log + ".removed") +
                              line(folder.path()) + "/cut o");
  const WrittenFiles written = read_written_files(folder.path());
  CHECK(written.count == 2);
  CHECK(written.paths == std::vector<std::string>{log, model});
}

}  // namespace
}  // namespace memledger::prediction
