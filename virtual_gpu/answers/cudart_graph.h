#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/graph_memory.h"

// What the files of the runtime's and the driver's graphs share.
namespace memledger::virtual_gpu {

struct Executable;

inline Graph* graph_of(cudaGraph_t graph) { return reinterpret_cast<Graph*>(graph); }
inline GraphNode* node_of(cudaGraphNode_t node) { return reinterpret_cast<GraphNode*>(node); }
inline cudaGraph_t handle_of(Graph* graph) { return reinterpret_cast<cudaGraph_t>(graph); }
inline cudaGraphNode_t handle_of(GraphNode* node) {
  return reinterpret_cast<cudaGraphNode_t>(node);
}

// GraphNode::parameters of each kind of node. They are not changed but replaced. Nodes of captured
// kernels, copies and fills have none, nodes that allocate a GraphBlock.

struct KernelParameters {
  bool is_known = false;  // else there are attributes only
  cudaKernelNodeParams launch{};
  std::map<int, cudaLaunchAttributeValue> attributes;
};

struct CopyParameters {
  cudaMemcpy3DParms copy;
};

struct FillParameters {
  cudaMemsetParams fill;
};

struct HostParameters {
  cudaHostNodeParams host;
};

struct FreeParameters {
  void* pointer;
  std::weak_ptr<GraphBlock> block;
};

// Child graphs and conditional nodes: graphs that are part of the node, or what was launched on
// a stream that captures.
struct ChildParameters {
  ChildParameters() = default;
  ~ChildParameters();
  ChildParameters(const ChildParameters&) = delete;
  ChildParameters& operator=(const ChildParameters&) = delete;

  std::vector<cudaGraph_t> graphs;
  std::shared_ptr<const Executable> launched;
  unsigned long long handle = 0;  // of a conditional node
  int condition = 0;
};

// What a node is made of, or why there is none.
struct NodeContent {
  cudaError_t error = cudaSuccess;
  NodeKind kind = NodeKind::kEmpty;
  std::function<void()> run = nullptr;
  std::shared_ptr<void> parameters = nullptr;
  const void* event = nullptr;
};

NodeContent child_content(cudaGraph_t child);
// nullptr where it cannot be copied, as its memory would have two owners.
Graph* copy_graph(Graph* original, bool embedded);

// Takes the place of what a node of an executable does.
cudaError_t set_in_executable(cudaGraphExec_t executable, cudaGraphNode_t node,
                              const NodeContent& content);
// For the kernel nodes, fills and copies of an executable, which alone can be off.
cudaError_t with_step_enabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                              const std::function<void(bool& enabled)>& use);

}  // namespace memledger::virtual_gpu
