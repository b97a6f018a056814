#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "prediction/prediction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "prediction/measure_variables.h"
#include "prediction/recorded_call.h"
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

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Run in_other_order(Run run) {
  run.addresses = Run::Addresses::kUp;
  return run;
}

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
  CHECK(prediction.sentence() == "does not fit: 200.0 MiB short at net.2, backward");
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

TEST_CASE("cuDNN's own plans need a margin of a twenty-fifth") {
  const auto predicted = [](std::string libraries) {
    Run low = run(kLow, {device(970)}), high = run(kHigh, {device(970)});
    low.processes[0].libraries = high.processes[0].libraries = std::move(libraries);
    return predict("test", {low, high});
  };
  CHECK(predicted("cuBLAS 13.1.0").verdict == Verdict::kFits);
  const Prediction close = predicted("cuBLAS 13.1.0, cuDNN 9.19.0");
  CHECK(close.verdict == Verdict::kNotKnown);
  CHECK(close.lacks_margin);
  CHECK(contains(close.sentence(), "a real device may take 4 % more"));
}

TEST_CASE("what a process that is not watched takes is not known") {
  constexpr char kWhy[] = "its LibTorch is 2.5.1, and this memledger was built for 2.11";
  Run alone = run(kLow, {}), beside = run(kHigh, {device(700)});
  alone.processes.clear();
  alone.why_unwatched = beside.why_unwatched = kWhy;
  for (const std::vector<Run>& runs : {std::vector{alone, alone}, std::vector{beside, beside}}) {
    const Prediction prediction = predict("test", runs);
    CHECK(prediction.verdict == Verdict::kNotKnown);
    CHECK(contains(prediction.sentence(), std::string("not measured: ") + kWhy));
    for (const DevicePrediction& device : prediction.devices)
      CHECK(device.verdict == Verdict::kNotKnown);
  }
  // A run that was ended after its step has reported the others only.
  for (Measurement& process : beside.processes) process.ended = Ended::kAfterStep;
  beside.program.status = 143;
  CHECK(predict("test", {beside, beside}).verdict == Verdict::kNotKnown);
  // Its own failure says more.
  alone.program.status = 3;
  CHECK(predict("test", {alone, alone}).verdict == Verdict::kFailed);
}

TEST_CASE(
    "of processes that are not watched the device's own figures are told, without a verdict") {
  Run less = run(kLow, {}), more = run(kHigh, {});
  less.processes.clear();
  more.processes.clear();
  less.why_unwatched = more.why_unwatched = "no process with LibTorch was watched to its end";
  // Two processes on one device, and one on another.
  less.unwatched_uses = {{7, false, 0, "test gpu", 1000 * kMiB, 10 * kMiB, 100 * kMiB},
                         {8, false, 0, "test gpu", 1000 * kMiB, 10 * kMiB, 50 * kMiB}};
  more.unwatched_uses = {{7, false, 0, "test gpu", 1000 * kMiB, 10 * kMiB, 300 * kMiB},
                         {7, false, 1, "other gpu", 500 * kMiB, 10 * kMiB, 40 * kMiB}};
  const Prediction prediction = predict("test", {less, more});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(contains(prediction.sentence(), "not all of it is watched: no process with LibTorch"));
  const Json devices = Json::parse(prediction.to_json()).at("unwatched_devices");
  REQUIRE(devices.size() == 2);
  CHECK(devices[0].at("device") == "cuda:0");
  CHECK(devices[0].at("capacity_bytes") == 1000 * kMiB);
  CHECK(devices[0].at("process_peak").at("low") == 150 * kMiB);
  CHECK(devices[0].at("process_peak").at("high") == 300 * kMiB);
  CHECK(devices[0].at("context").at("low") == 10 * kMiB);
  CHECK(devices[0].at("context").at("high") == 20 * kMiB);
  CHECK(devices[0].at("processes") == 2);
  CHECK(devices[1].at("gpu") == "other gpu");
  CHECK(devices[1].at("process_peak").at("low") == 0);  // the other run did not use it
  CHECK(contains(prediction.to_text(),
                 "cuda:0 (test gpu, 1000.0 MiB): took 150.0 to 300.0 MiB in these runs (the sum of "
                 "2 processes), 10.0 to 20.0 MiB of it the CUDA context"));
  // A watched process next to it makes no verdict of it either.
  Run beside = run(kLow, {device(700)});
  beside.why_unwatched = less.why_unwatched;
  beside.unwatched_uses = less.unwatched_uses;
  const Prediction both = predict("test", {beside, beside});
  CHECK(both.verdict == Verdict::kNotKnown);
  CHECK(both.unwatched_devices.size() == 1);
  CHECK(both.devices.size() == 1);
}

// What the driver saw of a process.
Run driver_run(Run::End end, std::vector<MeasuredDevice> devices) {
  Run of_driver = run(end, std::move(devices));
  of_driver.processes[0].is_by_driver = true;
  for (MeasuredDevice& device : of_driver.processes[0].devices)
    device.reserved_peak = device.allocated_peak = 0;
  of_driver.why_by_driver = "its LibTorch is 2.5.1";
  return of_driver;
}

TEST_CASE("a process that only the driver saw has a verdict, and no tensors") {
  const Prediction fits =
      predict("test", {driver_run(kLow, {device(700)}), driver_run(kHigh, {device(800)})});
  CHECK(fits.verdict == Verdict::kFits);
  const std::string text = fits.to_text();
  CHECK(contains(text, "allocations            600.0 MiB   700.0 MiB"));
  CHECK_FALSE(contains(text, "libraries"));
  CHECK(contains(text, "Not watched: its LibTorch is 2.5.1."));
  const Json json = Json::parse(fits.to_json());
  CHECK(json.at("unwatched_because") == "its LibTorch is 2.5.1");
  CHECK(json.at("evaluation_seen").is_null());
  // Next to a watched one both have their terms.
  Run both = driver_run(kLow, {device(300)});
  both.processes.push_back(run(kLow, {device(400)}).processes[0]);
  Run high = both;
  high.end = kHigh;
  CHECK(contains(predict("test", {both, high}).to_text(),
                 "allocations            200.0 MiB   200.0 MiB"));
  CHECK(contains(predict("test", {both, high}).to_text(),
                 "tensors                290.0 MiB   290.0 MiB"));
}

TEST_CASE("what the driver refused is why a program failed where that is shown") {
  Run low = driver_run(kLow, {device(990, 1)}), high = driver_run(kHigh, {device(990, 1)});
  low.program.status = high.program.status = 1;
  const Prediction doubtful = predict("test", {low, high});
  CHECK(doubtful.verdict == Verdict::kNotKnown);
  CHECK(contains(doubtful.sentence(), "memory was refused, and what came of that is not known"));
  Run unlimited = driver_run(kLow, {device(1500)});
  unlimited.is_limited = false;
  CHECK(predict("test", {low, high, unlimited}).verdict == Verdict::kDoesNotFit);
  unlimited.program.status = 1;
  CHECK(predict("test", {low, high, unlimited}).verdict == Verdict::kNotKnown);
  low.program.last_lines = "torch.OutOfMemoryError: CUDA out of memory.";
  CHECK(predict("test", {low, high}).verdict == Verdict::kDoesNotFit);
}

