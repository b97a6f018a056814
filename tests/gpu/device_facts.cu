// device_facts MODE: what the device has in use after each thing that takes memory of it. Not built
// by Bazel: it needs a CUDA toolkit, and a real device to say anything new.
//
//   nvcc -O1 -arch=sm_90 device_facts.cu -lcuda -lcublas -lcublasLt -lcusolver -lcusparse \
//     -lcufft -lcurand
//   ./a.out MODE, which is: attributes, local, stack, heap, heap1, fifo, streams, graphs, async,
//     malloc, host or libraries
//
// measured/h200_device.txt holds what it printed on an H200.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cufft.h>
#include <curand.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
static size_t used() {
  size_t f = 0, t = 0;
  cudaMemGetInfo(&f, &t);
  return t - f;
}
static size_t last = 0;
static void say(const char* what, long n = 0) {
  cudaError_t e = cudaGetLastError();
  size_t u = used();
  printf("%-44s %10ld  used %12zu  delta %+lld  %s\n", what, n, u, (long long)u - (long long)last,
         cudaGetErrorName(e));
  last = u;
  fflush(stdout);
}
template <int N>
__global__ void frame(int* out, int n) {
  volatile char a[N];
  for (int i = 0; i < n; i++) a[(i * 7919) % N] = i;
  int s = 0;
  for (int i = 0; i < n; i++) s += a[(i * 31) % N];
  out[threadIdx.x] = s;
}
__global__ void plain(float* x) { x[threadIdx.x] += 1; }
__global__ void heap(int* o) {
  void* p = malloc(1000);
  o[0] = p != 0;
  free(p);
}
__global__ void printer(int n) {
  if (n == 12345) printf("x %d\n", n);
}
struct Big {
  char b[4000];
};
__global__ void bigargs(float* x, Big b) { x[0] += b.b[threadIdx.x]; }
template <int N>
void local_memory(int* o) {
  cudaFuncAttributes a;
  cudaFuncGetAttributes(&a, frame<N>);
  say("attributes: local bytes", a.localSizeBytes);
  frame<N><<<1, 1>>>(o, 3);
  cudaDeviceSynchronize();
  say("frame launched", N);
}
int main(int argc, char** argv) {
  const char* m = argc > 1 ? argv[1] : "all";
  auto is = [&](const char* s) { return !strcmp(m, s); };
  cuInit(0);
  if (is("attributes")) {
    CUdevice d;
    cuDeviceGet(&d, 0);
    char name[100];
    cuDeviceGetName(name, 100, d);
    size_t t;
    cuDeviceTotalMem(&t, d);
    int v;
    cuDriverGetVersion(&v);
    printf("name %s total %zu driver %d\n", name, t, v);
    for (int a = 1; a < 170; a++) {
      int x = 0;
      CUresult r = cuDeviceGetAttribute(&x, (CUdevice_attribute)a, d);
      printf("attribute %d = %d (%d)\n", a, x, r);
    }
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    fwrite("", 0, 0, stdout);
    for (int l = 0; l < 12; l++) {
      size_t x = 0;
      cudaError_t e = cudaDeviceGetLimit(&x, (cudaLimit)l);
      printf("limit %d = %zu %s\n", l, x, cudaGetErrorName(e));
      cudaGetLastError();
    }
    int lo, hi;
    cudaDeviceGetStreamPriorityRange(&lo, &hi);
    printf("priorities %d %d\n", lo, hi);
    return 0;
  }
  cudaFree(0);
  last = 0;
  say("context");
  int* o;
  cudaMalloc(&o, 4096);
  say("4 KiB block");
  float* x = (float*)o;
  plain<<<1, 32>>>(x);
  cudaDeviceSynchronize();
  say("first kernel of this module");
  if (is("local")) {
    local_memory<256>(o);
    local_memory<1024>(o);
    local_memory<4096>(o);
    local_memory<16384>(o);
    local_memory<65536>(o);
    local_memory<262144>(o);
    frame<1024><<<1, 1>>>(o, 3);
    cudaDeviceSynchronize();
    say("small frame again");
    frame<262144><<<2000, 1024>>>(o, 1);
    cudaDeviceSynchronize();
    say("262144 with a full grid");
  }
  if (is("stack")) {
    for (size_t s : {2048ul, 8192ul, 65536ul, 262144ul, 1024ul}) {
      cudaDeviceSetLimit(cudaLimitStackSize, s);
      say("stack limit set", s);
      plain<<<1, 32>>>(x);
      cudaDeviceSynchronize();
      say("plain launched");
      frame<256><<<1, 1>>>(o, 3);
      cudaDeviceSynchronize();
      say("frame<256> launched");
      size_t g;
      cudaDeviceGetLimit(&g, cudaLimitStackSize);
      printf("  limit reads %zu\n", g);
    }
  }
  if (is("heap")) {
    size_t g;
    cudaDeviceGetLimit(&g, cudaLimitMallocHeapSize);
    printf("heap default %zu\n", g);
    heap<<<1, 1>>>(o);
    cudaDeviceSynchronize();
    say("kernel with malloc, default heap");
  }
  if (is("heap1")) {
    for (size_t s : {64ul << 20, 1ul << 30, 8ul << 30}) {
      cudaError_t e = cudaDeviceSetLimit(cudaLimitMallocHeapSize, s);
      printf("set %s\n", cudaGetErrorName(e));
      say("heap limit set", s >> 20);
      plain<<<1, 32>>>(x);
      cudaDeviceSynchronize();
      say("plain launched");
    }
    heap<<<1, 1>>>(o);
    cudaDeviceSynchronize();
    say("kernel with malloc");
    cudaError_t e = cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1ul << 30);
    printf("set after: %s\n", cudaGetErrorName(e));
    say("after");
  }
  if (is("fifo")) {
    printer<<<1, 1>>>(1);
    cudaDeviceSynchronize();
    say("kernel with printf");
    cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 256 << 20);
    say("fifo 256 MiB set");
    printer<<<1, 1>>>(1);
    cudaDeviceSynchronize();
    say("launched");
  }
  if (is("streams")) {
    for (int n : {1, 1, 2, 4, 8, 16, 32, 64, 128}) {
      for (int i = 0; i < n; i++) {
        cudaStream_t s;
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        plain<<<1, 32, 0, s>>>(x);
      }
      cudaDeviceSynchronize();
      say("more streams used", n);
    }
    for (int i = 0; i < 1000; i++) {
      cudaEvent_t e;
      cudaEventCreate(&e);
    }
    say("1000 events");
    for (int i = 0; i < 10000; i++) {
      cudaEvent_t e;
      cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
      cudaEventRecord(e, 0);
    }
    say("10000 events recorded");
  }
  if (is("graphs")) {
    cudaStream_t s;
    cudaStreamCreate(&s);
    say("stream");
    auto one = [&](const char* kind, int n) {
      cudaGraph_t g;
      cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
      for (int i = 0; i < n; i++) {
        if (kind[0] == 'k')
          plain<<<1, 32, 0, s>>>(x);
        else if (kind[0] == 'b')
          bigargs<<<1, 32, 0, s>>>(x, Big{});
        else if (kind[0] == 's')
          cudaMemsetAsync(x, 0, 64, s);
        else
          cudaMemcpyAsync(x + 64, x, 64, cudaMemcpyDeviceToDevice, s);
      }
      cudaStreamEndCapture(s, &g);
      last = used();
      cudaGraphExec_t e;
      cudaGraphInstantiate(&e, g, 0);
      printf("%s ", kind);
      say("nodes, instantiated", n);
      cudaGraphUpload(e, s);
      cudaStreamSynchronize(s);
      printf("%s ", kind);
      say("uploaded", n);
      cudaGraphLaunch(e, s);
      cudaStreamSynchronize(s);
      printf("%s ", kind);
      say("launched", n);
      cudaGraphLaunch(e, s);
      cudaStreamSynchronize(s);
      say("again", n);
      cudaGraphExecDestroy(e);
      cudaGraphDestroy(g);
      cudaStreamSynchronize(s);
      say("destroyed", n);
    };
    for (int n : {1, 10, 100, 300, 1000, 3000, 10000, 30000, 100000}) one("kernel", n);
    for (int n : {1000, 10000}) one("bigargs", n);
    for (int n : {1000, 10000}) one("set", n);
    for (int n : {1000, 10000}) one("copy", n);
    std::vector<cudaGraphExec_t> keep;
    for (int k = 0; k < 64; k++) {
      cudaGraph_t g;
      cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
      for (int i = 0; i < 100; i++) plain<<<1, 32, 0, s>>>(x);
      cudaStreamEndCapture(s, &g);
      cudaGraphExec_t e;
      cudaGraphInstantiate(&e, g, 0);
      cudaGraphLaunch(e, s);
      cudaStreamSynchronize(s);
      keep.push_back(e);
      if ((k & (k + 1)) == 0) say("execs of 100 kernels alive", k + 1);
    }
  }
  if (is("async")) {
    void* p;
    cudaStream_t s;
    cudaStreamCreate(&s);
    for (size_t b : {1ul << 10, 1ul << 20, 3ul << 20, 40ul << 20, 1ul << 30}) {
      cudaMallocAsync(&p, b, s);
      cudaStreamSynchronize(s);
      say("mallocAsync", b);
      void* q;
      cudaMallocAsync(&q, b, s);
      cudaStreamSynchronize(s);
      say("second", b);
      cudaFreeAsync(p, s);
      cudaFreeAsync(q, s);
      cudaStreamSynchronize(s);
      say("freed both", b);
    }
  }
  if (is("malloc")) {
    std::vector<char*> v;
    size_t sizes[] = {512,     1 << 20, 2 << 20, 20 << 20, 20 << 20, 2 << 20, 64 << 20, 22 << 20,
                      3 << 20, 1 << 20, 1 << 20, 100,      33 << 20, 2 << 20, 2 << 20,  2 << 20};
    for (size_t b : sizes) {
      char* p;
      cudaMalloc(&p, b);
      v.push_back(p);
      printf("malloc %10zu at %p ", b, p);
      say("");
    }
    for (size_t i = 0; i < v.size(); i += 2) {
      cudaFree(v[i]);
      printf("free %zu ", sizes[i]);
      say("");
    }
    for (size_t b : sizes) {
      char* p;
      cudaMalloc(&p, b);
      printf("malloc %10zu at %p ", b, p);
      say("");
    }
  }
  if (is("host")) {
    void* p;
    cudaHostAlloc(&p, 1 << 30, 0);
    say("pinned 1 GiB");
    cudaHostAlloc(&p, 1 << 30, cudaHostAllocMapped);
    say("mapped 1 GiB");
    void* q = aligned_alloc(4096, 1 << 30);
    memset(q, 1, 1 << 30);
    cudaHostRegister(q, 1 << 30, 0);
    say("registered 1 GiB");
  }
  if (is("libraries")) {
    cublasHandle_t b;
    cublasCreate(&b);
    say("cublasCreate");
    cublasHandle_t b2;
    cublasCreate(&b2);
    say("second cublasCreate");
    float *A, *B, *C;
    cudaMalloc(&A, 64 << 20);
    cudaMalloc(&B, 64 << 20);
    cudaMalloc(&C, 64 << 20);
    say("3 x 64 MiB");
    float one = 1, zero = 0;
    cublasSgemm(b, CUBLAS_OP_N, CUBLAS_OP_N, 4096, 4096, 4096, &one, A, 4096, B, 4096, &zero, C,
                4096);
    cudaDeviceSynchronize();
    say("sgemm 4096");
    cublasSgemm(b2, CUBLAS_OP_N, CUBLAS_OP_N, 128, 64, 4096, &one, A, 4096, B, 4096, &zero, C,
                4096);
    cudaDeviceSynchronize();
    say("sgemm on second");
    cublasLtHandle_t l;
    cublasLtCreate(&l);
    say("cublasLtCreate");
    cusolverDnHandle_t sd;
    cusolverDnCreate(&sd);
    say("cusolverDnCreate");
    cusparseHandle_t sp;
    cusparseCreate(&sp);
    say("cusparseCreate");
    cufftHandle f;
    cufftPlan1d(&f, 1 << 20, CUFFT_C2C, 16);
    say("cufftPlan1d 2^20 x 16");
    cufftHandle f2;
    cufftPlan3d(&f2, 256, 256, 256, CUFFT_R2C);
    say("cufftPlan3d 256 R2C");
    curandGenerator_t c;
    curandCreateGenerator(&c, CURAND_RNG_PSEUDO_DEFAULT);
    say("curandCreate");
    curandGenerateUniform(c, C, 1 << 20);
    cudaDeviceSynchronize();
    say("curand");
  }
}
