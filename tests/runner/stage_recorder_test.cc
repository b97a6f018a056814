#include "runner/inside/stage_recorder.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>

namespace memledger::inside {
namespace {

using ModeOf = StageRecorder::ModeOf;

constexpr bool kTrains = true, kEvaluates = false;

std::map<std::string, int64_t> peaks(const StageRecorder& recorder) {
  std::map<std::string, int64_t> result;
  for (const prediction::MeasuredStage& stage : recorder.stages())
    result[std::string(to_string(stage.stage))] = stage.allocated_peak;
  return result;
}

using Peaks = std::map<std::string, int64_t>;

TEST_CASE("setup, training and evaluation have a peak each") {
  StageRecorder recorder;
  recorder.note_bytes(0, 5, 6);
  recorder.note_forward();
  recorder.note_bytes(0, 20, 30);
  recorder.note_backward();
  recorder.note_bytes(0, 25, 30);
  recorder.note_step();
  recorder.note_bytes(0, 10, 30);
  recorder.note_forward_without_gradients();
  recorder.note_bytes(0, 40, 50);
  recorder.note_bytes(1, 7, 8);
  CHECK(peaks(recorder).at("neither") == 5);
  CHECK(peaks(recorder).at("training") == 25);
  REQUIRE(recorder.stages().size() == 4);
  CHECK(recorder.stages()[1].process_peak == 50);
  CHECK(recorder.stages()[2].device == 1);
  recorder.forget_peaks();
  CHECK(recorder.stages().empty());
}

TEST_CASE("a forward pass without gradients inside one with gradients is part of it") {
  StageRecorder recorder;
  recorder.note_forward();
  CHECK(recorder.is_evaluation_noted());
  recorder.note_forward_without_gradients();  // a checkpoint
  recorder.note_bytes(0, 20, 20);
  recorder.note_backward();
  CHECK(peaks(recorder) == Peaks{{"training", 20}});
  CHECK_FALSE(recorder.is_evaluation_noted());
}

TEST_CASE("a forward pass in eval() mode is an evaluation where none of training is open") {
  for (const ModeOf module : {ModeOf::kDropout, ModeOf::kNormalization}) {
    StageRecorder recorder;
    recorder.note_forward();
    recorder.note_mode(module, kTrains);
    recorder.note_bytes(0, 10, 10);
    recorder.note_step();
    recorder.note_forward();
    recorder.note_mode(module, kEvaluates);
    recorder.note_bytes(0, 30, 30);
    CHECK(peaks(recorder) == Peaks{{"training", 10}, {"evaluation", 30}});
    recorder.note_mode(module, kTrains);
    recorder.note_bytes(0, 11, 11);
    CHECK(peaks(recorder) == Peaks{{"training", 11}, {"evaluation", 30}});
  }
}

TEST_CASE("what is made without gradients belongs to the evaluation that follows, if one does") {
  StageRecorder recorder;
  recorder.note_forward();
  recorder.note_bytes(0, 10, 10);
  recorder.note_step();
  recorder.note_without_gradients();
  CHECK(recorder.is_without_gradients_noted());
  recorder.note_bytes(0, 20, 20);  // a batch
  SUBCASE("an evaluation") {
    recorder.note_forward_without_gradients();
    CHECK(peaks(recorder) == Peaks{{"training", 10}, {"evaluation", 20}});
  }
  SUBCASE("a step") {
    recorder.note_step();
    CHECK_FALSE(recorder.is_without_gradients_noted());
    CHECK(peaks(recorder) == Peaks{{"training", 20}});
  }
  SUBCASE("a forward pass") {
    recorder.note_forward();
    CHECK(peaks(recorder) == Peaks{{"training", 20}});
  }
  SUBCASE("the end") { CHECK(peaks(recorder) == Peaks{{"training", 20}}); }
}

TEST_CASE("frozen modules do not make training an evaluation") {
  StageRecorder recorder;
  recorder.note_forward();
  recorder.note_mode(ModeOf::kNormalization, kEvaluates);
  recorder.note_bytes(0, 30, 30);
  SUBCASE("as backward follows") { recorder.note_backward(); }
  SUBCASE("as other modules train") { recorder.note_mode(ModeOf::kDropout, kTrains); }
  CHECK(peaks(recorder) == Peaks{{"training", 30}});
}

TEST_CASE("inference alone is an evaluation, and a device beyond all that there are is left out") {
  StageRecorder recorder;
  recorder.note_forward_without_gradients();
  recorder.note_bytes(0, 1, 2);
  recorder.note_bytes(99, 1, 2);
  recorder.note_bytes(-1, 1, 2);
  CHECK(peaks(recorder) == Peaks{{"evaluation", 1}});
}

}  // namespace
}  // namespace memledger::inside
