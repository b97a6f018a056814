#include "graph/graph_path.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "graph/libtorch/libtorch_autograd.h"

namespace memledger {

std::vector<std::string> path_to_node(const at::Tensor& root, const GraphNode& wanted) {
  using torch::autograd::Node;
  struct Step {
    const Node* node;
    size_t before;  // index of the step that led here; its own for the first
  };
  const graph_internal::NodePtr first = graph_internal::grad_fn_of(root);
  if (!first) return {};
  std::unordered_set<const Node*> seen = {first.get()};
  std::vector<Step> steps = {{first.get(), 0}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const Node* const node = steps[i].node;
    if (node->sequence_nr() == wanted.sequence_number &&
        node->thread_id() == wanted.forward_thread && node->name() == wanted.name) {
      std::vector<std::string> path;
      for (size_t step = i;; step = steps[step].before) {
        path.push_back(steps[step].node->name());
        if (step == 0) break;
      }
      std::reverse(path.begin(), path.end());
      return path;
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second)
        steps.push_back({edge.function.get(), i});
    }
  }
  return {};
}

}  // namespace memledger
