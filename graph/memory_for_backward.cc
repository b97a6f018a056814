#include <torch/nn/module.h>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"

namespace memledger {
namespace {

graph_internal::Owned owned_by(const torch::nn::Module& net) {
  graph_internal::Owned owned;
  for (const auto& parameter : net.named_parameters())
    owned.parameters.emplace_back(parameter.key(), parameter.value());
  owned.buffers = net.buffers();
  return owned;
}

}  // namespace

SavedTensors get_tensors_saved_for_backward(const torch::nn::Module& net, const at::Tensor& output,
                                            bool duplicate) {
  return graph_internal::select_rows(
      graph_internal::read_graph("get_tensors_saved_for_backward", output, {}, owned_by(net)),
      duplicate);
}

int64_t memory_for_backward(const torch::nn::Module& net, const at::Tensor& loss,
                            const SavedTensorOptions& options) {
  return graph_internal::read_graph("memory_for_backward", loss, options, owned_by(net))
      .total_bytes();
}

SavedTensors saved_for_backward(const torch::nn::Module& net, at::ArrayRef<at::Tensor> roots,
                                const SavedTensorOptions& options) {
  return graph_internal::read_graph("saved_for_backward", roots, options, owned_by(net));
}

}  // namespace memledger
