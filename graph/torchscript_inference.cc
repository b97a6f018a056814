#include "graph/torchscript_inference.h"

#include <algorithm>
#include <string>
#include <utility>

#include "graph/registry_queries.h"

namespace memledger::graph_internal {
namespace {

// The latest storage that lay in a row before the node's method ran, by the registry's numbers.
uint64_t latest_storage_before(const SavedTensorsData& data, const CompactNode& node) {
  uint64_t latest = 0;
  for (const CompactRow& row : data.rows) {
    const CompactNode& holder = data.nodes[row.node];
    if (holder.forward_thread == node.forward_thread &&
        holder.sequence_number < node.sequence_number) {
      latest = std::max(latest, row.storage_id);
    }
  }
  return latest;
}

// Adds the births as rows of the nodes, which are in order of the forward pass. Returns how many
// each node got: a birth goes to the last node whose method began before it.
std::vector<size_t> add_births(const std::vector<TorchScriptNode>& nodes,
                               const SavedTensorsData& data, SavedAccount& account) {
  std::vector<uint64_t> made_before;
  for (const TorchScriptNode& node : nodes)
    made_before.push_back(latest_storage_before(data, data.nodes[node.index]));
  std::vector<size_t> counts(nodes.size());
  for (const StorageInfo& birth : alive_births_in_torchscript()) {
    if (account.knows({birth.address, birth.device}) || !account.wants(birth.device)) continue;
    size_t owner = 0;
    for (size_t i = 1; i < nodes.size(); ++i) {
      if (made_before[i] < birth.id) owner = i;
    }
    account.add_inferred(nodes[owner].index, counts[owner]++, birth);
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
