// What programs with kernels of their own do, beside LibTorch or without it.
#include <cstdio>

__constant__ float slope;
__device__ float table[1000];
__managed__ double total;

__global__ void leaky(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0 ? x[i] : slope * x[i] + table[i % 1000];
  if (i == 0) total += y[0];
}

__global__ void reversed(float* x) {
  __shared__ float block[512];
  block[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = block[blockDim.x - 1 - threadIdx.x];
}

namespace {

int failures = 0;

void check(bool is_right, const char* what, int line) {
  if (is_right) return;
  std::printf("line %d: %s\n", line, what);
  ++failures;
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

size_t used() {
  size_t free_bytes = 0, all = 0;
  CHECK_CUDA(cudaMemGetInfo(&free_bytes, &all));
  return all - free_bytes;
}

}  // namespace

int main() {
  constexpr int kCount = 16 << 20;
  const size_t before = used();
  float *x = nullptr, *y = nullptr;
  CHECK_CUDA(cudaMalloc(&x, kCount * sizeof(float)));
  CHECK_CUDA(cudaMalloc(&y, kCount * sizeof(float)));
  CHECK(used() - before == 2 * kCount * sizeof(float));

  const float value = 0.1f;
  CHECK_CUDA(cudaMemcpyToSymbol(slope, &value, sizeof value));
  size_t bytes = 0;
  CHECK_CUDA(cudaGetSymbolSize(&bytes, table));
  CHECK(bytes == sizeof(float) * 1000);
  void* address = nullptr;
  CHECK_CUDA(cudaGetSymbolAddress(&address, table));
  CHECK_CUDA(cudaMemset(address, 0, bytes));

  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  CHECK_CUDA(cudaEventRecord(begin, stream));
  leaky<<<kCount / 256, 256, 0, stream>>>(x, y, kCount);
  CHECK_CUDA(cudaGetLastError());
  reversed<<<1, 512>>>(y);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaEventRecord(end, stream));
  CHECK_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds > 0);

  // More threads than a block can have.
  leaky<<<1, 2048>>>(x, y, kCount);
  CHECK(cudaGetLastError() != cudaSuccess);

  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, leaky));
  CHECK(attributes.numRegs > 0);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  int blocks = 0, threads = 0;
  CHECK_CUDA(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, leaky));
  CHECK(blocks > 0);
  CHECK(threads > 0);

  void* ordered = nullptr;
  CHECK_CUDA(cudaMallocAsync(&ordered, 64 << 20, stream));
  CHECK(used() - before == 2 * kCount * sizeof(float) + (64 << 20));
  CHECK_CUDA(cudaFreeAsync(ordered, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  CHECK_CUDA(cudaFree(x));
  CHECK_CUDA(cudaFree(y));
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaDeviceSynchronize());
  if (!failures) std::printf("all is well\n");
  return failures != 0;
}
