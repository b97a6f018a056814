// The driver: graphs, and what else of streams and events is the runtime's.
#include <cuda.h>

#include <cstring>

#include "virtual_gpu/answers/cudart.h"

// In the header the plain names of functions with several versions are macros for the newest one.
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuGraphAddDependencies
#undef cuGraphAddKernelNode
#undef cuGraphAddNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphGetEdges
#undef cuGraphInstantiate
#undef cuGraphKernelNodeGetParams
#undef cuGraphKernelNodeSetParams
#undef cuGraphNodeGetDependencies
#undef cuGraphNodeGetDependentNodes
#undef cuGraphRemoveDependencies
#undef cuStreamBeginCapture
#undef cuStreamDestroy
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies

using namespace memledger::virtual_gpu;

namespace {

// Handles, and the structures that are named alike, are the same in driver and runtime.
template <typename F, typename... A>
CUresult as_runtime(F function, A... arguments) {
  const KeepLastError keep;
  return static_cast<CUresult>(function(arguments...));
}

static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == sizeof(cudaMemsetParams));
static_assert(sizeof(CUDA_HOST_NODE_PARAMS) == sizeof(cudaHostNodeParams));
static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == sizeof(cudaMemAllocNodeParams));
static_assert(sizeof(CUgraphNodeParams) == sizeof(cudaGraphNodeParams));
static_assert(sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));
static_assert(sizeof(CUkernelNodeAttrValue) == sizeof(cudaLaunchAttributeValue));
static_assert(sizeof(CUgraphExecUpdateResultInfo) == sizeof(cudaGraphExecUpdateResultInfo));
static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == sizeof(cudaGraphInstantiateParams));

template <typename To, typename From>
To* as(From* from) {
  return reinterpret_cast<To*>(from);
}

// Any of the driver's structures of kernels.
template <typename P>
cudaKernelNodeParams kernel_of(const P& from) {
  cudaKernelNodeParams to{};
  to.func = reinterpret_cast<void*>(from.func);
  to.gridDim = {from.gridDimX, from.gridDimY, from.gridDimZ};
  to.blockDim = {from.blockDimX, from.blockDimY, from.blockDimZ};
  to.sharedMemBytes = from.sharedMemBytes;
  to.kernelParams = from.kernelParams;
  to.extra = from.extra;
  return to;
}

template <typename P>
void fill_kernel(P& to, const cudaKernelNodeParams& from) {
  std::memset(&to, 0, sizeof to);
  to.func = reinterpret_cast<CUfunction>(from.func);
  to.gridDimX = from.gridDim.x;
  to.gridDimY = from.gridDim.y;
  to.gridDimZ = from.gridDim.z;
  to.blockDimX = from.blockDim.x;
  to.blockDimY = from.blockDim.y;
  to.blockDimZ = from.blockDim.z;
  to.sharedMemBytes = from.sharedMemBytes;
  to.kernelParams = from.kernelParams;
  to.extra = from.extra;
}

// Between linear memory only: an array is refused, like the runtime's.
cudaMemcpy3DParms copy_of(const CUDA_MEMCPY3D& from) {
  cudaMemcpy3DParms to{};
  void* const source = from.srcMemoryType == CU_MEMORYTYPE_HOST
                           ? const_cast<void*>(from.srcHost)
                           : reinterpret_cast<void*>(from.srcDevice);
  void* const destination = from.dstMemoryType == CU_MEMORYTYPE_HOST
                                ? from.dstHost
                                : reinterpret_cast<void*>(from.dstDevice);
  const size_t source_pitch = from.srcPitch ? from.srcPitch : from.WidthInBytes;
  const size_t destination_pitch = from.dstPitch ? from.dstPitch : from.WidthInBytes;
  to.srcPtr = {source, source_pitch, from.WidthInBytes,
               from.srcHeight ? from.srcHeight : from.Height};
  to.dstPtr = {destination, destination_pitch, from.WidthInBytes,
               from.dstHeight ? from.dstHeight : from.Height};
  to.srcPos = {from.srcXInBytes, from.srcY, from.srcZ};
  to.dstPos = {from.dstXInBytes, from.dstY, from.dstZ};
  to.extent = {from.WidthInBytes, from.Height, from.Depth};
  to.kind = cudaMemcpyDefault;
  if (from.srcMemoryType == CU_MEMORYTYPE_ARRAY) to.srcArray = as<cudaArray>(from.srcArray);
  if (from.dstMemoryType == CU_MEMORYTYPE_ARRAY) to.dstArray = as<cudaArray>(from.dstArray);
  return to;
}

