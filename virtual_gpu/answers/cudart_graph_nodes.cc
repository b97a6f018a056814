// The runtime: the nodes of graphs, added by hand, asked and changed.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "virtual_gpu/answers/cudart_graph.h"
#include "virtual_gpu/answers/cudart_modules.h"
#include "virtual_gpu/unwatched_reads.h"

namespace memledger::virtual_gpu {
namespace {

std::vector<GraphNode*> nodes_from(const cudaGraphNode_t* nodes, size_t count) {
  auto* const first = reinterpret_cast<GraphNode* const*>(nodes);
  return {first, first + count};
}

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                size_t count, NodeContent content) {
  if (content.error) return content.error;
  if (!node || !graph || (count && !dependencies)) return cudaErrorInvalidValue;
  GraphNode* const added =
      streams().add_node(graph_of(graph), nodes_from(dependencies, count), content.kind,
                         std::move(content.run), std::move(content.parameters), content.event);
  *node = handle_of(added);
  return added ? cudaSuccess : cudaErrorInvalidValue;
}

memledger_virtual_gpu_work work_of(const cudaKernelNodeParams& parameters) {
  memledger_virtual_gpu_work work = {};
  work.kernel = parameters.func;
  work.arguments = parameters.kernelParams;
  // Pairs of a key and a value; the words of the driver's cuLaunchKernel().
  void* const kEnd = nullptr;
  const auto kPointer = reinterpret_cast<void*>(1), kSize = reinterpret_cast<void*>(2);
  for (void** extra = parameters.extra; extra != nullptr && extra[0] != kEnd; extra += 2) {
    if (extra[0] == kPointer) work.argument_bytes = extra[1];
    if (extra[0] == kSize) work.argument_byte_count = *static_cast<const size_t*>(extra[1]);
    if (extra[0] != kPointer && extra[0] != kSize) break;
  }
  return work;
}

NodeContent kernel_content(const cudaKernelNodeParams* parameters) {
  if (!parameters) return {cudaErrorInvalidValue};
  if (const cudaError_t error =
          check_launch(parameters->gridDim, parameters->blockDim, parameters->sharedMemBytes))
    return {error};
  if (const cudaError_t error = load_kernel(parameters->func)) return {error};
  note_host_addresses(work_of(*parameters), parameters->func);
  auto made = std::make_shared<KernelParameters>();
  made->is_known = true;
  made->launch = *parameters;
  return {cudaSuccess, NodeKind::kKernel, nullptr, std::move(made)};
}

NodeContent copy_content(const cudaMemcpy3DParms* parameters) {
  if (!parameters || parameters->srcArray || parameters->dstArray) return {cudaErrorInvalidValue};
  return {cudaSuccess, NodeKind::kCopy, [copy = *parameters] { transfer_3d(copy); },
          std::make_shared<CopyParameters>(CopyParameters{*parameters})};
}

NodeContent copy_content(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {const_cast<void*>(source), bytes, bytes, 1};
  copy.dstPtr = {destination, bytes, bytes, 1};
  copy.extent = {bytes, 1, 1};
  copy.kind = kind;
  return copy_content(&copy);
}

NodeContent to_symbol_content(const void* symbol, const void* source, size_t bytes, size_t offset,
                              cudaMemcpyKind kind) {
  void* pointer = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&pointer, symbol)) return {error};
  return copy_content(static_cast<char*>(pointer) + offset, source, bytes, kind);
}

NodeContent from_symbol_content(void* destination, const void* symbol, size_t bytes, size_t offset,
                                cudaMemcpyKind kind) {
  void* pointer = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&pointer, symbol)) return {error};
  return copy_content(destination, static_cast<const char*>(pointer) + offset, bytes, kind);
}

NodeContent fill_content(const cudaMemsetParams* parameters) {
  if (!parameters || !parameters->width || !parameters->height) return {cudaErrorInvalidValue};
  const unsigned element = parameters->elementSize;
  if (element != 1 && element != 2 && element != 4) return {cudaErrorInvalidValue};
  return {cudaSuccess, NodeKind::kFill,
          [p = *parameters] {
            for (size_t row = 0; row < p.height; ++row)
              fill(static_cast<char*>(p.dst) + row * p.pitch, p.value, p.elementSize, p.width);
          },
          std::make_shared<FillParameters>(FillParameters{*parameters})};
}