TEST_CASE("copies of which only the driver knows are tried each in its own way") {
  Run low = driver_run(kLow, {device(700)}), high = driver_run(kHigh, {device(800)});
  for (Run* const each : {&low, &high}) {
    each->processes[0].devices[0].allocations = 10;
    for (const char* const site : {kCopiedTruths, kCopiedNumbers, kCopiedFractions, kCopiedMixed}) {
      MeasuredRead read;
      read.op = site;
      read.site = site;
      const bool is_truth = site == kCopiedTruths || site == kCopiedMixed;
      read.kind = is_truth ? MeasuredRead::Kind::kBranch : MeasuredRead::Kind::kNumber;
      read.count = 1;
      read.has_upper_bound = false;
      each->processes[0].unknown_reads.push_back(read);
    }
  }
  std::vector<Run> runs = {low, high};
  CHECK(predict("test", runs).verdict == Verdict::kNotKnown);
  const std::vector<AssumingRun> wanted = assuming_runs("test", runs);
  CHECK(wanted.size() == 10);
  for (const AssumingRun& one : wanted) {
    REQUIRE(one.assumed_reads.size() == 1);
    CHECK(contains(one.assumed_reads[0].site, "copied:"));
    Run assuming = high;
    assuming.assumed_reads = one.assumed_reads;
    runs.push_back(assuming);
  }
  CHECK(assuming_runs("test", runs).empty());
  CHECK(predict("test", runs).verdict == Verdict::kFits);
  // Where a program takes no huge number, another is tried, as the driver does not see small ones.
  for (Run& one : runs) {
    if (!one.assumed_reads.empty() && one.assumed_reads[0].value == kAssumeHuge)
      one.program.status = 1;
  }
  CHECK(assuming_runs("test", runs).size() == 2);
  CHECK(assuming_runs("test", runs)[0].assumed_reads[0].value == kAssumeMillion);
}

TEST_CASE("NVIDIA's own libraries are named") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  CHECK(Json::parse(predict("test", {low, high}).to_json()).at("real_libraries").is_null());
  CHECK_FALSE(contains(predict("test", {low, high}).to_text(), "NVIDIA's own libraries"));
  // One that is loaded late is missing in a run that ended early.
  low.processes[0].libraries = "cuBLAS 13.1.0";
  high.processes[0].libraries = "cuBLAS 13.1.0, cuDNN 9.19.0";
  const Prediction real = predict("test", {low, high});
  CHECK(contains(real.to_text(), "NVIDIA's own libraries: cuBLAS 13.1.0, cuDNN 9.19.0\n"));
  CHECK(Json::parse(real.to_json()).at("real_libraries") == "cuBLAS 13.1.0, cuDNN 9.19.0");
}

TEST_CASE("what would narrow the interval is said where the interval is wide") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  CHECK_FALSE(contains(predict("test", {low, high}).to_text(), "cuDNN"));
  for (Run* const each : {&low, &high}) each->processes[0].missing_cudnn = "cudnn==9";
  const Prediction wide = predict("test", {low, high});
  CHECK(contains(wide.to_text(), "pip install 'cudnn==9'\n"));
  CHECK(Json::parse(wide.to_json()).at("missing_library") == "cudnn==9");
  high.processes[0].devices = low.processes[0].devices;
  CHECK_FALSE(contains(predict("test", {low, high}).to_text(), "pip install"));
}

TEST_CASE("it does not fit only where the low end fails in both orders of addresses") {
  const Run fits = run(kLow, {device(900)}), fails = failed_run(kLow, 990);
  const Run high = failed_run(kHigh, 990);
  CHECK(predict("test", {fails, in_other_order(fails), high}).verdict == Verdict::kDoesNotFit);
  CHECK(predict("test", {fails, in_other_order(fits), high}).verdict == Verdict::kNotKnown);
  CHECK(predict("test", {fits, in_other_order(fails), high}).verdict == Verdict::kNotKnown);
}

TEST_CASE("it fits only if it does in both orders, and peaks lie between those of all runs") {
  const Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  const Run higher = in_other_order(run(kHigh, {device(850)}));
  const Run lower = in_other_order(run(kLow, {device(650)}));
  const Prediction fits = predict("test", {low, higher, lower, high});
  CHECK(fits.verdict == Verdict::kFits);
  CHECK(fits.devices[0].process_peak.low == 650 * kMiB);
  CHECK(fits.devices[0].process_peak.high == 850 * kMiB);
  CHECK(predict("test", {low, in_other_order(failed_run(kHigh, 990)), lower, high}).verdict ==
        Verdict::kNotKnown);
  // A run without a limit stands for the one of its own order.
  const Run fails = in_other_order(failed_run(kHigh, 990));
  const Run unlimited = in_other_order(run(kHigh, {device(1100)}, false));
  const Prediction mixed = predict("test", {low, fails, lower, high, unlimited});
  CHECK(mixed.devices[0].process_peak.low == 650 * kMiB);
  CHECK(mixed.devices[0].process_peak.high == 1100 * kMiB);
  CHECK(mixed.sentence() ==
        "not known: it takes 650.0 MiB to 1.1 GiB, and the device has 1000.0 MiB");
}

MeasuredRead open_read(int64_t bytes) {
  MeasuredRead read{"aten::repeat_interleave", "moe.cc:88", 3, bytes};
  read.has_upper_bound = false;
  return read;
}

TEST_CASE("a size without an upper bound is never told to fit") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  high.processes[0].unknown_reads = {open_read(64 * kMiB)};
  Prediction prediction = predict("test", {low, high});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.devices[0].verdict == Verdict::kNotKnown);
  CHECK(prediction.sentence() ==
        "not known: 64.0 MiB depend on values that only the device has (aten::repeat_interleave in "
        "moe.cc:88)");
  CHECK(exit_status({prediction}) == 11);

  SUBCASE("with a bound, reads=all has seen the most") {
    high.processes[0].unknown_reads[0].has_upper_bound = true;
    CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  }
  SUBCASE("memory of a library without a bound is no value") {
    high.processes[0].unknown_reads[0].kind = MeasuredRead::Kind::kModel;
    high.processes[0].unknown_reads[0].op = "cuFFT's work area";
    prediction = predict("test", {low, high});
    CHECK(prediction.verdict == Verdict::kNotKnown);
    CHECK(prediction.sentence() ==
          "not known: nobody says at most how much memory cuFFT's work area takes");
    CHECK(contains(prediction.to_text(), "cuFFT's work area in moe.cc:88: memory without"));
    CHECK_FALSE(contains(prediction.to_text(), "Values that only the device has"));
  }
  SUBCASE("what does not fit with nothing does not fit with more") {
    Run fails = failed_run(kLow, 990);
    fails.processes[0].unknown_reads = {open_read(0)};
    CHECK(predict("test", {fails, failed_run(kHigh, 990)}).verdict == Verdict::kDoesNotFit);
  }
}

