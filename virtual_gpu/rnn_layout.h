#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace memledger::virtual_gpu {

// Values as in cuDNN's cudnnRNNMode_t.
enum class RnnCell { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

struct RnnShape {
  RnnCell cell = RnnCell::kLstm;
  int64_t input_size = 0;
  int64_t hidden_size = 0;
  int64_t projection_size = 0;  // == hidden_size: no projection
  int64_t layers = 1;
  bool bidirectional = false;
  int64_t biases = 2;  // per matrix pair: 0, 1 or 2
  size_t element_bytes = 4;
  bool padded_io = false;
  bool dropout = false;

  bool has_projection() const { return projection_size != hidden_size; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t pseudo_layers() const { return layers * directions(); }
  int64_t gates() const { return cell == RnnCell::kLstm ? 4 : cell == RnnCell::kGru ? 3 : 1; }
};

// Where a matrix or a bias lies in the weight space, in bytes, and its shape.
struct RnnParameter {
  size_t offset;
  int64_t rows;
  int64_t columns;
};

// cuDNN's weight space: per pseudo-layer (2 * layer + direction) the gates' input matrices, their
// recurrent matrices and the projection, without gaps; then all biases, in the same order.
size_t rnn_weight_space_bytes(const RnnShape& shape);
// `linear`: 0 to gates-1 input, gates to 2*gates-1 recurrent, 2*gates the projection of an LSTM.
std::optional<RnnParameter> rnn_matrix(const RnnShape& shape, int64_t pseudo_layer, int64_t linear);
std::optional<RnnParameter> rnn_bias(const RnnShape& shape, int64_t pseudo_layer, int64_t linear);

struct RnnTemporaries {
  size_t workspace_bytes;
  size_t reserve_bytes;
};

// A fit to what cuDNN's own function answers, see docs/virtual_gpu_workspaces.md.
RnnTemporaries rnn_temporaries(const RnnShape& shape, int64_t sequence_length, int64_t batch_size,
                               bool training);

}  // namespace memledger::virtual_gpu