void fill_copy(CUDA_MEMCPY3D& to, const cudaMemcpy3DParms& from) {
  std::memset(&to, 0, sizeof to);
  to.srcMemoryType = to.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  to.srcDevice = reinterpret_cast<CUdeviceptr>(from.srcPtr.ptr);
  to.dstDevice = reinterpret_cast<CUdeviceptr>(from.dstPtr.ptr);
  to.srcPitch = from.srcPtr.pitch;
  to.dstPitch = from.dstPtr.pitch;
  to.srcHeight = from.srcPtr.ysize;
  to.dstHeight = from.dstPtr.ysize;
  to.srcXInBytes = from.srcPos.x;
  to.srcY = from.srcPos.y;
  to.srcZ = from.srcPos.z;
  to.dstXInBytes = from.dstPos.x;
  to.dstY = from.dstPos.y;
  to.dstZ = from.dstPos.z;
  to.WidthInBytes = from.extent.width;
  to.Height = from.extent.height;
  to.Depth = from.extent.depth;
}

// What the two have alike stays where it is; the others are converted.
cudaGraphNodeParams node_params_of(const CUgraphNodeParams& from) {
  cudaGraphNodeParams to = *as<const cudaGraphNodeParams>(&from);
  if (from.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    const cudaKernelNodeParams kernel = kernel_of(from.kernel);
    to.kernel.func = from.kernel.func ? kernel.func : reinterpret_cast<void*>(from.kernel.kern);
    to.kernel.gridDim = kernel.gridDim;
    to.kernel.blockDim = kernel.blockDim;
    to.kernel.sharedMemBytes = kernel.sharedMemBytes;
    to.kernel.kernelParams = kernel.kernelParams;
    to.kernel.extra = kernel.extra;
  } else if (from.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    to.memcpy.copyParams = copy_of(from.memcpy.copyParams);
  }
  return to;
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  cudaGraphNodeParams converted = node_params_of(*parameters);
#if CUDART_VERSION >= 13000
  const CUresult error =
      as_runtime(cudaGraphAddNode, node, graph, dependencies,
                 static_cast<const cudaGraphEdgeData*>(nullptr), count, &converted);
#else
  const CUresult error = as_runtime(cudaGraphAddNode, node, graph, dependencies, count, &converted);
#endif
  if (parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    parameters->alloc.dptr = reinterpret_cast<CUdeviceptr>(converted.alloc.dptr);
  if (parameters->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    parameters->conditional.phGraph_out = as<CUgraph>(converted.conditional.phGraph_out);
  return error;
}

template <typename P>
CUresult kernel_params(CUgraphNode node, P* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  cudaKernelNodeParams known;
  const CUresult error = as_runtime(cudaGraphKernelNodeGetParams, node, &known);
  if (!error) fill_kernel(*parameters, known);
  return error;
}

template <typename P>
CUresult add_kernel(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                    const P* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams converted = kernel_of(*parameters);
  return as_runtime(cudaGraphAddKernelNode, node, graph, dependencies, count, &converted);
}

template <typename P>
CUresult set_kernel(CUgraphNode node, const P* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams converted = kernel_of(*parameters);
  return as_runtime(cudaGraphKernelNodeSetParams, node, &converted);
}

template <typename P>
CUresult set_kernel(CUgraphExec executable, CUgraphNode node, const P* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams converted = kernel_of(*parameters);
  return as_runtime(cudaGraphExecKernelNodeSetParams, executable, node, &converted);
}

// The runtime's forms without and with data of the edges, by what they take.
CUresult dependencies_of(CUgraphNode node, CUgraphNode* others, CUgraphEdgeData* edges,
                         size_t* count) {
  if (edges && others && count) std::memset(edges, 0, *count * sizeof *edges);
#if CUDART_VERSION >= 13000
  return as_runtime(cudaGraphNodeGetDependencies, node, others, as<cudaGraphEdgeData>(edges),
                    count);
#else
  return as_runtime(cudaGraphNodeGetDependencies, node, others, count);
#endif
}

CUresult dependents_of(CUgraphNode node, CUgraphNode* others, CUgraphEdgeData* edges,
                       size_t* count) {
  if (edges && others && count) std::memset(edges, 0, *count * sizeof *edges);
#if CUDART_VERSION >= 13000
  return as_runtime(cudaGraphNodeGetDependentNodes, node, others, as<cudaGraphEdgeData>(edges),
                    count);
#else
  return as_runtime(cudaGraphNodeGetDependentNodes, node, others, count);
#endif
}

CUresult edges_of(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                  size_t* count) {
  if (edges && from && count) std::memset(edges, 0, *count * sizeof *edges);
#if CUDART_VERSION >= 13000
  return as_runtime(cudaGraphGetEdges, graph, from, to, as<cudaGraphEdgeData>(edges), count);
#else
  return as_runtime(cudaGraphGetEdges, graph, from, to, count);
#endif
}

CUresult add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
#if CUDART_VERSION >= 13000
  return as_runtime(cudaGraphAddDependencies, graph, from, to,
                    static_cast<const cudaGraphEdgeData*>(nullptr), count);
#else
  return as_runtime(cudaGraphAddDependencies, graph, from, to, count);
#endif
}

CUresult remove_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
#if CUDART_VERSION >= 13000
  return as_runtime(cudaGraphRemoveDependencies, graph, from, to,
                    static_cast<const cudaGraphEdgeData*>(nullptr), count);
#else
  return as_runtime(cudaGraphRemoveDependencies, graph, from, to, count);
#endif
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies,
                      const CUgraphEdgeData** edges, size_t* count) {
  const KeepLastError keep;
  if (edges) *edges = nullptr;
  unsigned long long number = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, as<cudaStreamCaptureStatus>(status),
                                                     &number, graph, dependencies, nullptr, count);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, as<cudaStreamCaptureStatus>(status),
                                                     &number, graph, dependencies, count);
