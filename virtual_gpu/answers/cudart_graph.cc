// The runtime: graphs. Kernels are not run, so a launch does the copies, fills and host functions
// of its nodes, in the order in which they were added.
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "virtual_gpu/answers/cudart.h"

namespace memledger::virtual_gpu {
namespace {

struct Executable {
  std::vector<std::function<void()>> work;
};

struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  unsigned references;
};

// What the program owns beside graphs; a fork waits for its lock. Never destroyed.
struct Owned {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<const Executable>> executables;
  std::unordered_map<const void*, UserObject> user_objects;
  std::unordered_map<const void*, std::unordered_map<const void*, unsigned>> retained;  // by graph
};

Owned* made_owned = nullptr;

Owned& owned() {
  static Owned* const made = [] {
    made_owned = new Owned;
    pthread_atfork([] { made_owned->mutex.lock(); }, [] { made_owned->mutex.unlock(); },
                   [] { made_owned->mutex.unlock(); });
    return made_owned;
  }();
  return *made;
}

Graph* graph_of(cudaGraph_t graph) { return reinterpret_cast<Graph*>(graph); }
cudaGraphNode_t handle_of(GraphNode* node) { return reinterpret_cast<cudaGraphNode_t>(node); }

std::shared_ptr<const Executable> find_executable(cudaGraphExec_t handle) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.executables.find(handle);
  return found == o.executables.end() ? nullptr : found->second;
}

cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  if (!executable || !graph) return cudaErrorInvalidValue;
  if (const cudaError_t error = ready()) return error;
  auto work = streams().work_of(graph_of(graph));
  if (!work) return cudaErrorInvalidValue;
  auto made = std::make_shared<const Executable>(Executable{std::move(*work)});
  *executable = reinterpret_cast<cudaGraphExec_t>(new char);  // a handle of its own
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.executables[*executable] = std::move(made);
  return cudaSuccess;
}

cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                     size_t count, NodeKind kind, std::function<void()> run) {
  if (!node || !graph || (count && !dependencies)) return cudaErrorInvalidValue;
  auto* const first = reinterpret_cast<GraphNode* const*>(dependencies);
  GraphNode* const added =
      streams().add_node(graph_of(graph), {first, first + count}, kind, std::move(run));
  *node = handle_of(added);
  return added ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_out(const std::optional<std::vector<GraphNode*>>& found, cudaGraphNode_t* nodes,
                     size_t* count) {
  if (!count || !found) return cudaErrorInvalidValue;
  if (nodes) {
    for (size_t i = 0; i < *count; ++i)
      nodes[i] = i < found->size() ? handle_of((*found)[i]) : nullptr;
  }
  if (!nodes || *count > found->size()) *count = found->size();
  return cudaSuccess;
}

// Returns what is to be destroyed, which the caller does without the lock.
std::optional<UserObject> drop_locked(Owned& o, const void* object, unsigned count) {
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end()) return std::nullopt;
  found->second.references -= std::min(count, found->second.references);
  if (found->second.references) return std::nullopt;
  const UserObject last = found->second;
  o.user_objects.erase(found);
  return last;
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  if (!graph || flags) return result(cudaErrorInvalidValue);
  *graph = reinterpret_cast<cudaGraph_t>(streams().make_graph());
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!streams().remove_graph(graph_of(graph))) return result(cudaErrorInvalidValue);
  std::vector<UserObject> last;
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    for (const auto& [object, count] : o.retained[graph]) {
      if (const auto dropped = drop_locked(o, object, count)) last.push_back(*dropped);
    }
    o.retained.erase(graph);
  }
  for (const UserObject& object : last) object.destroy(object.pointer);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  if (!clone || !original) return result(cudaErrorInvalidValue);
  const auto nodes = streams().nodes_of(graph_of(original));
  if (!nodes) return result(cudaErrorInvalidValue);
  Graph* const copy = streams().make_graph();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (GraphNode* node : *nodes) {
    std::vector<GraphNode*> dependencies;
    for (GraphNode* dependency : node->dependencies) dependencies.push_back(copies[dependency]);
    copies[node] = streams().add_node(copy, std::move(dependencies), node->kind, node->run);
  }
  *clone = reinterpret_cast<cudaGraph_t>(copy);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* dependencies,
                                                   size_t count) {
  return result(add_node(node, graph, dependencies, count, NodeKind::kEmpty, nullptr));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaKernelNodeParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  if (const cudaError_t error =
          check_launch(parameters->gridDim, parameters->blockDim, parameters->sharedMemBytes))
    return result(error);
  return result(add_node(node, graph, dependencies, count, NodeKind::kKernel, nullptr));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* dependencies,
                                                      size_t count, void* destination,
                                                      const void* source, size_t bytes,
                                                      cudaMemcpyKind kind) {
  return result(add_node(node, graph, dependencies, count, NodeKind::kCopy,
                         [=] { transfer(destination, source, bytes, kind); }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaMemcpy3DParms* parameters) {
  if (!parameters || parameters->srcArray || parameters->dstArray)
    return result(cudaErrorInvalidValue);
  return result(add_node(node, graph, dependencies, count, NodeKind::kCopy,
                         [copy = *parameters] { transfer_3d(copy); }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    size_t count,
                                                    const cudaMemsetParams* parameters) {
  if (!parameters) return result(cudaErrorInvalidValue);
  return result(add_node(node, graph, dependencies, count, NodeKind::kFill, [p = *parameters] {
    for (size_t row = 0; row < p.height; ++row)
      fill(static_cast<char*>(p.dst) + row * p.pitch, p.value, p.elementSize, p.width);
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* dependencies, size_t count,
                                                  const cudaHostNodeParams* parameters) {
  if (!parameters || !parameters->fn) return result(cudaErrorInvalidValue);
  return result(add_node(node, graph, dependencies, count, NodeKind::kHost,
                         [p = *parameters] { p.fn(p.userData); }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                        const cudaGraphNode_t* dependencies,
                                                        size_t count, cudaGraph_t child) {
  auto work = child ? streams().work_of(graph_of(child)) : std::nullopt;
  if (!work) return result(cudaErrorInvalidValue);
  return result(
      add_node(node, graph, dependencies, count, NodeKind::kGraph, [work = std::move(*work)] {
        for (const std::function<void()>& run : work) run();
      }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                               size_t* count) {
  return result(copy_out(streams().nodes_of(graph_of(graph)), nodes, count));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                                   size_t* count) {
  auto found = streams().nodes_of(graph_of(graph));
  if (found) {
    std::vector<GraphNode*> roots;
    for (GraphNode* node : *found) {
      if (node->dependencies.empty()) roots.push_back(node);
    }
    *found = std::move(roots);
  }
  return result(copy_out(found, nodes, count));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  auto* const known = reinterpret_cast<GraphNode*>(node);
  if (!type || !streams().dependencies_of(known)) return result(cudaErrorInvalidValue);
  *type = static_cast<cudaGraphNodeType>(known->kind);
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                          cudaGraphNode_t* dependencies,
                                                          cudaGraphEdgeData* edges, size_t* count) {
  if (edges && count) std::memset(edges, 0, *count * sizeof *edges);
#else
MEMLEDGER_ANSWER cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                          cudaGraphNode_t* dependencies,
                                                          size_t* count) {
#endif
  return result(
      copy_out(streams().dependencies_of(reinterpret_cast<GraphNode*>(node)), dependencies, count));
}

// Executable graphs.

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                  unsigned long long) {
  return result(instantiate(executable, graph));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable,
                                                           cudaGraph_t graph, unsigned long long) {
  return result(instantiate(executable, graph));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphInstantiateWithParams(
    cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* parameters) {
  const cudaError_t error = instantiate(executable, graph);
  if (parameters) {
    parameters->errNode_out = nullptr;
    parameters->result_out = error ? cudaGraphInstantiateError : cudaGraphInstantiateSuccess;
  }
  return result(error);
}

// The new graph takes the place of the old one, whatever its shape.
MEMLEDGER_ANSWER cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                                 cudaGraphExecUpdateResultInfo* info) {
  auto work = streams().work_of(graph_of(graph));
  if (!work || !find_executable(executable)) return result(cudaErrorInvalidValue);
  if (info) {
    std::memset(info, 0, sizeof *info);
    info->result = cudaGraphExecUpdateSuccess;
  }
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.executables[executable] = std::make_shared<const Executable>(Executable{std::move(*work)});
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!find_executable(executable)) return result(cudaErrorInvalidValue);
  return result(is_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

MEMLEDGER_ANSWER cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  if (const cudaError_t error = ready()) return result(error);
  const std::shared_ptr<const Executable> executable = find_executable(handle);
  if (!executable) return result(cudaErrorInvalidValue);
  return result(on_stream(stream, NodeKind::kGraph, [executable] {
    Machine::get().note_kernel();
    known_values().wrote_anywhere();
    for (const std::function<void()>& run : executable->work) run();
    // A kernel may come after the copy.
    known_values().wrote_anywhere();
    return cudaSuccess;
  }));
}

MEMLEDGER_ANSWER cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  std::shared_ptr<const Executable> last;
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.executables.find(executable);
  if (found == o.executables.end()) return result(cudaErrorInvalidValue);
  last = std::move(found->second);
  o.executables.erase(found);
  delete reinterpret_cast<char*>(executable);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  const auto nodes = streams().nodes_of(graph_of(graph));
  if (!path || !nodes) return result(cudaErrorInvalidValue);
  std::FILE* const file = std::fopen(path, "we");
  if (!file) return result(cudaErrorOperatingSystem);
  std::fputs("digraph dot {\n", file);
  for (const GraphNode* node : *nodes) {
    std::fprintf(file, "\"%p\" [label=\"%d\"]\n", static_cast<const void*>(node),
                 static_cast<int>(node->kind));
    for (const GraphNode* dependency : node->dependencies)
      std::fprintf(file, "\"%p\" -> \"%p\"\n", static_cast<const void*>(dependency),
                   static_cast<const void*>(node));
  }
  std::fputs("}\n", file);
  std::fclose(file);
  return cudaSuccess;
}

// Objects of the program's that live as long as a graph.

MEMLEDGER_ANSWER cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer,
                                                  cudaHostFn_t destroy, unsigned references,
                                                  unsigned) {
  if (!object || !destroy || !references) return result(cudaErrorInvalidValue);
  // The handle is the address of a byte of its own, kept for ever: an object is 1 byte.
  *object = reinterpret_cast<cudaUserObject_t>(new char);
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  o.user_objects[*object] = {pointer, destroy, references};
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end()) return result(cudaErrorInvalidValue);
  found->second.references += count;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  std::optional<UserObject> last;
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    if (!o.user_objects.count(object)) return result(cudaErrorInvalidValue);
    last = drop_locked(o, object, count);
  }
  if (last) last->destroy(last->pointer);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                       unsigned count, unsigned flags) {
  if (!streams().is_graph(graph_of(graph))) return result(cudaErrorInvalidValue);
  Owned& o = owned();
  std::lock_guard<std::mutex> lock(o.mutex);
  const auto found = o.user_objects.find(object);
  if (found == o.user_objects.end()) return result(cudaErrorInvalidValue);
  if (flags != cudaGraphUserObjectMove) found->second.references += count;
  o.retained[graph][object] += count;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                        unsigned count) {
  std::optional<UserObject> last;
  {
    Owned& o = owned();
    std::lock_guard<std::mutex> lock(o.mutex);
    unsigned& held = o.retained[graph][object];
    if (held < count) return result(cudaErrorInvalidValue);
    held -= count;
    last = drop_locked(o, object, count);
  }
  if (last) last->destroy(last->pointer);
  return cudaSuccess;
}

// Memory of graphs.

MEMLEDGER_ANSWER cudaError_t cudaDeviceGraphMemTrim(int device) {
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  Machine::get().trim(Machine::get().graph_pool(device), 0);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetGraphMemAttribute(int device,
                                                            cudaGraphMemAttributeType attribute,
                                                            void* value) {
  if (!value) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  cudaError_t error = cudaSuccess;
  Machine::get().with_pool(Machine::get().graph_pool(device), [&](const MemoryPool& pool) {
    auto& number = *static_cast<uint64_t*>(value);
    switch (attribute) {
      case cudaGraphMemAttrUsedMemCurrent:
        number = pool.used;
        break;
      case cudaGraphMemAttrUsedMemHigh:
        number = pool.used_high;
        break;
      case cudaGraphMemAttrReservedMemCurrent:
        number = pool.reserved;
        break;
      case cudaGraphMemAttrReservedMemHigh:
        number = pool.reserved_high;
        break;
      default:
        error = cudaErrorInvalidValue;
        break;
    }
  });
  return result(error);
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSetGraphMemAttribute(int device,
                                                            cudaGraphMemAttributeType attribute,
                                                            void* value) {
  if (!value || *static_cast<uint64_t*>(value) != 0) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  Machine::get().with_pool(Machine::get().graph_pool(device), [&](MemoryPool& pool) {
    if (attribute == cudaGraphMemAttrUsedMemHigh) pool.used_high = pool.used;
    if (attribute == cudaGraphMemAttrReservedMemHigh) pool.reserved_high = pool.reserved;
  });
  return cudaSuccess;
}
