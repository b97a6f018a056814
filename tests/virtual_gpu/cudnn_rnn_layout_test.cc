// Where cuDNN lays the weights of recurrent networks, and what it needs besides them. The figures
// are those of cuDNN 9.19.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/rnn_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace memledger::virtual_gpu {
namespace {

RnnShape shape(RnnCell cell, int64_t input, int64_t hidden, int64_t layers, bool bidirectional,
               size_t element_bytes = 4) {
  RnnShape s;
  s.cell = cell;
  s.input_size = input;
  s.hidden_size = hidden;
  s.projection_size = hidden;
  s.layers = layers;
  s.bidirectional = bidirectional;
  s.element_bytes = element_bytes;
  return s;
}

// All parameters' ranges, sorted, must cover the weight space without a gap or an overlap.
void check_covers(const RnnShape& s) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (int64_t layer = 0; layer < s.pseudo_layers(); ++layer) {
    for (int64_t linear = 0; linear <= 2 * s.gates(); ++linear) {
      for (const auto& parameter : {rnn_matrix(s, layer, linear), rnn_bias(s, layer, linear)}) {
        if (!parameter.has_value()) continue;
        const size_t bytes = parameter->rows * parameter->columns * s.element_bytes;
        ranges.emplace_back(parameter->offset, parameter->offset + bytes);
      }
    }
  }
  std::sort(ranges.begin(), ranges.end());
  size_t end = 0;
  for (const auto& range : ranges) {
    REQUIRE(range.first == end);
    end = range.second;
  }
  CHECK(end == rnn_weight_space_bytes(s));
}

TEST_CASE("an LSTM of two layers, both directions: the offsets that cuDNN gives") {
  const RnnShape s = shape(RnnCell::kLstm, 40, 48, 2, true);
  CHECK(rnn_weight_space_bytes(s) == 362496);
  CHECK(rnn_matrix(s, 0, 1)->offset == 7680);
  CHECK(rnn_matrix(s, 0, 4)->offset == 30720);
  CHECK(rnn_matrix(s, 1, 0)->offset == 67584);
  CHECK(rnn_matrix(s, 2, 0)->offset == 135168);
  CHECK(rnn_matrix(s, 2, 0)->rows == 48);
  CHECK(rnn_matrix(s, 2, 0)->columns == 96);
  CHECK(rnn_matrix(s, 3, 7)->offset == 347136);
  CHECK(rnn_matrix(s, 3, 7)->columns == 48);
  CHECK(rnn_bias(s, 0, 0)->offset == 356352);
  CHECK(rnn_bias(s, 3, 7)->offset == 362304);
}

TEST_CASE("an LSTM with a projection") {
  RnnShape s = shape(RnnCell::kLstm, 5, 8, 2, true);
  s.projection_size = 3;
  CHECK(rnn_weight_space_bytes(s) == 5760);
  CHECK(rnn_matrix(s, 0, 4)->columns == 3);
  CHECK(rnn_matrix(s, 0, 8)->offset == 1024);
  CHECK(rnn_matrix(s, 0, 8)->rows == 3);
  CHECK(rnn_matrix(s, 0, 8)->columns == 8);
  CHECK_FALSE(rnn_bias(s, 0, 8).has_value());
  CHECK(rnn_matrix(s, 2, 0)->columns == 6);
  CHECK(rnn_bias(s, 1, 0)->offset == 4992);
}

TEST_CASE("parameters cover the weight space without gaps") {
  for (const RnnCell cell : {RnnCell::kRelu, RnnCell::kTanh, RnnCell::kLstm, RnnCell::kGru}) {
    for (const int64_t layers : {1, 3}) {
      for (const bool bidirectional : {false, true}) {
        for (const int64_t biases : {0, 1, 2}) {
          RnnShape s = shape(cell, 7, 17, layers, bidirectional, 2);
          s.biases = biases;
          check_covers(s);
          if (cell == RnnCell::kLstm) {
            s.projection_size = 5;
            check_covers(s);
          }
        }
      }
    }
  }
}

TEST_CASE("what is not there has no place") {
  const RnnShape s = shape(RnnCell::kGru, 4, 4, 1, false);
  CHECK_FALSE(rnn_matrix(s, 1, 0).has_value());
  CHECK_FALSE(rnn_matrix(s, -1, 0).has_value());
  CHECK_FALSE(rnn_matrix(s, 0, 6).has_value());
  CHECK_FALSE(rnn_bias(s, 0, 6).has_value());
}

struct Measured {
  RnnCell cell;
  int64_t steps, batch, input, hidden, projection, layers;
  bool bidirectional;
  size_t element_bytes;
  bool dropout, padded;
  size_t weights, inference_workspace, training_workspace, reserve;
};