#endif
  if (id) *id = number;
  return static_cast<CUresult>(error);
}

CUresult update_dependencies(CUstream stream, CUgraphNode* dependencies, size_t count,
                             unsigned flags) {
#if CUDART_VERSION >= 13000
  return as_runtime(cudaStreamUpdateCaptureDependencies, stream, dependencies,
                    static_cast<const cudaGraphEdgeData*>(nullptr), count, flags);
#else
  return as_runtime(cudaStreamUpdateCaptureDependencies, stream, dependencies, count, flags);
#endif
}

}  // namespace

// Streams and events.

MEMLEDGER_ANSWER CUresult cuStreamDestroy(CUstream stream) {
  return as_runtime(cudaStreamDestroy, stream);
}
MEMLEDGER_ANSWER CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return as_runtime(cudaStreamGetPriority, stream, priority);
}
MEMLEDGER_ANSWER CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  return as_runtime(cudaStreamGetFlags, stream, flags);
}
MEMLEDGER_ANSWER CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return as_runtime(cudaStreamGetId, stream, id);
}
#if CUDA_VERSION >= 12080
MEMLEDGER_ANSWER CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return as_runtime(cudaStreamGetDevice, stream, device);
}
#endif
#if CUDA_VERSION >= 12040
// No stream is of a green context, as there are none.
MEMLEDGER_ANSWER CUresult cuStreamGetGreenCtx(CUstream, CUgreenCtx* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = nullptr;
  return CUDA_SUCCESS;
}
#endif
MEMLEDGER_ANSWER CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  return as_runtime(cudaStreamCopyAttributes, to, from);
}
MEMLEDGER_ANSWER CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute,
                                               CUstreamAttrValue* value) {
  return as_runtime(cudaStreamGetAttribute, stream, static_cast<cudaStreamAttrID>(attribute),
                    as<cudaStreamAttrValue>(value));
}
MEMLEDGER_ANSWER CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
                                               const CUstreamAttrValue* value) {
  return as_runtime(cudaStreamSetAttribute, stream, static_cast<cudaStreamAttrID>(attribute),
                    as<const cudaStreamAttrValue>(value));
}
MEMLEDGER_ANSWER CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback,
                                              void* data, unsigned flags) {
  return as_runtime(cudaStreamAddCallback, stream, reinterpret_cast<cudaStreamCallback_t>(callback),
                    data, flags);
}
MEMLEDGER_ANSWER CUresult cuEventDestroy(CUevent event) {
  return as_runtime(cudaEventDestroy, event);
}
MEMLEDGER_ANSWER CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return as_runtime(cudaEventRecordWithFlags, event, stream, flags);
}
MEMLEDGER_ANSWER CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return as_runtime(cudaEventElapsedTime, milliseconds, start, end);
}
#if CUDA_VERSION >= 12080
MEMLEDGER_ANSWER CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return as_runtime(cudaEventElapsedTime, milliseconds, start, end);
}
#endif