// Runs of both orders in which sizes differ each time, with less memory.
std::vector<Run> varied_runs(int64_t peak_mib, int64_t held_back_mib) {
  Run varied = run(kHigh, {device(peak_mib)});
  varied.varies_sizes = true;
  // They are part of the context.
  varied.held_back_bytes = held_back_mib * kMiB;
  varied.processes[0].devices[0].process_peak += varied.held_back_bytes;
  varied.processes[0].devices[0].context_bytes += varied.held_back_bytes;
  return {varied, in_other_order(varied)};
}

TEST_CASE("sizes that differ each time need more to spare than the largest alone") {
  Run low = run(kLow, {device(500)}), high = run(kHigh, {device(800)});
  high.processes[0].unknown_reads = {open_read(64 * kMiB)};
  high.processes[0].unknown_reads[0].has_upper_bound = true;
  const auto with = [&](const std::vector<Run>& varied) {
    std::vector<Run> runs = {low, high};
    runs.insert(runs.end(), varied.begin(), varied.end());
    return predict("test", runs);
  };
  // 200 MiB are to spare, and the sizes take up to 300: a quarter of that is enough.
  const VariedSizes wanted = varied_sizes_to_test({low, high});
  CHECK(wanted.are_needed);
  CHECK(wanted.held_back_bytes == 75 * kMiB);
  const Prediction unproved = with({});
  CHECK(unproved.verdict == Verdict::kNotKnown);
  CHECK(unproved.devices[0].verdict == Verdict::kNotKnown);
  CHECK(unproved.sentence() ==
        "not known: only 200.0 MiB is to spare, and sizes that differ each time cut the cache into "
        "more pieces (aten::repeat_interleave in moe.cc:88)");
  const Prediction proved = with(varied_runs(850, 75));
  CHECK(proved.verdict == Verdict::kFits);
  CHECK(contains(proved.to_text(), "It fits with 75.0 MiB less, too, where sizes"));
  CHECK(with(varied_runs(850, 74)).verdict == Verdict::kNotKnown);

  // Their peaks are part of the interval, and so are their terms.
  CHECK(proved.devices[0].process_peak.high == 850 * kMiB);
  CHECK(proved.devices[0].process_peak.low == 500 * kMiB);
  CHECK(proved.devices[0].reserved_peak.high == 750 * kMiB);
  int64_t sum = 0;
  for (const Term& term : proved.devices[0].terms) sum += term.high;
  CHECK(sum == 850 * kMiB);
  // Unless the device was too small for them.
  std::vector<Run> short_runs = varied_runs(920, 75);
  short_runs[0].processes[0].devices[0].retries = 1;
  short_runs.push_back(run(kHigh, {device(1100)}, /*is_limited=*/false));
  short_runs[2].varies_sizes = true;
  const Prediction retried = with(short_runs);
  CHECK(retried.verdict == Verdict::kFits);
  CHECK(retried.devices[0].process_peak.high == 1100 * kMiB);

  SUBCASE("one that fails leaves it open, whatever is to spare") {
    std::vector<Run> varied = varied_runs(850, 0);
    varied[1] = in_other_order(failed_run(kHigh, 990));
    varied[1].varies_sizes = true;
    CHECK(with(varied).verdict == Verdict::kNotKnown);
    high.processes[0].devices = {device(600)};
    CHECK(with(varied).verdict == Verdict::kNotKnown);
  }
  SUBCASE("as much as all of them is enough, even if the program fails where sizes differ") {
    high.processes[0].devices = {device(740)};
    CHECK(varied_sizes_to_test({low, high}).held_back_bytes == 0);
    std::vector<Run> varied = varied_runs(700, 0);
    varied[0].program.status = 1;
    varied[0].processes[0].ended = Ended::kNot;
    CHECK(with(varied).verdict == Verdict::kFits);
    high.processes[0].devices = {device(800)};
    CHECK(with(varied).verdict == Verdict::kNotKnown);
  }
  SUBCASE("where the low end assumed the largest, too, all that is allocated may be sizes") {
    low = run(kLow, {device(800)});
    low.assumes_sizes = true;
    CHECK(varied_sizes_to_test({low, high}).held_back_bytes == 690 * kMiB / 4);
  }
  SUBCASE("not where the user has said what to assume, or no size was read") {
    CHECK(predict("h100,reads=all", {low, high}).verdict == Verdict::kFits);
    high.processes[0].unknown_reads[0].kind = MeasuredRead::Kind::kBranch;
    CHECK_FALSE(varied_sizes_to_test({low, high}).are_needed);
    CHECK(with({}).verdict == Verdict::kFits);
  }
  SUBCASE("nor where it does not fit anyway") {
    CHECK_FALSE(varied_sizes_to_test({low, failed_run(kHigh, 990)}).are_needed);
  }
}

TEST_CASE("gradients without a step, beside a value that may steer, are never told to fit") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  for (Run* const one : {&low, &high}) {
    Measurement& process = one->processes[0];
    process.peak.emplace();
    process.peak->by_role["gradient"] = kMiB;
    process.unknown_reads = {open_read(0)};
    process.unknown_reads[0].op = "aten::item";
    process.unknown_reads[0].kind = MeasuredRead::Kind::kBranch;
    process.unknown_reads[0].has_upper_bound = true;
  }
  const Prediction prediction = predict("test", {low, high});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(contains(prediction.sentence(), "no optimizer stepped"));
  CHECK(contains(prediction.sentence(), "aten::item"));
  SUBCASE("it was read to be sent to other ranks, and steers nothing") {
    for (Run* const one : {&low, &high})
      one->processes[0].unknown_reads[0].op = "c10d::_allgather_base_";
    CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
    CHECK(contains(predict("test", {low, high}).to_text(), "fractions for other ranks, sent as 0"));
  }
  SUBCASE("a step was seen") {
    low.processes[0].steps = high.processes[0].steps = 1;
    CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  }
  SUBCASE("nothing was read") {
    low.processes[0].unknown_reads.clear();
    high.processes[0].unknown_reads.clear();
    CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  }
  SUBCASE("there are no gradients: inference") {
    low.processes[0].peak->by_role.clear();
    high.processes[0].peak->by_role.clear();
    CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  }
}