NodeContent host_content(const cudaHostNodeParams* parameters) {
  if (!parameters || !parameters->fn) return {cudaErrorInvalidValue};
  return {cudaSuccess, NodeKind::kHost, [p = *parameters] { p.fn(p.userData); },
          std::make_shared<HostParameters>(HostParameters{*parameters})};
}

NodeContent event_content(NodeKind kind, cudaEvent_t event) {
  if (!streams().is_event(event)) return {cudaErrorInvalidResourceHandle};
  return {cudaSuccess, kind, nullptr, nullptr, event};
}

cudaError_t add_allocation(cudaGraphNode_t* node, cudaGraph_t graph,
                           const cudaGraphNode_t* dependencies, size_t count,
                           const cudaMemPoolProps& pool, size_t bytes, void** pointer) {
  if (!node || !graph || (count && !dependencies) || !bytes) return cudaErrorInvalidValue;
  if (pool.location.type != cudaMemLocationTypeDevice ||
      !Machine::get().is_device(pool.location.id))
    return cudaErrorInvalidValue;
  const std::shared_ptr<GraphMemory> memory = streams().memory_of(graph_of(graph));
  bool is_part = true;
  streams().with_graph(graph_of(graph), [&](const Graph& found) { is_part = found.embedded; });
  if (!memory) return cudaErrorInvalidValue;
  if (is_part) return cudaErrorNotSupported;
  if (const cudaError_t error = ready()) return error;
  const std::shared_ptr<GraphBlock> block = memory->allocate(pool.location.id, bytes, [&] {
    return streams().predecessors_of(nodes_from(dependencies, count));
  });
  if (!block) return cudaErrorMemoryAllocation;
  const cudaError_t error =
      add(node, graph, dependencies, count, {cudaSuccess, NodeKind::kAllocate, nullptr, block});
  if (error) {
    memory->take_back(*block);
    return error;
  }
  *pointer = block->pointer;
  return cudaSuccess;
}

cudaError_t add_free(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                     size_t count, void* pointer) {
  const std::shared_ptr<GraphBlock> block = find_graph_block(pointer);
  const std::shared_ptr<GraphMemory> memory = streams().memory_of(graph_of(graph));
  if (!block || !memory) return cudaErrorInvalidValue;
  const cudaError_t error = add(node, graph, dependencies, count,
                                {cudaSuccess, NodeKind::kFree, nullptr,
                                 std::make_shared<FreeParameters>(FreeParameters{pointer, block})});
  if (error) return error;
  memory->free_by_node(*block, node_of(*node)->index);
  return cudaSuccess;
}

// Graphs that are part of the node, and empty at first; the array of their handles lives as long.
cudaError_t add_conditional(cudaGraphNode_t* node, cudaGraph_t graph,
                            const cudaGraphNode_t* dependencies, size_t count,
                            cudaConditionalNodeParams& parameters) {
  const bool has_size = parameters.type == cudaGraphCondTypeWhile ? parameters.size == 1
                        : parameters.type == cudaGraphCondTypeIf
                            ? parameters.size == 1 || parameters.size == 2
                            : parameters.size > 0;
  if (!has_size) return cudaErrorInvalidValue;
  auto child = std::make_shared<ChildParameters>();
  child->handle = parameters.handle;
  child->condition = parameters.type;
  for (unsigned i = 0; i < parameters.size; ++i)
    child->graphs.push_back(handle_of(streams().make_graph(true)));
  const cudaError_t error =
      add(node, graph, dependencies, count, {cudaSuccess, NodeKind::kConditional, nullptr, child});
  if (!error) parameters.phGraph_out = child->graphs.data();
  return error;
}

cudaKernelNodeParams plain(const cudaKernelNodeParamsV2& from) {
  cudaKernelNodeParams to{};
  to.func = from.func;
  to.gridDim = {from.gridDim.x, from.gridDim.y, from.gridDim.z};
  to.blockDim = {from.blockDim.x, from.blockDim.y, from.blockDim.z};
  to.sharedMemBytes = from.sharedMemBytes;
  to.kernelParams = from.kernelParams;
  to.extra = from.extra;
  return to;
}

