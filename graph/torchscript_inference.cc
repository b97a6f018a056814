#include "graph/torchscript_inference.h"

#include <algorithm>
#include <string>
#include <utility>

#include "graph/registry_queries.h"

namespace memledger::graph_internal {
namespace {

// The runs of operators on one thread between which a TorchScript node was made and the next node
// was: what the node's method has made for it was made by these.
struct Runs {
  OperatorRun after;
  OperatorRun until;  // zeros: no node has been made since

  bool hold(const StorageInfo& birth) const {
    return birth.operator_run != 0 && birth.thread == after.thread &&
           static_cast<int32_t>(birth.operator_run - after.run) > 0 &&
           (until.thread != after.thread ||
            static_cast<int32_t>(until.run - birth.operator_run) >= 0);
  }
};

Runs runs_of(const CompactNode& node) {
  // An operator that needs no gradient, or none at all, may have run before the node was made.
  constexpr uint64_t kNodesBefore = 64;
  Runs runs;
  for (uint64_t before = 0; before <= std::min(kNodesBefore, node.sequence_number); ++before) {
    runs.after = run_before_node(node.forward_thread, node.sequence_number - before);
    if (runs.after.run != 0) break;
  }
  runs.until = run_before_node(node.forward_thread, node.sequence_number + 1);
  return runs;
}

// Adds the births as rows of the nodes, which are in order of the forward pass. Returns how many
// each node got.
std::vector<size_t> add_births(const std::vector<TorchScriptNode>& nodes,
                               const SavedTensorsData& data, SavedAccount& account) {
  std::vector<Runs> runs;
  for (const TorchScriptNode& node : nodes) runs.push_back(runs_of(data.nodes[node.index]));
  std::vector<size_t> counts(nodes.size());
  for (const StorageInfo& birth : alive_births_in_torchscript()) {
    if (account.knows({birth.address, birth.device}) || !account.wants(birth.device)) continue;
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!runs[i].hold(birth)) continue;
      account.add_inferred(nodes[i].index, counts[i]++, birth);
      break;
    }
  }
  return counts;
}

}  // namespace

void infer_torchscript(std::vector<TorchScriptNode> nodes, SavedTensorsData& data,
                       SavedAccount& account) {
  if (nodes.empty()) return;
  std::sort(nodes.begin(), nodes.end(), [&](const TorchScriptNode& a, const TorchScriptNode& b) {
    return data.nodes[a.index].sequence_number < data.nodes[b.index].sequence_number;
  });
  const std::vector<size_t> counts = add_births(nodes, data, account);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (counts[i] == 0) account.add_unknown(nodes[i].index);
    nodes[i].unread.detail =
        counts[i] > 0 ? "inferred from births in TorchScript methods: " + std::to_string(counts[i])
                      : "no births seen in a TorchScript method, so what it holds is not known";
    data.unread.push_back(std::move(nodes[i].unread));
  }
}

}  // namespace memledger::graph_internal