TEST_CASE("CUDA's pool counts no allocations: a probe is held to the peak, and the text says so") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  for (Run* const each : {&low, &high})
    each->processes[0].allocator_settings = "backend:cudaMallocAsync";
  high.processes[0].unknown_reads = {open_read(0)};
  high.processes[0].unknown_reads[0].kind = MeasuredRead::Kind::kBranch;
  high.processes[0].unknown_reads[0].site = "a";
  Run probe = high;
  probe.assumed_reads = {{"a", "other"}};
  Prediction prediction = predict("test", {low, high, probe});
  CHECK(prediction.verdict == Verdict::kFits);
  CHECK(contains(prediction.to_text(), "how it falls into pieces is not known"));
  CHECK(prediction.unknown_reads[0].effect == MeasuredRead::Effect::kNone);
  probe.processes[0].devices[0].allocated_peak += kMiB;
  CHECK(predict("test", {low, high, probe}).unknown_reads[0].effect ==
        MeasuredRead::Effect::kWithin);
  prediction.verdict = Verdict::kDoesNotFit;
  CHECK_FALSE(settings_worth_trying(prediction, "").empty());
  CHECK(settings_worth_trying(prediction, "backend:cudaMallocAsync,").empty());
}

TEST_CASE("the largest stand in columns, by their names or their layers") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  MeasuredPeak peak;
  peak.op = "aten::conv2d";
  peak.parts = {{"activations", 7 * kMiB, kMiB}, {"optimizer state", 3 * kMiB, 0}};
  // The largest of more layers are kept.
  peak.by_layer = {
      {"my_net.user_embed", kMiB}, {"b", kMiB / 2}, {"d", kMiB}, {"e", 2 * kMiB}, {"f", kMiB / 4}};
  peak.without_layer_bytes = 5 * kMiB;
  const std::string place =
      "a.cc:1 (anonymous namespace)::Net<int>::forward(at::Tensor const&, f(*)(int)) const";
  peak.largest = {
      {"my_net.weight", "aten::to", "forward", "my_net", "a.cc:2 main", "(3,)", 2 * kMiB, false},
      {"Tensor7", "aten::conv2d", "backward", "conv1", place, "", kMiB, true},
      {"Tensor8", "aten::mm", "other", "", "b.cc:3 Net::operator()(int)", "(64, 64)", kMiB, true},
      {"cache.0…63.k", "aten::zeros", "other", "", "c.cc:1 f", "(8,)", 4 * kMiB, false, 64,
       kMiB / 16}};
  high.processes[0].peak = peak;
  const std::string text = predict("test", {low, high}).to_text();
  // Each adds up to the total.
  CHECK(contains(text, "  tensors requested 10.0 MiB\n"));
  CHECK(contains(text, "by part:  activations 7.0 MiB, optimizer state 3.0 MiB\n"));
  CHECK(contains(text,
                 "by layer: e 2.0 MiB, d 1.0 MiB, my_net.user_embed 1.0 MiB, b 512.0 KiB, "
                 "other layers 512.0 KiB, no layer 5.0 MiB\n"));
  CHECK(contains(
      text,
      "       2.0 MiB                 my_net.weight  (3,)         aten::to, forward, at a.cc:2 "
      "main\n"
      "       1.0 MiB                                (workspace)  aten::conv2d, backward, in "
      "conv1, "
      "at a.cc:1 (anonymous namespace)::Net<int>::forward\n"
      "       1.0 MiB                                (64, 64)     aten::mm, at b.cc:3 "
      "Net::operator()\n"
      "       4.0 MiB  64 x 64.0 KiB  cache.0…63.k   (8,)         aten::zeros, at c.cc:1 f\n"
      "       2.0 MiB  all others\n"));
}

TEST_CASE("no device is said to fit where the verdict is not known or failed") {
  Run bad = run(kLow, {device(500)});
  bad.program.timed_out = true;
  const Prediction prediction = predict("test", {bad, run(kHigh, {device(500)})});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.devices[0].verdict == Verdict::kNotKnown);
}

TEST_CASE("a low end that assumed sizes proves nothing") {
  Run assumed = failed_run(kLow, 990);
  assumed.assumes_sizes = true;
  const Prediction prediction = predict("test", {assumed, failed_run(kHigh, 990)});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(contains(prediction.to_text(), "so the low end assumes the largest, too"));
}

TEST_CASE("a device that a run did not come to is told to fit only if its peak does") {
  const auto two = [](MeasuredDevice first, MeasuredDevice second) {
    return std::vector<MeasuredDevice>{std::move(first), std::move(second)};
  };
  Run low = run(kLow, two(device(990, 1), device(200, 0, 1)));
  low.processes[0].ended = Ended::kNot;
  low.program.status = 134;
  Run high = low;
  high.end = kHigh;
  const auto with_second = [&](int64_t peak) {
    return predict("test", {low, high, run(kLow, two(device(1200), device(peak, 0, 1)), false),
                            run(kHigh, two(device(1200), device(peak, 0, 1)), false)});
  };
  CHECK(with_second(900).devices[0].verdict == Verdict::kDoesNotFit);
  CHECK(with_second(900).devices[1].verdict == Verdict::kFits);
  CHECK(with_second(1100).devices[1].verdict == Verdict::kNotKnown);
}

TEST_CASE("the terms of each end add up to the process's peak") {
  const Prediction prediction =
      predict("test", {run(kLow, {device(700)}), run(kHigh, {device(800)})});
  int64_t low = 0, high = 0;
  for (const Term& term : prediction.devices[0].terms) {
    low += term.low;
    high += term.high;
  }
  CHECK(low == 700 * kMiB);
  CHECK(high == 800 * kMiB);
  CHECK(prediction.devices[0].terms[1].name == "cached by LibTorch");
  CHECK(prediction.devices[0].terms[1].high == 10 * kMiB);
}

TEST_CASE("settings of the allocator are tried where they can change something") {
  const auto failing = [](int64_t reserved_mib, int64_t allocated_mib) {
    MeasuredDevice of_run = device(reserved_mib + 100, 1);
    of_run.allocated_peak = allocated_mib * kMiB;
    Run low = run(kLow, {of_run}), high = run(kHigh, {of_run});
    return predict("test", {low, high});
  };
  const std::vector<std::string> all = settings_worth_trying(failing(1000, 800), "");
  CHECK(all.size() == 3);
  CHECK(all[0] == "expandable_segments:True");
  CHECK(settings_worth_trying(failing(1000, 800), "expandable_segments:False,").size() == 2);
  // Tensors alone take more than there is.
  CHECK(settings_worth_trying(failing(1200, 950), "").empty());
  const Prediction fits = predict("test", {run(kLow, {device(700)}), run(kHigh, {device(700)})});
  CHECK(settings_worth_trying(fits, "").empty());
  // Nor where it fits, however much is cached, or where a size has no largest value.
  MeasuredDevice cached = device(900);
  cached.allocated_peak = 100 * kMiB;
  CHECK(settings_worth_trying(predict("test", {run(kLow, {cached}), run(kHigh, {cached})}), "")
            .empty());
  Run open_high = run(kHigh, {cached});
  open_high.processes[0].unknown_reads = {open_read(kMiB)};
  CHECK(settings_worth_trying(predict("test", {run(kLow, {cached}), open_high}), "").empty());

  Prediction prediction = failing(1000, 800);
  add_setting("max_split_size_mb:128", failing(1000, 800), prediction);
  CHECK(prediction.remedy.empty());
  add_setting("expandable_segments:True", fits, prediction);
  CHECK(prediction.sentence() == "fits with expandable_segments");
  CHECK(contains(settings_text(prediction), "expandable_segments:True        fits, 600.0 MiB"));
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
  CHECK(contains(prediction.sentence(), "failed: it used no GPU: there is nothing to measure"));

  Run slow = run(kLow, {device(500)});
  slow.program.timed_out = true;
  prediction = predict("test", {slow, slow});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(exit_status({prediction}) == 11);
}

