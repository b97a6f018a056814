#include "virtual_gpu/rnn_layout.h"

namespace memledger::virtual_gpu {
namespace {

// Each pseudo-layer has a cuBLAS workspace of its own in cuDNN's.
constexpr size_t kBlasBytesPerPseudoLayer = size_t{8} << 20;
constexpr size_t kHeaderBytes = 256;

constexpr size_t aligned(size_t bytes) { return (bytes + 31) / 32 * 32; }

int64_t input_of(const RnnShape& s, int64_t pseudo_layer) {
  return pseudo_layer < s.directions() ? s.input_size : s.projection_size * s.directions();
}

int64_t matrix_elements(const RnnShape& s, int64_t pseudo_layer) {
  int64_t n = s.gates() * s.hidden_size * (input_of(s, pseudo_layer) + s.projection_size);
  if (s.has_projection()) n += s.projection_size * s.hidden_size;
  return n;
}

int64_t all_matrix_elements(const RnnShape& s) {
  int64_t n = 0;
  for (int64_t layer = 0; layer < s.pseudo_layers(); ++layer) n += matrix_elements(s, layer);
  return n;
}

}  // namespace

size_t rnn_weight_space_bytes(const RnnShape& s) {
  return (all_matrix_elements(s) + s.pseudo_layers() * s.gates() * s.biases * s.hidden_size) *
         s.element_bytes;
}

std::optional<RnnParameter> rnn_matrix(const RnnShape& s, int64_t pseudo_layer, int64_t linear) {
  const int64_t gates = s.gates();
  const int64_t matrices = 2 * gates + (s.has_projection() ? 1 : 0);
  if (pseudo_layer < 0 || pseudo_layer >= s.pseudo_layers() || linear < 0 || linear >= matrices)
    return std::nullopt;
  int64_t at = 0;
  for (int64_t layer = 0; layer < pseudo_layer; ++layer) at += matrix_elements(s, layer);
  const int64_t input = input_of(s, pseudo_layer);
  RnnParameter result{};
  if (linear < gates) {
    at += linear * s.hidden_size * input;
    result.rows = s.hidden_size;
    result.columns = input;
  } else if (linear < 2 * gates) {
    at += gates * s.hidden_size * input + (linear - gates) * s.hidden_size * s.projection_size;
    result.rows = s.hidden_size;
    result.columns = s.projection_size;
  } else {
    at += gates * s.hidden_size * (input + s.projection_size);
    result.rows = s.projection_size;
    result.columns = s.hidden_size;
  }
  result.offset = at * s.element_bytes;
  return result;
}

std::optional<RnnParameter> rnn_bias(const RnnShape& s, int64_t pseudo_layer, int64_t linear) {
  const int64_t biases = s.gates() * s.biases;
  if (pseudo_layer < 0 || pseudo_layer >= s.pseudo_layers() || linear < 0 || linear >= biases)
    return std::nullopt;
  const int64_t at = all_matrix_elements(s) + (pseudo_layer * biases + linear) * s.hidden_size;
  return RnnParameter{at * s.element_bytes, s.hidden_size, 1};
}

RnnTemporaries rnn_temporaries(const RnnShape& s, int64_t sequence_length, int64_t batch_size,
                               bool training) {
  const size_t directions = s.directions();
  const size_t pseudo_layers = s.pseudo_layers();
  const size_t gates = s.gates();
  const bool lstm = s.cell == RnnCell::kLstm;
  const bool simple = gates == 1;
  const size_t step =
      batch_size * s.hidden_size * s.element_bytes;  // one hidden state of the batch
  const size_t sequence = sequence_length * step;    // one per time step
  const size_t input = sequence_length * batch_size * s.input_size * s.element_bytes;
  const size_t projected =
      s.has_projection() ? sequence_length * batch_size * s.projection_size * s.element_bytes : 0;
  // With one bidirectional layer the backward pass finds room in what the forward pass takes.
  const bool backward_fits = (s.layers == 1 && s.bidirectional) || (s.dropout && !s.bidirectional);

  RnnTemporaries result{};
  if (training) {
    // Gate values, cell states, the layers' outputs between layers, dropout's mask of one bit each.
    const size_t kept_gates = simple ? 1 : 4;
    const size_t kept_states = lstm ? 1 : s.cell == RnnCell::kGru ? 2 : 0;
    result.reserve_bytes = kHeaderBytes + aligned(kept_gates * pseudo_layers * sequence) +
                           aligned(kept_states * pseudo_layers * sequence) +
                           aligned((s.layers - 1) * directions * sequence);
    if (s.has_projection())
      result.reserve_bytes += pseudo_layers * (aligned(sequence) + aligned(projected));
    if (s.dropout) {
      result.reserve_bytes += aligned((s.layers - 1) * directions * directions * sequence_length *
                                      batch_size * s.hidden_size / 8);
    }
  }

  size_t workspace = kHeaderBytes + pseudo_layers * kBlasBytesPerPseudoLayer;
  workspace += aligned(all_matrix_elements(s) * s.element_bytes);  // the weights, rearranged
  const size_t sequences = s.bidirectional ? 2 * gates + 4 : gates + (s.dropout ? 1 : 0);
  workspace += aligned(sequences * sequence) + aligned(pseudo_layers * gates * step);
  if (lstm) workspace += aligned(2 * pseudo_layers * step);
  if (s.bidirectional) workspace += aligned(2 * pseudo_layers * step);
  if (s.has_projection()) workspace += aligned(directions * sequence);
  if (training && simple && !backward_fits) workspace += aligned(directions * sequence);
  if (s.padded_io) {
    // Packed copies of input, output and states, and two lists of lengths.
    const size_t packed = aligned(input) + aligned(directions * sequence) +
                          aligned((lstm ? 4 : 2) * pseudo_layers * step);
    workspace += packed + 2 * aligned(4 * batch_size);
    if (training && simple) workspace += packed;
    if (training && s.cell == RnnCell::kGru && !backward_fits) workspace += aligned(input);
  }
  result.workspace_bytes = workspace;
  return result;
}

}  // namespace memledger::virtual_gpu
