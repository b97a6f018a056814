// The runtime: graphs. Their parameters differ between CUDA versions; as all are refused, this file
// needs none of them, nor the header.
#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/last_error.h"

namespace {

constexpr int kNotSupported = 801;
constexpr char kWhy[] =
    "a virtual GPU has no CUDA graphs, as kernels are not run. Run without torch.cuda.graph / "
    "at::cuda::CUDAGraph.";

}  // namespace

#define MEMLEDGER_NO_GRAPHS(name) \
  MEMLEDGER_REFUSES(name, memledger::virtual_gpu::runtime_result(kNotSupported), kWhy)

MEMLEDGER_NO_GRAPHS(cudaGraphCreate)
MEMLEDGER_NO_GRAPHS(cudaGraphAddNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddDependencies)
MEMLEDGER_NO_GRAPHS(cudaGraphAddKernelNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddMemcpyNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddMemsetNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddHostNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddEmptyNode)
MEMLEDGER_NO_GRAPHS(cudaGraphAddChildGraphNode)
MEMLEDGER_NO_GRAPHS(cudaGraphClone)
MEMLEDGER_NO_GRAPHS(cudaGraphConditionalHandleCreate)
MEMLEDGER_NO_GRAPHS(cudaGraphDebugDotPrint)
MEMLEDGER_NO_GRAPHS(cudaGraphExecUpdate)
MEMLEDGER_NO_GRAPHS(cudaGraphGetNodes)
MEMLEDGER_NO_GRAPHS(cudaGraphInstantiate)
MEMLEDGER_NO_GRAPHS(cudaGraphInstantiateWithFlags)
MEMLEDGER_NO_GRAPHS(cudaGraphInstantiateWithParams)
MEMLEDGER_NO_GRAPHS(cudaGraphLaunch)
MEMLEDGER_NO_GRAPHS(cudaGraphNodeGetDependencies)
MEMLEDGER_NO_GRAPHS(cudaGraphRetainUserObject)
MEMLEDGER_NO_GRAPHS(cudaGraphUpload)
MEMLEDGER_NO_GRAPHS(cudaStreamBeginCaptureToGraph)
MEMLEDGER_NO_GRAPHS(cudaStreamUpdateCaptureDependencies)

// There is nothing to destroy, and nothing is in a graph's pool.
MEMLEDGER_DOES_NOTHING(cudaGraphDestroy)
MEMLEDGER_DOES_NOTHING(cudaGraphExecDestroy)
MEMLEDGER_DOES_NOTHING(cudaDeviceGraphMemTrim)