std::string failure_of(int status, const std::string& output) {
  Run bad = run(kLow, {device(500)});
  bad.program.status = status;
  bad.program.last_lines = output;
  bad.processes[0].ended = Ended::kNot;
  return predict("test", {bad, bad}).sentence();
}

TEST_CASE("why a program failed is one sentence that names the cause") {
  CHECK(failure_of(139, "") == "failed: SIGSEGV ended the program");
  CHECK(failure_of(1,
                   "Traceback …\nFileNotFoundError: [Errno 2] No such file or directory: "
                   "'train.bin'\n") ==
        "failed: the program ended with 1: it needs a file that is not there (FileNotFoundError: "
        "[Errno 2] No such file or directory: 'train.bin')");
  CHECK(failure_of(1, "EOFError: EOF when reading a line") ==
        "failed: the program ended with 1: it reads standard input, which is empty here (EOFError: "
        "EOF when reading a line)");
  CHECK(
      failure_of(1, "torch.AcceleratorError: CUDA error: invalid device ordinal\n") ==
      "failed: the program ended with 1: it wants more GPUs than it has: --gpu=…,count=N gives it "
      "several (torch.AcceleratorError: CUDA error: invalid device ordinal)");
  CHECK(contains(failure_of(1, "RuntimeError: No CUDA GPUs are available\n"),
                 "it sees no GPU: is CUDA_VISIBLE_DEVICES set"));
  CHECK(failure_of(1, "    import x\nModuleNotFoundError: No module named 'PIL'\nbye") ==
        "failed: the program ended with 1: ModuleNotFoundError: No module named 'PIL'");
  CHECK(contains(failure_of(1, "AssertionError: Torch not compiled with CUDA enabled"),
                 "its PyTorch is built without CUDA"));

  Run slow = run(kLow, {device(500)});
  slow.program.timed_out = true;
  slow.program.timeout_s = 60;
  slow.steps = 1;
  CHECK(predict("test", {slow, slow}).sentence() ==
        "not known: the program did not end within 60 s, and it made 1 optimizer step, and its "
        "peak still moved; --timeout=SECONDS gives it more");

  Run misled = run(kLow, {device(500)});
  misled.program.status = 1;
  misled.processes[0].ended = Ended::kNot;
  misled.processes[0].unknown_reads = {{"aten::nonzero", "boxes.py:7", 1, 0}};
  const std::string sentence = predict("test", {misled, misled}).sentence();
  CHECK(contains(sentence, "aten::nonzero in boxes.py:7"));
  CHECK(contains(sentence, "reads="));
  misled.processes[0].unknown_reads[0].kind = MeasuredRead::Kind::kNumber;
  misled.processes[0].cause = "SIGABRT, uncaught exception: no boxes";
  CHECK(predict("test", {misled, misled}).sentence() ==
        "failed: the program ended with 1: uncaught exception: no boxes, perhaps because it read a "
        "value that only the device has as 0 (aten::nonzero in boxes.py:7); "
        "--assume=boxes.py:7=VALUE says what it is");
  // The last one that was read, wherever it stands.
  Run by_size = misled;
  std::vector<MeasuredRead>& reads = by_size.processes[0].unknown_reads;
  reads.insert(reads.begin(), {"aten::to", "boxes.py:9", 1, 0});
  reads[0].last_read = 5;
  reads[1].last_read = 3;
  CHECK(contains(predict("test", {by_size, by_size}).sentence(),
                 "as the smallest possible (aten::to in boxes.py:9)"));
  // The other end goes on: what is known is not all.
  const Prediction half = predict("test", {misled, run(kHigh, {device(500)})});
  CHECK(half.verdict == Verdict::kNotKnown);
  CHECK(contains(half.sentence(), "where sizes that only the device has are the smallest"));
}

TEST_CASE("steps that went on to differ leave it open whether it fits") {
  Run ended = run(kLow, {device(500)}), other = run(kHigh, {device(500)});
  for (Run* const one : {&ended, &other}) {
    one->processes[0].ended = Ended::kAfterStep;
    one->processes[0].kind_of_steps = Steps::kAlike;
  }
  CHECK(predict("test", {ended, other}).verdict == Verdict::kFits);
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(predict("test", {ended, other}).to_json(), R"("until":"alike")"));
  other.processes[0].kind_of_steps = Steps::kDiffer;
  const Prediction prediction = predict("test", {ended, other});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(has(prediction.sentence(), "not known: its steps differ in what they allocate"));
  CHECK(has(prediction.to_json(), R"("until":"differ")"));
}

TEST_CASE("steps that were alike need something to spare for another, or it is not known") {
  Run low = run(kLow, {device(500)}), high = run(kHigh, {device(968)});
  for (Run* const one : {&low, &high}) {
    one->processes[0].ended = Ended::kAfterStep;
    one->processes[0].kind_of_steps = Steps::kAlike;
  }
  // 32 MiB are enough.
  CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  CHECK(margin_to_test({low, high}) == 0);
  // 31 are not, unless the program fits with 32 less, too.
  high.processes[0].devices = {device(969)};
  const Prediction narrow = predict("test", {low, high});
  CHECK(narrow.verdict == Verdict::kNotKnown);
  CHECK(narrow.devices[0].verdict == Verdict::kNotKnown);
  CHECK(narrow.sentence() ==
        "not known: only 31.0 MiB is to spare, and a step of another kind, such as an epoch's "
        "smaller last batch, may take more; --until=exit runs all");
  REQUIRE(margin_to_test({low, high}) == 32 * kMiB);
  Run with_less = high;
  with_less.held_back_bytes = 32 * kMiB;
  const Prediction proved = predict("test", {low, high, with_less});
  CHECK(proved.verdict == Verdict::kFits);
  CHECK(contains(proved.to_text(), "It fits with 32.0 MiB less, too.\n"));
  CHECK(proved.devices[0].process_peak.high == 969 * kMiB);
  Run failed = failed_run(kHigh, 960);
  failed.held_back_bytes = 32 * kMiB;
  CHECK(predict("test", {low, high, with_less, failed}).verdict == Verdict::kNotKnown);
  // What LibTorch can free again is not short.
  high.processes[0].devices = {device(1010)};
  CHECK(contains(predict("test", {low, high}).sentence(), "not known: nothing is to spare"));
  CHECK(contains(predict("test", {low, high, with_less}).to_text(),
                 "test: fits through step 0, as LibTorch empties its cache; no evaluation"));
}