// Capture.

MEMLEDGER_ANSWER CUresult cuStreamBeginCapture(CUstream stream) {
  return as_runtime(cudaStreamBeginCapture, stream, cudaStreamCaptureModeGlobal);
}

MEMLEDGER_ANSWER CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                      const CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* edges, size_t count,
                                                      CUstreamCaptureMode mode) {
  return as_runtime(cudaStreamBeginCaptureToGraph, stream, graph, dependencies,
                    as<const cudaGraphEdgeData>(edges), count,
                    static_cast<cudaStreamCaptureMode>(mode));
}

MEMLEDGER_ANSWER CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status,
                                                 cuuint64_t* id) {
  return capture_info(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}
MEMLEDGER_ANSWER CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                                    cuuint64_t* id, CUgraph* graph,
                                                    const CUgraphNode** dependencies,
                                                    size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
MEMLEDGER_ANSWER CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                                    cuuint64_t* id, CUgraph* graph,
                                                    const CUgraphNode** dependencies,
                                                    const CUgraphEdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}
MEMLEDGER_ANSWER CUresult cuStreamUpdateCaptureDependencies(CUstream stream,
                                                            CUgraphNode* dependencies, size_t count,
                                                            unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}
MEMLEDGER_ANSWER CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream,
                                                               CUgraphNode* dependencies,
                                                               const CUgraphEdgeData*, size_t count,
                                                               unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

// Graphs.

MEMLEDGER_ANSWER CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  return as_runtime(cudaGraphCreate, graph, flags);
}
MEMLEDGER_ANSWER CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  return as_runtime(cudaGraphClone, clone, original);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original,
                                                 CUgraph clone) {
  return as_runtime(cudaGraphNodeFindInClone, node, original, clone);
}
MEMLEDGER_ANSWER CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  return as_runtime(cudaGraphDebugDotPrint, graph, path, flags);
}
MEMLEDGER_ANSWER CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return as_runtime(cudaGraphGetNodes, graph, nodes, count);
}
MEMLEDGER_ANSWER CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return as_runtime(cudaGraphGetRootNodes, graph, nodes, count);
}
MEMLEDGER_ANSWER CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                          size_t* count) {
  return edges_of(graph, from, to, nullptr, count);
}
MEMLEDGER_ANSWER CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                             CUgraphEdgeData* edges, size_t* count) {
  return edges_of(graph, from, to, edges, count);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* dependencies,
                                                     size_t* count) {
  return dependencies_of(node, dependencies, nullptr, count);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* dependencies,
                                                        CUgraphEdgeData* edges, size_t* count) {
  return dependencies_of(node, dependencies, edges, count);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* dependents,
                                                       size_t* count) {
  return dependents_of(node, dependents, nullptr, count);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* dependents,
                                                          CUgraphEdgeData* edges, size_t* count) {
  return dependents_of(node, dependents, edges, count);
}
MEMLEDGER_ANSWER CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                                 const CUgraphNode* to, size_t count) {
  return add_edges(graph, from, to, count);
}
MEMLEDGER_ANSWER CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                                    const CUgraphNode* to, const CUgraphEdgeData*,
                                                    size_t count) {
  return add_edges(graph, from, to, count);
}
MEMLEDGER_ANSWER CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from,
                                                    const CUgraphNode* to, size_t count) {
  return remove_edges(graph, from, to, count);
}
MEMLEDGER_ANSWER CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                                       const CUgraphNode* to,
                                                       const CUgraphEdgeData*, size_t count) {
  return remove_edges(graph, from, to, count);
}
MEMLEDGER_ANSWER CUresult cuGraphDestroyNode(CUgraphNode node) {
  return as_runtime(cudaGraphDestroyNode, node);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return as_runtime(cudaGraphNodeGetType, node, as<cudaGraphNodeType>(type));
}
MEMLEDGER_ANSWER CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle,
                                                         CUgraph graph, CUcontext, unsigned value,
                                                         unsigned flags) {
  return as_runtime(cudaGraphConditionalHandleCreate, as<cudaGraphConditionalHandle>(handle), graph,
                    value, flags);
}