TEST_CASE("workspace and reserve are what cuDNN answers") {
  const auto kTanh = RnnCell::kTanh, kLstm = RnnCell::kLstm, kGru = RnnCell::kGru;
  const Measured measured[] = {
      {kLstm, 20, 8, 40, 48, 48, 1, false, 4, false, false, 69120, 8588544, 8588544, 153856},
      {kLstm, 20, 8, 40, 48, 48, 2, true, 4, false, false, 362496, 34328832, 34328832, 676096},
      {kLstm, 20, 8, 40, 48, 48, 2, true, 4, false, true, 362496, 34440512, 34440512, 676096},
      {kLstm, 20, 8, 40, 48, 48, 1, true, 4, false, true, 138240, 17405248, 17405248, 307456},
      {kLstm, 20, 8, 40, 48, 48, 2, false, 4, true, false, 144384, 17090816, 17090816, 339136},
      {kLstm, 20, 8, 40, 48, 48, 3, true, 2, true, false, 293376, 50841856, 50841856, 530176},
      {kLstm, 20, 8, 40, 48, 16, 1, false, 4, false, false, 47616, 8597760, 8597760, 194816},
      {kLstm, 20, 8, 40, 48, 16, 2, true, 4, false, false, 178176, 34205952, 34205952, 839936},
      {kLstm, 100, 32, 512, 1024, 1024, 1, false, 4, false, false, 25198592, 86769920, 86769920,
       65536256},
      {kLstm, 100, 32, 512, 1024, 1024, 2, true, 2, false, false, 75563008, 189792512, 189792512,
       144179456},
      {kLstm, 7, 13, 11, 17, 17, 1, false, 4, false, false, 8160, 8426592, 8426592, 31232},
      {kGru, 20, 8, 40, 48, 48, 2, true, 4, false, false, 271872, 34159872, 34159872, 798976},
      {kGru, 20, 8, 40, 48, 48, 1, false, 4, false, true, 51840, 8595776, 8621376, 184576},
      {kGru, 20, 8, 40, 48, 48, 1, true, 4, false, true, 103680, 17294656, 17294656, 368896},
      {kGru, 20, 8, 40, 48, 48, 2, false, 4, true, true, 108288, 17078080, 17078080, 400576},
      {kGru, 100, 32, 512, 1024, 1024, 1, false, 4, false, false, 18898944, 66978048, 66978048,
       78643456},
      {kTanh, 20, 8, 40, 48, 48, 1, false, 4, false, true, 17280, 8497472, 8587584, 30976},
      {kTanh, 20, 8, 40, 48, 48, 1, true, 4, false, true, 34560, 17098048, 17191232, 61696},
      {kTanh, 20, 8, 40, 48, 48, 3, true, 4, false, true, 146688, 50793792, 50960704, 307456},
      {kTanh, 100, 32, 512, 1024, 1024, 1, false, 4, false, false, 6299648, 27918592, 41025792,
       13107456},
  };
  for (const Measured& m : measured) {
    RnnShape s = shape(m.cell, m.input, m.hidden, m.layers, m.bidirectional, m.element_bytes);
    s.projection_size = m.projection;
    s.dropout = m.dropout;
    s.padded_io = m.padded;
    CAPTURE(m.training_workspace);
    CHECK(rnn_weight_space_bytes(s) == m.weights);
    const RnnTemporaries inference = rnn_temporaries(s, m.steps, m.batch, false);
    const RnnTemporaries training = rnn_temporaries(s, m.steps, m.batch, true);
    CHECK(inference.workspace_bytes == m.inference_workspace);
    CHECK(inference.reserve_bytes == 0);
    CHECK(training.workspace_bytes == m.training_workspace);
    CHECK(training.reserve_bytes == m.reserve);
  }
}

TEST_CASE("odd extents: within 224 bytes of cuDNN, whose parts are aligned one by one") {
  const auto near = [](size_t model, size_t cudnn) {
    CAPTURE(cudnn);
    CHECK(std::max(model, cudnn) - std::min(model, cudnn) <= 224);
  };
  RnnShape s = shape(RnnCell::kLstm, 7, 17, 3, false);
  s.padded_io = true;
  near(rnn_temporaries(s, 5, 3, false).workspace_bytes, 25202976);
  near(rnn_temporaries(s, 5, 3, true).workspace_bytes, 25203136);
  near(rnn_temporaries(s, 5, 3, true).reserve_bytes, 17632);
}

}  // namespace
}  // namespace memledger::virtual_gpu