TEST_CASE("every program needs 1 % or 24 MiB to spare, as a real device may take more") {
  Run low = run(kLow, {device(500)}), high = run(kHigh, {device(976)});
  CHECK(predict("test", {low, high}).verdict == Verdict::kFits);
  high.processes[0].devices = {device(977)};
  const Prediction narrow = predict("test", {low, high});
  CHECK(
      narrow.sentence() ==
      "not known: only 23.0 MiB is to spare, and a real device may take up to 1 % or 24 MiB more");
  CHECK(exit_status({narrow}) == 11);
  REQUIRE(margin_to_test({low, high}) == 24 * kMiB);
  Run with_less = high;
  with_less.held_back_bytes = 24 * kMiB;
  CHECK(predict("test", {low, high, with_less}).verdict == Verdict::kFits);
  // So where the steps of several kinds came again.
  for (Run* const one : {&low, &high}) {
    one->processes[0].ended = Ended::kAfterStep;
    one->processes[0].kind_of_steps = Steps::kRepeat;
  }
  CHECK(predict("test", {low, high}).verdict == Verdict::kNotKnown);
}

// A run that ended after a step.
Run cut_run(Run::End end, int64_t peak_mib, int64_t steps) {
  Run cut = run(end, {device(peak_mib)});
  cut.processes[0].ended = Ended::kAfterStep;
  cut.processes[0].steps = steps;
  cut.processes[0].kind_of_steps = Steps::kAlike;
  return cut;
}

TEST_CASE("what was not seen is in the sentence, in the first line and in the JSON") {
  Run low = cut_run(kLow, 500, 20), high = cut_run(kHigh, 500, 289);
  Prediction prediction = predict("test", {low, high});
  CHECK(exit_status({prediction}) == 0);
  CHECK(prediction.sentence() == "fits through step 289; no evaluation was seen");
  CHECK(contains(prediction.to_text(),
                 "test: fits through step 289, 500.0 MiB to spare; no evaluation was seen\n"));
  CHECK(contains(to_text({prediction, prediction}),
                 "  fits through step 289, 500.0 MiB to spare; no evaluation was seen\n"));
  Json json = Json::parse(prediction.to_json());
  CHECK(json["whole_run"] == false);
  CHECK(json["through_step"] == 289);
  CHECK(json["evaluation_seen"] == false);

  high.processes[0].stages = {{Stage::kTraining, 0, 300 * kMiB, 500 * kMiB},
                              {Stage::kEvaluation, 0, 200 * kMiB, 450 * kMiB}};
  low.processes[0].stages = {{Stage::kTraining, 0, 250 * kMiB, 480 * kMiB}};
  prediction = predict("test", {low, high});
  CHECK(prediction.sentence() == "fits through step 289");
  const std::string text = prediction.to_text();
  CHECK(contains(text, "  in training            480.0 MiB   500.0 MiB   300.0 MiB of tensors\n"));
  // The run of the low end ended before it.
  CHECK(contains(text, "  in evaluation                  ?   450.0 MiB   200.0 MiB of tensors\n"));
  json = Json::parse(prediction.to_json())["devices"][0]["stages"];
  CHECK(json[0]["stage"] == "training");
  CHECK(json[0]["process_peak"] == Json{{"low", 480 * kMiB}, {"high", 500 * kMiB}});
  CHECK(json[1]["process_peak"]["low"] == 0);

  SUBCASE("one run that came to the program's end has seen all of it") {
    high.processes[0].ended = Ended::kAtExit;
    prediction = predict("test", {low, high});
    CHECK(prediction.sentence() == "fits");
    json = Json::parse(prediction.to_json());
    CHECK(json["whole_run"] == true);
    CHECK(json["through_step"].is_null());
    CHECK(json["program"]["until"] == "exit");
  }
  SUBCASE("of a step that was handed over how often it ran") {
    for (Run* const one : {&low, &high}) {
      one->processes[0].ended = Ended::kAfterCall;
      one->processes[0].calls = 2;
      one->processes[0].stages.clear();
    }
    CHECK(predict("test", {low, high}).sentence() ==
          "fits through run 2 of the step; no evaluation was seen");
  }
}

TEST_CASE("where the run that went on shows more, the others are made again to come as far") {
  const Run low = cut_run(kLow, 500, 20), high = cut_run(kHigh, 500, 20);
  Run further = in_other_order(cut_run(kHigh, 500, 900));
  further.goes_on = true;
  CHECK_FALSE(needs_others_as_far({low, high, further}));
  further.processes[0].devices = {device(800)};
  further.processes[0].has_grown_since = true;
  CHECK(needs_others_as_far({low, high, further}));
  // The new ones stand in the places of the old.
  Run low_again = cut_run(kLow, 790, 1000), high_again = cut_run(kHigh, 810, 1000);
  for (Run* const again : {&low_again, &high_again}) again->as_far = true;
  const Prediction all = predict("test", {low, high, further, low_again, high_again});
  CHECK(all.devices[0].process_peak.low == 790 * kMiB);
  CHECK(all.devices[0].process_peak.high == 810 * kMiB);
  CHECK(all.verdict == Verdict::kFits);

  Run fails = in_other_order(failed_run(kHigh, 990));
  fails.goes_on = true;
  // One that fails before it has shown its peak fails as the others do.
  CHECK_FALSE(needs_others_as_far({low, high, fails}));
  fails.processes[0].kind_when_settled = Steps::kAlike;
  CHECK(needs_others_as_far({low, high, fails}));
  CHECK(predict("test", {low, high, fails}).verdict == Verdict::kNotKnown);
  Run low_fails = failed_run(kLow, 990), high_fails = failed_run(kHigh, 990);
  for (Run* const again : {&low_fails, &high_fails}) again->as_far = true;
  CHECK(predict("test", {low, high, fails, low_fails, high_fails}).verdict == Verdict::kDoesNotFit);

  SUBCASE("or where it saw steps to the end that went on to differ") {
    further.processes[0].has_grown_since = false;
    further.processes[0].ended = Ended::kAtExit;
    further.processes[0].kind_when_settled = Steps::kDiffer;
    CHECK(needs_others_as_far({low, high, further}));
  }
}

