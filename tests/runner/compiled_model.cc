// A model as AOTInductor compiles one, by hand: one constant, one buffer of its own for each run,
// and a result of the size of its input. None of them is made by an operator.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <string>
#include <unordered_map>

namespace {

std::array<float, 1024> memory;
at::Tensor* weight = nullptr;

AtenTensorHandle handle_of(at::Tensor* tensor) {
  return reinterpret_cast<AtenTensorHandle>(tensor);
}

AtenTensorHandle make(int64_t elements) {
  constexpr int64_t kStride = 1;
  AtenTensorHandle made = nullptr;
  aoti_torch_empty_strided(1, &elements, &kStride, aoti_torch_dtype_float32(),
                           aoti_torch_device_type_cpu(), 0, &made);
  return made;
}

}  // namespace

extern "C" {

AOTIRuntimeError AOTInductorModelContainerCreateWithDevice(AOTInductorModelContainerHandle* model,
                                                           size_t /*count*/, const char* /*device*/,
                                                           const char* /*folder*/) {
  *model = reinterpret_cast<AOTInductorModelContainerHandle>(&memory);
  weight = new at::Tensor(at::from_blob(memory.data(), {static_cast<int64_t>(memory.size())}));
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerDelete(AOTInductorModelContainerHandle /*model*/) {
  delete weight;
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerGetNumOutputs(AOTInductorModelContainerHandle /*model*/,
                                                        size_t* count) {
  *count = 1;
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerRun(AOTInductorModelContainerHandle /*model*/,
                                              AtenTensorHandle* inputs, size_t /*input_count*/,
                                              AtenTensorHandle* outputs, size_t /*output_count*/,
                                              AOTInductorStreamHandle /*stream*/,
                                              AOTIProxyExecutorHandle /*executor*/) {
  const AtenTensorHandle buffer = make(1 << 18);
  int64_t elements = 0;
  aoti_torch_get_numel(inputs[0], &elements);
  outputs[0] = make(elements);
  aoti_torch_delete_tensor_object(buffer);
  aoti_torch_delete_tensor_object(inputs[0]);
  inputs[0] = nullptr;  // from LibTorch 2.15 on the caller frees what is left
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerGetNumConstants(AOTInductorModelContainerHandle /*model*/,
                                                          size_t* count) {
  *count = 1;
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerGetConstantName(AOTInductorModelContainerHandle /*model*/,
                                                          size_t /*index*/, const char** name) {
  *name = "encoder_weight";
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerGetConstantOriginalFQN(
    AOTInductorModelContainerHandle /*model*/, size_t /*index*/, const char** name) {
  *name = "encoder.weight";
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerGetConstantDtype(
    AOTInductorModelContainerHandle /*model*/, size_t /*index*/, int32_t* dtype) {
  *dtype = aoti_torch_dtype_float32();
  return 0;
}
AOTIRuntimeError AOTInductorModelContainerExtractConstantsMap(
    AOTInductorModelContainerHandle /*model*/, AOTInductorConstantMapHandle map,
    bool /*use_inactive*/) {
  auto& constants = *reinterpret_cast<std::unordered_map<std::string, AtenTensorHandle>*>(map);
  constants.emplace("encoder.weight", handle_of(weight));
  return 0;
}

// What the loader looks for, and the program does not call.
AOTIRuntimeError not_called() { return 1; }

}  // extern "C"

#define MEMLEDGER_NOT_CALLED(name) \
  __asm__(".globl AOTInductorModel" name "\n.set AOTInductorModel" name ", not_called");
MEMLEDGER_NOT_CALLED("ContainerRunSingleThreaded")
MEMLEDGER_NOT_CALLED("ContainerUpdateConstantBuffer")
MEMLEDGER_NOT_CALLED("ContainerUpdateInactiveConstantBuffer")
MEMLEDGER_NOT_CALLED("ContainerUpdateUserManagedConstantBuffer")
MEMLEDGER_NOT_CALLED("ContainerRunConstantFolding")
MEMLEDGER_NOT_CALLED("ContainerSwapConstantBuffer")
MEMLEDGER_NOT_CALLED("ContainerFreeInactiveConstantBuffer")
MEMLEDGER_NOT_CALLED("ContainerGetCallSpec")
MEMLEDGER_NOT_CALLED("ContainerGetConstantsBlobSize")
MEMLEDGER_NOT_CALLED("UpdateConstantsFromBlob")