// Those kinds that can also be set.
NodeContent content_of(const cudaGraphNodeParams& p) {
  switch (p.type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams kernel = plain(p.kernel);
      return kernel_content(&kernel);
    }
    case cudaGraphNodeTypeMemcpy:
      return copy_content(&p.memcpy.copyParams);
    case cudaGraphNodeTypeMemset: {
      const cudaMemsetParams plain{p.memset.dst,         p.memset.pitch, p.memset.value,
                                   p.memset.elementSize, p.memset.width, p.memset.height};
      return fill_content(&plain);
    }
    case cudaGraphNodeTypeHost: {
      const cudaHostNodeParams plain{p.host.fn, p.host.userData};
      return host_content(&plain);
    }
    case cudaGraphNodeTypeGraph:
      return child_content(p.graph.graph);
    case cudaGraphNodeTypeEmpty:
      return {};
    case cudaGraphNodeTypeWaitEvent:
      return event_content(NodeKind::kEventWait, p.eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return event_content(NodeKind::kEventRecord, p.eventRecord.event);
    default:
      return {cudaErrorNotSupported};
  }
}

cudaError_t add_any(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                    size_t count, cudaGraphNodeParams* p) {
  if (!p) return cudaErrorInvalidValue;
  switch (p->type) {
    case cudaGraphNodeTypeMemAlloc:
      return add_allocation(node, graph, dependencies, count, p->alloc.poolProps, p->alloc.bytesize,
                            &p->alloc.dptr);
    case cudaGraphNodeTypeMemFree:
      return add_free(node, graph, dependencies, count, p->free.dptr);
    case cudaGraphNodeTypeConditional:
      return add_conditional(node, graph, dependencies, count, p->conditional);
    default:
      return add(node, graph, dependencies, count, content_of(*p));
  }
}

// Replaces what a node is made of. Its kind stays.
cudaError_t set(cudaGraphNode_t node, NodeContent content) {
  if (content.error) return content.error;
  cudaError_t error = cudaErrorInvalidValue;
  // What is replaced is destroyed after the lock is released.
  streams().with_node(node_of(node), [&](GraphNode& found, Graph& graph) {
    if (found.kind != content.kind) return;
    graph.is_changed = true;
    std::swap(found.run, content.run);
    std::swap(found.parameters, content.parameters);
    found.event = content.event;
    error = cudaSuccess;
  });
  return error;
}

// Calls with the parameters of a node of that kind.
template <typename T, typename F>
cudaError_t with_parameters(cudaGraphNode_t node, NodeKind kind, F use) {
  std::shared_ptr<void> parameters;
  bool is_kind = false;
  streams().with_node(node_of(node), [&](const GraphNode& found, const Graph&) {
    is_kind = found.kind == kind;
    parameters = found.parameters;
  });
  if (!is_kind) return cudaErrorInvalidValue;
  if (!parameters) {
    MEMLEDGER_SAY_REFUSED("what a captured kernel, copy or fill was given is not kept.");
    return cudaErrorNotSupported;
  }
  return use(*static_cast<const T*>(parameters.get()));
}

cudaError_t tell_event(cudaGraphNode_t node, NodeKind kind, cudaEvent_t* event) {
  if (!event) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  streams().with_node(node_of(node), [&](const GraphNode& found, const Graph&) {
    if (found.kind != kind) return;
    *event = reinterpret_cast<cudaEvent_t>(const_cast<void*>(found.event));
    error = cudaSuccess;
  });
  return error;
}

cudaError_t copy_out(const std::optional<std::vector<GraphNode*>>& found, cudaGraphNode_t* nodes,
                     cudaGraphEdgeData* edges, size_t* count) {
  if (!count || !found) return cudaErrorInvalidValue;
  if (edges && nodes) std::memset(edges, 0, *count * sizeof *edges);
  if (nodes) {
    for (size_t i = 0; i < *count; ++i)
      nodes[i] = i < found->size() ? handle_of((*found)[i]) : nullptr;
  }
  if (!nodes || *count > found->size()) *count = found->size();
  return cudaSuccess;
}