TEST_CASE("what fails in the run that went on, after its peak, is not dropped") {
  const Run low = cut_run(kLow, 500, 20), high = cut_run(kHigh, 500, 20);
  Run further = in_other_order(cut_run(kHigh, 500, 900));
  further.goes_on = true;
  // Killed after its figures had been written at the peak.
  further.program.status = 128 + 9;
  const Prediction prediction = predict("test", {low, high, further});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(contains(prediction.reason, "(after the steps that were seen, in the run that went on)"));
  // It was killed because it had been asked to end, and waited for something.
  further.was_enough = true;
  CHECK(predict("test", {low, high, further}).verdict == Verdict::kFits);
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

TEST_CASE("several machines have one schema: their devices, and the rest of the one that decides") {
  Prediction small = predict("l4", {failed_run(kLow, 990), failed_run(kHigh, 990)});
  Prediction large = predict("h100", {run(kLow, {device(700)}), run(kHigh, {device(800)})});
  small.writes.held_by = WritesHeldBy::kNamespace;
  small.writes.files = {{"/data/model.pt", 96, false}, {"/data/old.pt", 0, true}};
  small.writes.bytes = 96;
  for (DevicePrediction& cuda : large.devices) cuda.capacity_bytes = 8 * kCapacity;
  const Json json = Json::parse(to_json({large, small}));
  CHECK(json["schema"] == "memledger.prediction/1");
  CHECK(json["verdict"] == "does not fit");
  CHECK(json["specification"] == "l4");
  CHECK(json["writes_held_by"] == "namespace");
  CHECK(json["written_files"] == Json::array({"/data/model.pt"}));
  CHECK(json["removed_files"] == Json::array({"/data/old.pt"}));
  CHECK(json["written_bytes"] == 96);
  REQUIRE(json["devices"].size() == 2);
  CHECK(json["devices"][0]["specification"] == "h100");
  CHECK(json["devices"][0]["verdict"] == "fits");
  CHECK(json["devices"][1]["specification"] == "l4");
  CHECK(json["devices"][1]["verdict"] == "does not fit");

  const std::string text = to_text({small, large});
  CHECK(text.rfind("GPU", 0) == 0);
  CHECK(text.find("h100  ") < text.find("l4    "));
  CHECK(contains(text, "h100 in detail:"));
  CHECK(in_reading_order({small, large})[0].specification == "h100");
}

TEST_CASE("of a program that fails on all machines alike it is said once") {
  Run without_gpu;
  without_gpu.end = kLow;
  const std::vector<Prediction> all = {predict("h100", {without_gpu}),
                                       predict("l4", {without_gpu})};
  const std::string text = to_text(all);
  CHECK(text.rfind("h100, l4: failed: it used no GPU", 0) == 0);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
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
                                  {{"T", "op", "other", "conv1", "a.cc:1", "(1,)", 9, true, 3, 3}},
                                  {{"net.0", 5}, {"net.2", 7}},
                                  6,
                                  {{"net.2", 6}},
                                  {{"activations", 9, 4}}};
  measurement.cause = "SIGSEGV";
  measurement.unstepped_parameters = 13;
  measurement.calls = 2;
  measurement.kind_when_settled = Steps::kRepeat;
  measurement.has_grown_since = true;
  measurement.stages = {{Stage::kTraining, 0, 5, 6}, {Stage::kNeither, 1, 7, 8}};
  measurement.failure->free_bytes = 3;
  measurement.allocator_settings = "max_split_size_mb:64";
  measurement.missing_cudnn = "nvidia-cudnn-cu13==9.19.*";
  measurement.devices[0].allocations = 11;
  measurement.devices[0].requested_in_all = 12;
  using Kind = MeasuredRead::Kind;
  measurement.unknown_reads = {{"aten::nonzero", "b.cc:2", 4, 8},
                               {"aten::one_hot", "b.cc:3", 1, 0, Kind::kSize, false},
                               {"aten::item", "b.cc:4", 1, 0, Kind::kNumber, false},
                               {"aten::copy_", "b.cc:5", 1, 0, Kind::kReceived},
                               {"aten::is_nonzero", "", 2, 0, Kind::kBranch},
                               {"aten::item", "b.cc:6", 1, 0, Kind::kFraction, false, "5a", 1.5},
                               {"cuFFT's work area", "", 2, 0, Kind::kModel, false}};
  const std::string text = to_json(measurement);
  const auto read = parse_measurement(text);
  REQUIRE(read.ok());
  CHECK(to_json(*read) == text);
  CHECK(read->failure->layer == "net.2");
  CHECK(read->peak->by_role.at("parameter") == 5);
  CHECK(read->peak->by_layer.at("net.2") == 7);
  CHECK(read->peak->activations_by_layer.at("net.2") == 6);
  CHECK(read->peak->largest.at(0).layer == "conv1");
  CHECK(read->peak->largest.at(0).is_anonymous);
  CHECK(read->peak->largest.at(0).count == 3);
  CHECK(read->peak->largest.at(0).each_bytes == 3);
  CHECK(read->peak->without_layer_bytes == 6);
  CHECK(read->peak->parts.at(0).part == "activations");
  CHECK(read->peak->parts.at(0).inferred_bytes == 4);
  CHECK(read->cause == "SIGSEGV");
  CHECK(read->unstepped_parameters == 13);
  CHECK(read->calls == 2);
  CHECK(read->kind_when_settled == Steps::kRepeat);
  CHECK(read->has_grown_since);
  REQUIRE(read->stages.size() == 2);
  CHECK(read->stages[1].stage == Stage::kNeither);
  CHECK(read->stages[1].process_peak == 8);
  CHECK(read->failure->free_bytes == 3);
  CHECK(read->allocator_settings == "max_split_size_mb:64");
  CHECK(read->missing_cudnn == "nvidia-cudnn-cu13==9.19.*");
  CHECK(read->devices[0].requested_in_all == 12);
  REQUIRE(read->unknown_reads.size() == 7);
  CHECK(read->unknown_reads[0].has_upper_bound);
  CHECK(read->unknown_reads[1].kind == Kind::kSize);
  CHECK_FALSE(read->unknown_reads[1].has_upper_bound);
  CHECK(read->unknown_reads[2].kind == Kind::kNumber);
  CHECK(read->unknown_reads[3].kind == Kind::kReceived);
  CHECK(read->unknown_reads[4].kind == Kind::kBranch);
  CHECK(read->unknown_reads[5].kind == Kind::kFraction);
  CHECK(read->unknown_reads[5].site == "5a");
  CHECK(read->unknown_reads[5].assumed == 1.5);
  CHECK(read->unknown_reads[6].kind == Kind::kModel);
  CHECK_FALSE(read->unknown_reads[6].has_upper_bound);
  CHECK_FALSE(parse_measurement("{}").ok());
  CHECK_FALSE(parse_measurement("{\"schema\":\"other\"}").ok());
  CHECK_FALSE(parse_measurement("no JSON").ok());
}