// Nodes.

MEMLEDGER_ANSWER CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         CUgraphNodeParams* parameters) {
  return add_node(node, graph, dependencies, count, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                            const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                            size_t count, CUgraphNodeParams* parameters) {
  return add_node(node, graph, dependencies, count, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  cudaGraphNodeParams converted = node_params_of(*parameters);
  return as_runtime(cudaGraphNodeSetParams, node, &converted);
}
MEMLEDGER_ANSWER CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                   CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  cudaGraphNodeParams converted = node_params_of(*parameters);
  return as_runtime(cudaGraphExecNodeSetParams, executable, node, &converted);
}
MEMLEDGER_ANSWER CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph,
                                              const CUgraphNode* dependencies, size_t count) {
  return as_runtime(cudaGraphAddEmptyNode, node, graph, dependencies, count);
}

MEMLEDGER_ANSWER CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* dependencies, size_t count,
                                               const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return add_kernel(node, graph, dependencies, count, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                                  const CUgraphNode* dependencies, size_t count,
                                                  const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return add_kernel(node, graph, dependencies, count, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeGetParams(CUgraphNode node,
                                                     CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return kernel_params(node, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node,
                                                        CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return kernel_params(node, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeSetParams(CUgraphNode node,
                                                     const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return set_kernel(node, parameters);
}
MEMLEDGER_ANSWER CUresult
cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return set_kernel(node, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphExecKernelNodeSetParams(
    CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return set_kernel(executable, node, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphExecKernelNodeSetParams_v2(
    CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return set_kernel(executable, node, parameters);
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return as_runtime(cudaGraphKernelNodeCopyAttributes, to, from);
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node,
                                                        CUkernelNodeAttrID attribute,
                                                        CUkernelNodeAttrValue* value) {
  return as_runtime(cudaGraphKernelNodeGetAttribute, node,
                    static_cast<cudaLaunchAttributeID>(attribute),
                    as<cudaLaunchAttributeValue>(value));
}
MEMLEDGER_ANSWER CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node,
                                                        CUkernelNodeAttrID attribute,
                                                        const CUkernelNodeAttrValue* value) {
  return as_runtime(cudaGraphKernelNodeSetAttribute, node,
                    static_cast<cudaLaunchAttributeID>(attribute),
                    as<const cudaLaunchAttributeValue>(value));
}

MEMLEDGER_ANSWER CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* dependencies, size_t count,
                                               const CUDA_MEMCPY3D* parameters, CUcontext) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaMemcpy3DParms converted = copy_of(*parameters);
  return as_runtime(cudaGraphAddMemcpyNode, node, graph, dependencies, count, &converted);
}
MEMLEDGER_ANSWER CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  cudaMemcpy3DParms known;
  const CUresult error = as_runtime(cudaGraphMemcpyNodeGetParams, node, &known);
  if (!error) fill_copy(*parameters, known);
  return error;
}
MEMLEDGER_ANSWER CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node,
                                                     const CUDA_MEMCPY3D* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaMemcpy3DParms converted = copy_of(*parameters);
  return as_runtime(cudaGraphMemcpyNodeSetParams, node, &converted);
}
MEMLEDGER_ANSWER CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                         const CUDA_MEMCPY3D* parameters,
                                                         CUcontext) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const cudaMemcpy3DParms converted = copy_of(*parameters);
  return as_runtime(cudaGraphExecMemcpyNodeSetParams, executable, node, &converted);
}

MEMLEDGER_ANSWER CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                               const CUgraphNode* dependencies, size_t count,
                                               const CUDA_MEMSET_NODE_PARAMS* parameters,
                                               CUcontext) {
  return as_runtime(cudaGraphAddMemsetNode, node, graph, dependencies, count,
                    as<const cudaMemsetParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphMemsetNodeGetParams(CUgraphNode node,
                                                     CUDA_MEMSET_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphMemsetNodeGetParams, node, as<cudaMemsetParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphMemsetNodeSetParams(CUgraphNode node,
                                                     const CUDA_MEMSET_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphMemsetNodeSetParams, node, as<const cudaMemsetParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                         const CUDA_MEMSET_NODE_PARAMS* parameters,
                                                         CUcontext) {
  return as_runtime(cudaGraphExecMemsetNodeSetParams, executable, node,
                    as<const cudaMemsetParams>(parameters));
}

MEMLEDGER_ANSWER CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph,
                                             const CUgraphNode* dependencies, size_t count,
                                             const CUDA_HOST_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphAddHostNode, node, graph, dependencies, count,
                    as<const cudaHostNodeParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphHostNodeGetParams(CUgraphNode node,
                                                   CUDA_HOST_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphHostNodeGetParams, node, as<cudaHostNodeParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphHostNodeSetParams(CUgraphNode node,
                                                   const CUDA_HOST_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphHostNodeSetParams, node, as<const cudaHostNodeParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                       const CUDA_HOST_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphExecHostNodeSetParams, executable, node,
                    as<const cudaHostNodeParams>(parameters));
}

MEMLEDGER_ANSWER CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                                   const CUgraphNode* dependencies, size_t count,
                                                   CUgraph child) {
  return as_runtime(cudaGraphAddChildGraphNode, node, graph, dependencies, count, child);
}
MEMLEDGER_ANSWER CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  return as_runtime(cudaGraphChildGraphNodeGetGraph, node, graph);
}
MEMLEDGER_ANSWER CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable,
                                                             CUgraphNode node, CUgraph child) {
  return as_runtime(cudaGraphExecChildGraphNodeSetParams, executable, node, child);
}

