// cuDNN: convolutions of the older interface, which LibTorch takes with
// TORCH_CUDNN_V8_API_DISABLED=1.
#include "virtual_gpu/answers/cudnn.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

// The same layout for all three passes.
struct AlgorithmPerformance {
  int algorithm;
  int status;
  float milliseconds;
  size_t bytes;
  int determinism;
  int math_type;
  int reserved[3];
};

constexpr int kDeterministic = 1;
constexpr int kTensorOpMath = 1;
// The precomputed-index implicit product of each pass: BWD_DATA_ALGO_1, BWD_FILTER_ALGO_1,
// FWD_ALGO_IMPLICIT_PRECOMP_GEMM.
constexpr int kAlgorithm = 1;

Convolution convolution(ConvolutionPass pass, const Tensor& x, const Filter& w, const Tensor& y,
                        const ConvolutionShape& shape) {
  Convolution result;
  result.pass = pass;
  result.type = element_type(w.data_type);
  result.x = x.extents;
  result.w = w.extents;
  result.y = y.extents;
  result.strides = shape.strides;
  result.dilations = shape.dilations;
  result.channels_last = is_channels_last(x.extents, x.strides);
  return result;
}

uint64_t bytes_of(ConvolutionPass pass, const Tensor* x, const Filter* w, const Tensor* y,
                  const ConvolutionShape* shape) {
  const Convolution c = convolution(pass, *x, *w, *y, *shape);
  return chosen_convolution_bytes(c, convolution_on_tensor_cores(c, device_facts()));
}

int give_bytes(ConvolutionPass pass, const Tensor* x, const Filter* w, const Tensor* y,
               const ConvolutionShape* shape, size_t* bytes) {
  if (x == nullptr || w == nullptr || y == nullptr || shape == nullptr || bytes == nullptr)
    return kNullPointer;
  *bytes = bytes_of(pass, x, w, y, shape);
  note_workspace_asked(workspace_kind(pass), *bytes);
  return kSuccess;
}

int give_algorithm(ConvolutionPass pass, const Tensor* x, const Filter* w, const Tensor* y,
                   const ConvolutionShape* shape, int asked, int* returned,
                   AlgorithmPerformance* results) {
  if (x == nullptr || w == nullptr || y == nullptr || shape == nullptr || returned == nullptr ||
      results == nullptr)
    return kNullPointer;
  *returned = 0;
  if (asked < 1) return fail(kBadParam, "memledger virtual GPU: no algorithm asked for");
  const Convolution c = convolution(pass, *x, *w, *y, *shape);
  if (!convolution_supported(c, device_facts()))
    return fail(kNotSupported, "memledger virtual GPU: no bfloat16 before compute capability 8.0");
  results[0] = {};
  results[0].algorithm = kAlgorithm;
  results[0].milliseconds = 1;
  results[0].bytes = bytes_of(pass, x, w, y, shape);
  results[0].determinism = kDeterministic;
  results[0].math_type = c.type == ElementType::kHalf || c.type == ElementType::kBfloat16
                             ? kTensorOpMath
                             : shape->math_type;
  *returned = 1;
  return kSuccess;
}

int use(ConvolutionPass pass) {
  note_workspace_used(workspace_kind(pass));
  note_library_work();
  return kSuccess;
}

}  // namespace
}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;
using memledger::virtual_gpu::cudnn::Filter;
using memledger::virtual_gpu::cudnn::Tensor;

MEMLEDGER_ANSWER int cudnnGetConvolutionForwardWorkspaceSize(Handle*, const Tensor* x,
                                                             const Filter* w,
                                                             const ConvolutionShape* shape,
                                                             const Tensor* y, int, size_t* bytes) {
  return give_bytes(ConvolutionPass::kForward, x, w, y, shape, bytes);
}
MEMLEDGER_ANSWER int cudnnGetConvolutionBackwardDataWorkspaceSize(Handle*, const Filter* w,
                                                                  const Tensor* dy,
                                                                  const ConvolutionShape* shape,
                                                                  const Tensor* dx, int,
                                                                  size_t* bytes) {
  return give_bytes(ConvolutionPass::kBackwardData, dx, w, dy, shape, bytes);
}
MEMLEDGER_ANSWER int cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle*, const Tensor* x,
                                                                    const Tensor* dy,
                                                                    const ConvolutionShape* shape,
                                                                    const Filter* dw, int,
                                                                    size_t* bytes) {
  return give_bytes(ConvolutionPass::kBackwardFilter, x, dw, dy, shape, bytes);
}

MEMLEDGER_ANSWER int cudnnGetConvolutionForwardAlgorithm_v7(
    Handle*, const Tensor* x, const Filter* w, const ConvolutionShape* shape, const Tensor* y,
    int asked, int* returned, AlgorithmPerformance* results) {
  return give_algorithm(ConvolutionPass::kForward, x, w, y, shape, asked, returned, results);
}
MEMLEDGER_ANSWER int cudnnGetConvolutionBackwardDataAlgorithm_v7(
    Handle*, const Filter* w, const Tensor* dy, const ConvolutionShape* shape, const Tensor* dx,
    int asked, int* returned, AlgorithmPerformance* results) {
  return give_algorithm(ConvolutionPass::kBackwardData, dx, w, dy, shape, asked, returned, results);
}
MEMLEDGER_ANSWER int cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    Handle*, const Tensor* x, const Tensor* dy, const ConvolutionShape* shape, const Filter* dw,
    int asked, int* returned, AlgorithmPerformance* results) {
  return give_algorithm(ConvolutionPass::kBackwardFilter, x, dw, dy, shape, asked, returned,
                        results);
}

MEMLEDGER_ANSWER int cudnnFindConvolutionForwardAlgorithmEx(
    Handle*, const Tensor* x, const void*, const Filter* w, const void*,
    const ConvolutionShape* shape, const Tensor* y, void*, int asked, int* returned,
    AlgorithmPerformance* results, void*, size_t) {
  return give_algorithm(ConvolutionPass::kForward, x, w, y, shape, asked, returned, results);
}
MEMLEDGER_ANSWER int cudnnFindConvolutionBackwardDataAlgorithmEx(
    Handle*, const Filter* w, const void*, const Tensor* dy, const void*,
    const ConvolutionShape* shape, const Tensor* dx, void*, int asked, int* returned,
    AlgorithmPerformance* results, void*, size_t) {
  return give_algorithm(ConvolutionPass::kBackwardData, dx, w, dy, shape, asked, returned, results);
}
MEMLEDGER_ANSWER int cudnnFindConvolutionBackwardFilterAlgorithmEx(
    Handle*, const Tensor* x, const void*, const Tensor* dy, const void*,
    const ConvolutionShape* shape, const Filter* dw, void*, int asked, int* returned,
    AlgorithmPerformance* results, void*, size_t) {
  return give_algorithm(ConvolutionPass::kBackwardFilter, x, dw, dy, shape, asked, returned,
                        results);
}

MEMLEDGER_ANSWER int cudnnConvolutionForward() { return use(ConvolutionPass::kForward); }
MEMLEDGER_ANSWER int cudnnConvolutionBiasActivationForward() {
  return use(ConvolutionPass::kForward);
}
MEMLEDGER_ANSWER int cudnnConvolutionBackwardData() { return use(ConvolutionPass::kBackwardData); }
MEMLEDGER_ANSWER int cudnnConvolutionBackwardFilter() {
  return use(ConvolutionPass::kBackwardFilter);
}