TEST_CASE("a recorded call is read as it was written, and gives the same prediction") {
  Measurement process;
  process.process = 7;
  process.cause = "the step threw: no";
  process.devices.push_back({0, "NVIDIA L4", 1000, 600, 700, 800});
  Run low, high;
  low.processes = {process};
  process.devices[0].failures = 1;
  high.end = Run::End::kHigh;
  high.is_limited = false;
  high.addresses = Run::Addresses::kUp;
  high.program = {3, true, 60, true, "the \"last\"\nline"};
  high.steps = 4;
  high.writes.held_by = WritesHeldBy::kLandlock;
  high.writes.files = {{"/a", 7, false}, {"/b", 0, true}};
  high.writes.written_count = 9;
  high.writes.removed_count = 1;
  high.writes.bytes = 70;
  high.writes.read_only = {"/boot"};
  high.writes.refusals = {{"rename: EXDEV", "/c"}};
  high.varies_sizes = high.as_far = true;
  high.assumed_reads = {{"5a", "huge"}};
  high.took_ms = 1500;
  high.held_back_bytes = 5;
  high.processes = {process, process};
  const RecordedCall call{"a test a.cc:3 #2", "l4", {low, high}, false};
  const absl::StatusOr<RecordedCall> read = parse_recorded_call(to_json(call));
  REQUIRE(read.ok());
  CHECK(read->key == call.key);
  CHECK(read->specification == "l4");
  CHECK_FALSE(read->has_settled);
  REQUIRE(read->runs.size() == 2);
  CHECK(read->runs[1].end == Run::End::kHigh);
  CHECK_FALSE(read->runs[1].is_limited);
  CHECK(read->runs[1].program.status == 3);
  CHECK(read->runs[1].program.timed_out);
  CHECK(read->runs[1].program.timeout_s == 60);
  CHECK(read->runs[1].program.read_input);
  CHECK(read->runs[1].addresses == Run::Addresses::kUp);
  CHECK(read->runs[1].steps == 4);
  CHECK(read->runs[1].varies_sizes);
  CHECK(read->runs[1].as_far);
  REQUIRE(read->runs[1].assumed_reads.size() == 1);
  CHECK(read->runs[1].assumed_reads[0].site == "5a");
  CHECK(read->runs[1].assumed_reads[0].value == "huge");
  CHECK(read->runs[1].took_ms == 1500);
  CHECK(read->runs[1].held_back_bytes == 5);
  const Writes& writes = read->runs[1].writes;
  CHECK(writes.held_by == WritesHeldBy::kLandlock);
  REQUIRE(writes.files.size() == 2);
  CHECK(writes.files[0].path == "/a");
  CHECK(writes.files[0].bytes == 7);
  CHECK(writes.files[1].is_removed);
  CHECK(writes.written_count == 9);
  CHECK(writes.removed_count == 1);
  CHECK(writes.bytes == 70);
  CHECK(writes.read_only == high.writes.read_only);
  REQUIRE(writes.refusals.size() == 1);
  CHECK(writes.refusals[0].what == "rename: EXDEV");
  CHECK(writes.refusals[0].path == "/c");
  CHECK(read->runs[1].program.last_lines == high.program.last_lines);
  CHECK(read->runs[1].processes.size() == 2);
  CHECK(read->runs[0].processes[0].cause == process.cause);
  CHECK(predict("l4", read->runs).to_json() == predict("l4", call.runs).to_json());
  CHECK_FALSE(parse_recorded_call("{}").ok());
  CHECK_FALSE(parse_recorded_call("no JSON").ok());
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

TEST_CASE("a loop that a size drives is read once its file is whole") {
  const RunFolder folder("loop");
  CHECK_FALSE(read_size_loop(folder.path()).has_value());
  const std::string text = size_loop_text({"00ff", "/home/me/a.py:12 main", true});
  folder.write("loop", text.substr(0, text.size() - 1));
  CHECK_FALSE(read_size_loop(folder.path()).has_value());
  folder.write("loop", text);
  const std::optional<SizeLoop> loop = read_size_loop(folder.path());
  REQUIRE(loop.has_value());
  CHECK(loop->driver == "00ff");
  CHECK(loop->place == "/home/me/a.py:12 main");
  CHECK(loop->is_same);
}

TEST_CASE("a call on files that was answered otherwise leaves nothing known") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  CHECK(predict("l4", {low, high}).verdict == Verdict::kFits);
  high.writes.refusals = {{"rename: EXDEV", "/data/out"}};
  const Prediction prediction = predict("l4", {low, high});
  CHECK(prediction.verdict == Verdict::kNotKnown);
  CHECK(prediction.devices[0].verdict == Verdict::kNotKnown);
  CHECK(prediction.sentence() ==
        "not known: a call on files was not answered as it is outside a dry run: rename: EXDEV, "
        "/data/out; --writes=allow lets the program write for real");
  Run failed_low = failed_run(kLow, 990), failed_high = failed_run(kHigh, 990);
  failed_low.writes.refusals = {{"open: ENOSPC", "/a"}, {"open: ENOSPC", "/b"}};
  CHECK(predict("l4", {failed_low, failed_high}).verdict == Verdict::kNotKnown);
}

TEST_CASE("what several runs wrote is told once, with the largest sizes") {
  Run low = run(kLow, {device(700)}), high = run(kHigh, {device(800)});
  low.writes.files = {{"/a", 5, false}, {"/c", 0, true}};
  high.writes.files = {{"/a", 7, false}, {"/b", 1, false}, {"/c", 3, false}};
  const Writes writes = predict("l4", {low, high}).writes;
  REQUIRE(writes.files.size() == 3);
  CHECK(writes.files[0].bytes == 7);
  CHECK(writes.files[1].path == "/b");
  CHECK_FALSE(writes.files[2].is_removed);
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

TEST_CASE("refusals are read in the order in which they came, each once") {
  const RunFolder folder("refused_files");
  CHECK(read_refusals(folder.path()).empty());
  const auto record = [](std::string what, const std::string& path) {
    return std::move(what) + '\0' + path + '\0';
  };
  folder.write("refused", record("rename: EXDEV", "/data/b\n") + record("open: FIFO", "") +
                              record("rename: EXDEV", "/data/b\n") +
                              record("unlink: EXDEV", "/data/b\n") + "open: EIO" + '\0' + "/cut");
  const std::vector<Refusal> refusals = read_refusals(folder.path());
  REQUIRE(refusals.size() == 3);
  CHECK(refusals[0].what == "rename: EXDEV");
  CHECK(refusals[0].path == "/data/b\n");
  CHECK(refusals[1].what == "open: FIFO");
  CHECK(refusals[1].path.empty());
  CHECK(refusals[2].what == "unlink: EXDEV");
}

}  // namespace
}  // namespace memledger::prediction