MEMLEDGER_ANSWER CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                                    const CUgraphNode* dependencies, size_t count,
                                                    CUevent event) {
  return as_runtime(cudaGraphAddEventRecordNode, node, graph, dependencies, count, event);
}
MEMLEDGER_ANSWER CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return as_runtime(cudaGraphEventRecordNodeGetEvent, node, event);
}
MEMLEDGER_ANSWER CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return as_runtime(cudaGraphEventRecordNodeSetEvent, node, event);
}
MEMLEDGER_ANSWER CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable,
                                                             CUgraphNode node, CUevent event) {
  return as_runtime(cudaGraphExecEventRecordNodeSetEvent, executable, node, event);
}
MEMLEDGER_ANSWER CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph,
                                                  const CUgraphNode* dependencies, size_t count,
                                                  CUevent event) {
  return as_runtime(cudaGraphAddEventWaitNode, node, graph, dependencies, count, event);
}
MEMLEDGER_ANSWER CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return as_runtime(cudaGraphEventWaitNodeGetEvent, node, event);
}
MEMLEDGER_ANSWER CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return as_runtime(cudaGraphEventWaitNodeSetEvent, node, event);
}
MEMLEDGER_ANSWER CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node,
                                                           CUevent event) {
  return as_runtime(cudaGraphExecEventWaitNodeSetEvent, executable, node, event);
}