cudaError_t edges_of(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                     cudaGraphEdgeData* edges, size_t* count) {
  const auto nodes = streams().nodes_of(graph_of(graph));
  if (!count || !nodes || !from != !to) return cudaErrorInvalidValue;
  std::vector<GraphNode*> begins, ends;
  for (GraphNode* node : *nodes) {
    for (GraphNode* dependency :
         streams().dependencies_of(node).value_or(std::vector<GraphNode*>())) {
      begins.push_back(dependency);
      ends.push_back(node);
    }
  }
  const size_t room = *count;
  copy_out(begins, from, edges, count);
  *count = room;
  return copy_out(ends, to, nullptr, count);
}

// Edges between nodes of memory stay, as what has which place depends on them.
cudaError_t change_edges(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                         size_t count, bool add_them) {
  const std::shared_ptr<GraphMemory> memory = streams().memory_of(graph_of(graph));
  if (!memory || (count && (!from || !to))) return cudaErrorInvalidValue;
  if (!add_them && memory->has_nodes()) return cudaErrorNotSupported;
  for (size_t i = 0; i < count; ++i) {
    const bool done =
        add_them ? streams().add_edge(graph_of(graph), node_of(from[i]), node_of(to[i]))
                 : streams().remove_edge(graph_of(graph), node_of(from[i]), node_of(to[i]));
    if (!done) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

std::shared_ptr<const KernelParameters> kernel_parameters(cudaGraphNode_t node, bool* is_kernel) {
  std::shared_ptr<const KernelParameters> parameters;
  *is_kernel = false;
  streams().with_node(node_of(node), [&](const GraphNode& found, const Graph&) {
    *is_kernel = found.kind == NodeKind::kKernel;
    if (*is_kernel) parameters = std::static_pointer_cast<KernelParameters>(found.parameters);
  });
  return parameters;
}

// Changes a copy, which takes the node's parameters' place.
template <typename F>
cudaError_t change_kernel(cudaGraphNode_t node, F change) {
  bool is_kernel = false;
  const auto old_parameters = kernel_parameters(node, &is_kernel);
  if (!is_kernel) return cudaErrorInvalidValue;
  auto made = old_parameters ? std::make_shared<KernelParameters>(*old_parameters)
                             : std::make_shared<KernelParameters>();
  change(*made);
  return set(node, {cudaSuccess, NodeKind::kKernel, nullptr, std::move(made)});
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

// Adding.

MEMLEDGER_ANSWER cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* dependencies,
                                                   size_t count) {
  return result(add(node, graph, dependencies, count, {}));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaKernelNodeParams* parameters) {
  return result(add(node, graph, dependencies, count, kernel_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* dependencies,
                                                      size_t count, void* destination,
                                                      const void* source, size_t bytes,
                                                      cudaMemcpyKind kind) {
  return result(
      add(node, graph, dependencies, count, copy_content(destination, source, bytes, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaMemcpy3DParms* parameters) {
  return result(add(node, graph, dependencies, count, copy_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNodeToSymbol(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies, size_t count,
    const void* symbol, const void* source, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return result(add(node, graph, dependencies, count,
                    to_symbol_content(symbol, source, bytes, offset, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNodeFromSymbol(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies, size_t count,
    void* destination, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return result(add(node, graph, dependencies, count,
                    from_symbol_content(destination, symbol, bytes, offset, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaMemsetParams* parameters) {
  return result(add(node, graph, dependencies, count, fill_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* dependencies, size_t count,
                                                  const cudaHostNodeParams* parameters) {
  return result(add(node, graph, dependencies, count, host_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                        const cudaGraphNode_t* dependencies,
                                                        size_t count, cudaGraph_t child) {
  return result(add(node, graph, dependencies, count, child_content(child)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                         const cudaGraphNode_t* dependencies,
                                                         size_t count, cudaEvent_t event) {
  return result(
      add(node, graph, dependencies, count, event_content(NodeKind::kEventRecord, event)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                       const cudaGraphNode_t* dependencies,
                                                       size_t count, cudaEvent_t event) {
  return result(add(node, graph, dependencies, count, event_content(NodeKind::kEventWait, event)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* dependencies,
                                                      size_t count,
                                                      cudaMemAllocNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(add_allocation(node, graph, dependencies, count, parameters->poolProps,
                               parameters->bytesize, &parameters->dptr));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                     const cudaGraphNode_t* dependencies,
                                                     size_t count, void* pointer) {
  return result(add_free(node, graph, dependencies, count, pointer));
}

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies,
                                              const cudaGraphEdgeData*, size_t count,
                                              cudaGraphNodeParams* parameters) {
  return result(add_any(node, graph, dependencies, count, parameters));
}
#else
MEMLEDGER_ANSWER cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, size_t count,
                                              cudaGraphNodeParams* parameters) {
  return result(add_any(node, graph, dependencies, count, parameters));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphAddNode_v2(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies,
                                                 const cudaGraphEdgeData*, size_t count,
                                                 cudaGraphNodeParams* parameters) {
  return result(add_any(node, graph, dependencies, count, parameters));
}
#endif

MEMLEDGER_ANSWER cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  std::shared_ptr<GraphMemory> memory;
  streams().with_node(node_of(node),
                      [&](const GraphNode&, const Graph& graph) { memory = graph.memory; });
  if (!memory) return result(cudaErrorInvalidValue);
  if (memory->has_nodes()) return result(cudaErrorNotSupported);
  return result(streams().remove_node(node_of(node)) ? cudaSuccess : cudaErrorInvalidValue);
}

// Asking.

MEMLEDGER_ANSWER cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                               size_t* count) {
  return result(copy_out(streams().nodes_of(graph_of(graph)), nodes, nullptr, count));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                                   size_t* count) {
  std::optional<std::vector<GraphNode*>> roots;
  streams().with_graph(graph_of(graph), [&](const Graph& found) {
    roots.emplace();
    for (const std::unique_ptr<GraphNode>& node : found.nodes) {
      if (node->dependencies.empty()) roots->push_back(node.get());
    }
  });
  return result(copy_out(roots, nodes, nullptr, count));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  if (!type) return result(cudaErrorInvalidValue);
  const bool is_node =
      streams().with_node(node_of(node), [&](const GraphNode& found, const Graph&) {
        *type = static_cast<cudaGraphNodeType>(found.kind);
      });
  return result(is_node ? cudaSuccess : cudaErrorInvalidValue);
}

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from,
                                               cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                               size_t* count) {
  return result(edges_of(graph, from, to, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                          cudaGraphNode_t* dependencies,
                                                          cudaGraphEdgeData* edges, size_t* count) {
  return result(copy_out(streams().dependencies_of(node_of(node)), dependencies, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                                            cudaGraphNode_t* dependents,
                                                            cudaGraphEdgeData* edges,
                                                            size_t* count) {
  return result(copy_out(streams().dependents_of(node_of(node)), dependents, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphAddDependencies(cudaGraph_t graph,
                                                      const cudaGraphNode_t* from,
                                                      const cudaGraphNode_t* to,
                                                      const cudaGraphEdgeData*, size_t count) {
  return result(change_edges(graph, from, to, count, true));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph,
                                                         const cudaGraphNode_t* from,
                                                         const cudaGraphNode_t* to,
                                                         const cudaGraphEdgeData*, size_t count) {
  return result(change_edges(graph, from, to, count, false));
}
#else
MEMLEDGER_ANSWER cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from,
                                               cudaGraphNode_t* to, size_t* count) {
  return result(edges_of(graph, from, to, nullptr, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphGetEdges_v2(cudaGraph_t graph, cudaGraphNode_t* from,
                                                  cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                                  size_t* count) {
  return result(edges_of(graph, from, to, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                          cudaGraphNode_t* dependencies,
                                                          size_t* count) {
  return result(copy_out(streams().dependencies_of(node_of(node)), dependencies, nullptr, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node,
                                                             cudaGraphNode_t* dependencies,
                                                             cudaGraphEdgeData* edges,
                                                             size_t* count) {
  return result(copy_out(streams().dependencies_of(node_of(node)), dependencies, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                                            cudaGraphNode_t* dependents,
                                                            size_t* count) {
  return result(copy_out(streams().dependents_of(node_of(node)), dependents, nullptr, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependentNodes_v2(cudaGraphNode_t node,
                                                               cudaGraphNode_t* dependents,
                                                               cudaGraphEdgeData* edges,
                                                               size_t* count) {
  return result(copy_out(streams().dependents_of(node_of(node)), dependents, edges, count));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphAddDependencies(cudaGraph_t graph,
                                                      const cudaGraphNode_t* from,
                                                      const cudaGraphNode_t* to, size_t count) {
  return result(change_edges(graph, from, to, count, true));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphAddDependencies_v2(cudaGraph_t graph,
                                                         const cudaGraphNode_t* from,
                                                         const cudaGraphNode_t* to,
                                                         const cudaGraphEdgeData*, size_t count) {
  return result(change_edges(graph, from, to, count, true));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph,
                                                         const cudaGraphNode_t* from,
                                                         const cudaGraphNode_t* to, size_t count) {
  return result(change_edges(graph, from, to, count, false));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphRemoveDependencies_v2(cudaGraph_t graph,
                                                            const cudaGraphNode_t* from,
                                                            const cudaGraphNode_t* to,
                                                            const cudaGraphEdgeData*,
                                                            size_t count) {
  return result(change_edges(graph, from, to, count, false));
}
#endif

MEMLEDGER_ANSWER cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                          cudaKernelNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  bool is_kernel = false;
  const auto known = kernel_parameters(node, &is_kernel);
  if (is_kernel && known && known->is_known) {
    *parameters = known->launch;
    return cudaSuccess;
  }
  if (!is_kernel) return result(cudaErrorInvalidValue);
  MEMLEDGER_SAY_REFUSED("what a captured kernel was launched with is not kept.");
  return result(cudaErrorNotSupported);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node,
                                                          cudaMemcpy3DParms* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(with_parameters<CopyParameters>(node, NodeKind::kCopy, [&](const auto& known) {
    *parameters = known.copy;
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node,
                                                          cudaMemsetParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(with_parameters<FillParameters>(node, NodeKind::kFill, [&](const auto& known) {
    *parameters = known.fill;
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node,
                                                        cudaHostNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(with_parameters<HostParameters>(node, NodeKind::kHost, [&](const auto& known) {
    *parameters = known.host;
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                                            cudaMemAllocNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(with_parameters<GraphBlock>(node, NodeKind::kAllocate, [&](const auto& block) {
    std::memset(parameters, 0, sizeof *parameters);
    parameters->poolProps.allocType = cudaMemAllocationTypePinned;
    parameters->poolProps.location.type = cudaMemLocationTypeDevice;
    parameters->poolProps.location.id = block.device;
    parameters->bytesize = block.bytes;
    parameters->dptr = block.pointer;
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* pointer) {
  if (!pointer) return result(cudaErrorInvalidValue);
  return result(with_parameters<FreeParameters>(node, NodeKind::kFree, [&](const auto& known) {
    *static_cast<void**>(pointer) = known.pointer;
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node,
                                                             cudaGraph_t* graph) {
  if (!graph) return result(cudaErrorInvalidValue);
  return result(with_parameters<ChildParameters>(node, NodeKind::kGraph, [&](const auto& child) {
    if (child.graphs.empty()) return cudaErrorNotSupported;  // a captured launch
    *graph = child.graphs.front();
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node,
                                                              cudaEvent_t* event) {
  return result(tell_event(node, NodeKind::kEventRecord, event));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node,
                                                            cudaEvent_t* event) {
  return result(tell_event(node, NodeKind::kEventWait, event));
}

// Changing a node, or a node of an executable.

MEMLEDGER_ANSWER cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                          const cudaKernelNodeParams* parameters) {
  const NodeContent content = kernel_content(parameters);
  if (content.error) return result(content.error);
  return result(change_kernel(node, [&](KernelParameters& kernel) {
    kernel.is_known = true;
    kernel.launch = *parameters;
  }));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* parameters) {
  return result(set_in_executable(executable, node, kernel_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                                          const cudaMemcpy3DParms* parameters) {
  return result(set(node, copy_content(parameters)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t executable,
                                                              cudaGraphNode_t node,
                                                              const cudaMemcpy3DParms* parameters) {
  return result(set_in_executable(executable, node, copy_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* destination,
                                                            const void* source, size_t bytes,
                                                            cudaMemcpyKind kind) {
  return result(set(node, copy_content(destination, source, bytes, kind)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable,
                                                                cudaGraphNode_t node,
                                                                void* destination,
                                                                const void* source, size_t bytes,
                                                                cudaMemcpyKind kind) {
  return result(
      set_in_executable(executable, node, copy_content(destination, source, bytes, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node,
                                                                  const void* symbol,
                                                                  const void* source, size_t bytes,
                                                                  size_t offset,
                                                                  cudaMemcpyKind kind) {
  return result(set(node, to_symbol_content(symbol, source, bytes, offset, kind)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(
    cudaGraphExec_t executable, cudaGraphNode_t node, const void* symbol, const void* source,
    size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return result(
      set_in_executable(executable, node, to_symbol_content(symbol, source, bytes, offset, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node,
                                                                    void* destination,
                                                                    const void* symbol,
                                                                    size_t bytes, size_t offset,
                                                                    cudaMemcpyKind kind) {
  return result(set(node, from_symbol_content(destination, symbol, bytes, offset, kind)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(
    cudaGraphExec_t executable, cudaGraphNode_t node, void* destination, const void* symbol,
    size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return result(set_in_executable(executable, node,
                                  from_symbol_content(destination, symbol, bytes, offset, kind)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node,
                                                          const cudaMemsetParams* parameters) {
  return result(set(node, fill_content(parameters)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable,
                                                              cudaGraphNode_t node,
                                                              const cudaMemsetParams* parameters) {
  return result(set_in_executable(executable, node, fill_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node,
                                                        const cudaHostNodeParams* parameters) {
  return result(set(node, host_content(parameters)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable,
                                                            cudaGraphNode_t node,
                                                            const cudaHostNodeParams* parameters) {
  return result(set_in_executable(executable, node, host_content(parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t executable,
                                                                  cudaGraphNode_t node,
                                                                  cudaGraph_t child) {
  return result(set_in_executable(executable, node, child_content(child)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node,
                                                              cudaEvent_t event) {
  return result(set(node, event_content(NodeKind::kEventRecord, event)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable,
                                                                  cudaGraphNode_t node,
                                                                  cudaEvent_t event) {
  return result(set_in_executable(executable, node, event_content(NodeKind::kEventRecord, event)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node,
                                                            cudaEvent_t event) {
  return result(set(node, event_content(NodeKind::kEventWait, event)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t executable,
                                                                cudaGraphNode_t node,
                                                                cudaEvent_t event) {
  return result(set_in_executable(executable, node, event_content(NodeKind::kEventWait, event)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node,
                                                    cudaGraphNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(set(node, content_of(*parameters)));
}
MEMLEDGER_ANSWER cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t executable,
                                                        cudaGraphNode_t node,
                                                        cudaGraphNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(set_in_executable(executable, node, content_of(*parameters)));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t executable,
                                                     cudaGraphNode_t node, unsigned is_enabled) {
  return result(
      with_step_enabled(executable, node, [&](bool& enabled) { enabled = is_enabled != 0; }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t executable,
                                                     cudaGraphNode_t node, unsigned* is_enabled) {
  if (!is_enabled) return result(cudaErrorInvalidValue);
  return result(
      with_step_enabled(executable, node, [&](const bool& enabled) { *is_enabled = enabled; }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphKernelNodeSetAttribute(
    cudaGraphNode_t node, cudaLaunchAttributeID attribute, const cudaLaunchAttributeValue* value) {
  if (!value) return result(cudaErrorInvalidValue);
  return result(change_kernel(
      node, [&](KernelParameters& kernel) { kernel.attributes[attribute] = *value; }));
}

// What was not set is 0.
MEMLEDGER_ANSWER cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node,
                                                             cudaLaunchAttributeID attribute,
                                                             cudaLaunchAttributeValue* value) {
  if (!value) return result(cudaErrorInvalidValue);
  bool is_kernel = false;
  const auto known = kernel_parameters(node, &is_kernel);
  if (!is_kernel) return result(cudaErrorInvalidValue);
  std::memset(value, 0, sizeof *value);
  if (known && known->attributes.count(attribute)) *value = known->attributes.at(attribute);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t to,
                                                               cudaGraphNode_t from) {
  bool is_kernel = false;
  const auto known = kernel_parameters(from, &is_kernel);
  if (!is_kernel) return result(cudaErrorInvalidValue);
  return result(change_kernel(to, [&](KernelParameters& kernel) {
    kernel.attributes = known ? known->attributes : std::map<int, cudaLaunchAttributeValue>();
  }));
}
