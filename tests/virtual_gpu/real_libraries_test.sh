#!/usr/bin/env bash
# libraries=real: a program's own libraries of NVIDIA's are called, and named; with all of them that
# a LibTorch program needs it takes what it takes with stand-ins.
#
#   real_libraries_test.sh MEMLEDGER PROGRAM LIBTORCH_LIB
#
# They are searched for in MEMLEDGER_NVIDIA_LIBRARIES, folders with colons between, and in the CUDA
# Toolkit's usual place. What has to have them is skipped without.
source tests/support/shell_test.sh

memledger="$PWD/$1" program="$PWD/$2" libtorch="$3"
cd "$TEST_TMPDIR" || exit 1

# A library of that name that is not NVIDIA's: it answers what ours never does.
mkdir own
cat >cublas.c <<'SOURCE'
int cublasCreate_v2(void** handle) { (void)handle; return 42; }
int cublasGetProperty(int which, int* value) { *value = 13 + which; return 0; }
SOURCE
cc -shared -fPIC -o own/libcublas.so.13 -Wl,-soname,libcublas.so.13 cublas.c
cat >main.c <<'SOURCE'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cublasCreate_v2(void** handle);
int main(void) {
  void* handle = 0;
  const int created = cublasCreate_v2(&handle);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*begin)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*count)(int*) = (int (*)(int*))dlsym(driver, "cuDeviceGetCount");
  void (*name)(char*, size_t) = (void (*)(char*, size_t))dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_real_libraries");
  int devices = 0;
  char names[64] = "", few[4] = "abc";
  begin(0);
  count(&devices);
  name(names, sizeof names);
  name(few, 3);
  printf("%d %d %s|%s\n", created, devices, names, few);
  return 0;
}
SOURCE
cc -o main main.c -Lown -l:libcublas.so.13
export LD_LIBRARY_PATH="$PWD/own"
real() { "$memledger" run -q --virtual-gpu=h100,count=2,libraries=real -- "$@"; }
stand_ins() { "$memledger" run -q --virtual-gpu=h100,count=2,libraries=stand-ins -- "$@"; }
check "a library of the program's own, and our driver" equal "$(real ./main)" "42 2 cuBLAS 13.14.15|cu"
check "stand-ins" equal "$(stand_ins ./main)" "0 2 |"

# NCCL's own would wait for a rank that cannot map its memory, and bring no rank what it sends.
echo 'int ncclGetVersion(int* version) { *version = 7; return 0; }' |
  cc -x c -shared -fPIC -o own/libnccl.so.2 -Wl,-soname,libnccl.so.2 -
echo 'int ncclGetVersion(int* v); int main(void) { int v = 0; ncclGetVersion(&v); return v == 7; }' |
  cc -x c -o ranks - -x none -Lown -l:libnccl.so.2
real ./ranks
check "NCCL stands in for a program's own" equal $? 0

# A library that is linked, and not there: its functions fail, and the report says that it lacks.
cat >lacks.c <<'SOURCE'
#include <stdio.h>
int cublasCreate_v2(void** handle);
int cusparseLtInit(void* handle);
int main(void) {
  void* handle = 0;
  return printf("%d %d\n", cublasCreate_v2(&handle), cusparseLtInit(&handle)) < 0;
}
SOURCE
echo 'int cusparseLtInit(void) { return 0; }' | cc -x c -shared -fPIC -o libcusparseLt.so.0 -Wl,-soname,libcusparseLt.so.0 -
cc -o lacks lacks.c -Lown -l:libcublas.so.13 -L. -l:libcusparseLt.so.0
check "a library that is missing" equal "$(real ./lacks 2>err)" "42 10"
check "a library that is missing: told" matches err 'cusparseLtInit: refused: libcusparseLt\.so\.0 was not found'
cp libcusparseLt.so.0 own/
check "a library that is there again" equal "$(real ./lacks)" "42 0"
rm own/libcusparseLt.so.0

folders="${MEMLEDGER_NVIDIA_LIBRARIES:-}:/usr/local/cuda/lib64"
export LD_LIBRARY_PATH="$folders"
missing="$(ldd "$libtorch/libtorch_cuda.so" | sed -nE 's/^\s*(lib(cu|nv|nccl)[^ ]*) => not found.*/\1/p' |
  grep -vE '^lib(cufft|curand|cusolver|cusparse|cusparseLt|cufile|nvshmem_host)\.' | tr '\n' ' ')"
if [[ -n "$missing" ]]; then
  echo "skipped: NVIDIA's own libraries with LibTorch: not here: $missing(MEMLEDGER_NVIDIA_LIBRARIES=FOLDERS)"
  finish
fi
real "$program" 3 >with_real 2>err
check "a training of linear layers: status" equal $? 0
stand_ins "$program" 3 >with_stand_ins
check "a training of linear layers: the same peaks" cmp with_stand_ins with_real
"$memledger" run --virtual-gpu=h100,libraries=real -- "$program" 3 conv >out 2>err
check "a training of convolutions: status" equal $? 0
check "a training of convolutions: libraries" matches err "^NVIDIA's own libraries: CUDA runtime [0-9.]+, cuBLAS [0-9.]+, cuDNN [0-9.]+, "
lacking="$(ldd "$libtorch/libtorch_cuda.so" | grep -c '^\s*lib\(cufile\|cusparseLt\|nvshmem_host\)\..*not found')"
check "a training of convolutions: what is missing" equal "$lacking" \
  "$(sed -n "s/^NVIDIA's own libraries: .*; not found: //p" err | tr ',' '\n' | grep -c .)"
check "a training of convolutions: nothing without an answer" matches_not err "without a considered answer"
finish