MEMLEDGER_ANSWER CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph,
                                                 const CUgraphNode* dependencies, size_t count,
                                                 CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphAddMemAllocNode, node, graph, dependencies, count,
                    as<cudaMemAllocNodeParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node,
                                                       CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return as_runtime(cudaGraphMemAllocNodeGetParams, node, as<cudaMemAllocNodeParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph,
                                                const CUgraphNode* dependencies, size_t count,
                                                CUdeviceptr address) {
  return as_runtime(cudaGraphAddMemFreeNode, node, graph, dependencies, count,
                    reinterpret_cast<void*>(address));
}
MEMLEDGER_ANSWER CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
  return as_runtime(cudaGraphMemFreeNodeGetParams, node, static_cast<void*>(address));
}

// Executables.

MEMLEDGER_ANSWER CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph,
                                             CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node) *error_node = nullptr;
  if (log && log_bytes) *log = 0;
  return as_runtime(cudaGraphInstantiateWithFlags, executable, graph, 0ULL);
}
MEMLEDGER_ANSWER CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph,
                                                CUgraphNode* error_node, char* log,
                                                size_t log_bytes) {
  return cuGraphInstantiate(executable, graph, error_node, log, log_bytes);
}
MEMLEDGER_ANSWER CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return as_runtime(cudaGraphInstantiateWithParams, executable, graph,
                    as<cudaGraphInstantiateParams>(parameters));
}
MEMLEDGER_ANSWER CUresult cuGraphExecGetFlags(CUgraphExec executable, cuuint64_t* flags) {
  return as_runtime(cudaGraphExecGetFlags, executable, as<unsigned long long>(flags));
}
MEMLEDGER_ANSWER CUresult cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node,
                                                unsigned is_enabled) {
  return as_runtime(cudaGraphNodeSetEnabled, executable, node, is_enabled);
}
MEMLEDGER_ANSWER CUresult cuGraphNodeGetEnabled(CUgraphExec executable, CUgraphNode node,
                                                unsigned* is_enabled) {
  return as_runtime(cudaGraphNodeGetEnabled, executable, node, is_enabled);
}
MEMLEDGER_ANSWER CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                               CUgraphExecUpdateResultInfo* info) {
  return as_runtime(cudaGraphExecUpdate, executable, graph,
                    as<cudaGraphExecUpdateResultInfo>(info));
}
MEMLEDGER_ANSWER CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph,
                                            CUgraphNode* error_node,
                                            CUgraphExecUpdateResult* update_result) {
  CUgraphExecUpdateResultInfo info;
  const CUresult error = cuGraphExecUpdate_v2(executable, graph, &info);
  if (error_node) *error_node = info.errorNode;
  if (update_result) *update_result = info.result;
  return error;
}

// User objects, and the memory of graphs.

MEMLEDGER_ANSWER CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy,
                                             unsigned references, unsigned flags) {
  return as_runtime(cudaUserObjectCreate, object, pointer, destroy, references, flags);
}
MEMLEDGER_ANSWER CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  return as_runtime(cudaUserObjectRetain, object, count);
}
MEMLEDGER_ANSWER CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  return as_runtime(cudaUserObjectRelease, object, count);
}
MEMLEDGER_ANSWER CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object,
                                                  unsigned count, unsigned flags) {
  return as_runtime(cudaGraphRetainUserObject, graph, object, count, flags);
}
MEMLEDGER_ANSWER CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object,
                                                   unsigned count) {
  return as_runtime(cudaGraphReleaseUserObject, graph, object, count);
}
MEMLEDGER_ANSWER CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return as_runtime(cudaDeviceGraphMemTrim, device);
}
MEMLEDGER_ANSWER CUresult cuDeviceGetGraphMemAttribute(CUdevice device,
                                                       CUgraphMem_attribute attribute,
                                                       void* value) {
  return as_runtime(cudaDeviceGetGraphMemAttribute, device,
                    static_cast<cudaGraphMemAttributeType>(attribute), value);
}
MEMLEDGER_ANSWER CUresult cuDeviceSetGraphMemAttribute(CUdevice device,
                                                       CUgraphMem_attribute attribute,
                                                       void* value) {
  return as_runtime(cudaDeviceSetGraphMemAttribute, device,
                    static_cast<cudaGraphMemAttributeType>(attribute), value);
}
