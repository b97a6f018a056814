#!/usr/bin/env bash
# The generator of the stand-ins, on a small LibTorch made here and on the real one. Arguments:
# generate_stubs.py, the folder it made of the real LibTorch, the real LibTorch's lib folder,
# whether that has CUDA.
source tests/support/shell_test.sh

generator="$PWD/$1"
libraries="$PWD/$2"
libtorch="$3"
has_cuda="$4"
cd "$TEST_TMPDIR" || exit 1
cc="${CC:-cc}"

empty() { equal "$(cat "$1")" ""; }

# A LibTorch of one library: functions of versioned libraries, one of an unversioned one, and one it
# defines itself.
mkdir -p real lib
versioned() {  # SONAME VERSION FUNCTION…
  local soname="$1" version="$2"
  shift 2
  printf 'int %s(void) { return 7; }\n' "$@" >real/x.c
  echo "$version { global: $(printf '%s; ' "$@") local: *; };" >real/x.map
  "$cc" -shared -fPIC -o "real/$soname" "-Wl,-soname,$soname" -Wl,--version-script=real/x.map real/x.c
}
versioned libcudart.so.77 libcudart.so.77 cudaMalloc cudaNeverHeardOf
versioned libcublas.so.5 libcublas.so.5 cublasDoNothing
versioned libnvshmem_host.so.3 NVSHMEM nvshmem_here
echo 'int ncclSend(void) { return 7; }' >real/y.c
"$cc" -shared -fPIC -o real/libnccl.so.2 -Wl,-soname,libnccl.so.2 real/y.c
echo 'int z(void) { return 7; }' >real/z.c
"$cc" -shared -fPIC -o real/libcurand.so.10 -Wl,-soname,libcurand.so.10 real/z.c
"$cc" -shared -fPIC -o real/libother.so.1 -Wl,-soname,libother.so.1 real/z.c
cat >torch.c <<'SOURCE'
int cudaMalloc(void), cudaNeverHeardOf(void), cublasDoNothing(void), ncclSend(void), nvshmem_here(void), cuLaunchKernel(void), z(void);
int cudnnOwn(void) { return 1; }
int call(void) { return cudaMalloc() + cudaNeverHeardOf() * 100 + cublasDoNothing() + ncclSend() + nvshmem_here() + cudnnOwn() + 0 * z(); }
int call_made_up(void) { return cudaNeverHeardOf() + cublasDoNothing(); }
int never(void) { return cuLaunchKernel(); }
const char* name = "nvmlOnlyByName";
SOURCE
"$cc" -shared -fPIC -o lib/libc10_cuda.so torch.c -Wl,--no-as-needed real/lib*.so.*
echo 'int cudaMalloc(void) { return 3; }' >answers.c
echo 'void memledger_virtual_gpu_reached(void* f) { (void)f; }' >>answers.c
echo 'void memledger_virtual_gpu_called(void) {}' >>answers.c
"$cc" -shared -fPIC -o libanswers.so -Wl,-soname,libmemledger_virtual_gpu.so answers.c

echo 'int cuOnlyTheDriver(void) { return 0; }' >>answers.c
"$cc" -shared -fPIC -o libdriver.so -Wl,-soname,libmemledger_virtual_gpu.so answers.c

mkdir headers
echo 'extern __host__ cudaError_t CUDARTAPI cudaOnlyInHeader(int);' >headers/cuda_runtime_api.h
printf '#define cuRenamed cuRenamed_v2\nCUresult CUDAAPI cuRenamed(int);\n' >headers/cuda.h

python3 "$generator" --libtorch lib --headers headers --list >list
check "a versioned function" has list "libcudart.so.77 libcudart.so.77 cudaNeverHeardOf"
check "a version that is not the library's name" has list "libnvshmem_host.so.3 NVSHMEM nvshmem_here"
check "an unversioned function" has list "libnccl.so.2 - ncclSend"
check "the driver, which nothing needs by name" has list "libcuda.so.1 - cuLaunchKernel"
check "a function looked up by name" has list "libnvidia-ml.so.1 - nvmlOnlyByName"
check "a runtime function of the header" has list "libcudart.so.77 libcudart.so.77 cudaOnlyInHeader"
check "a driver function of the header, renamed" has list "libcuda.so.1 - cuRenamed_v2"
check "nothing that LibTorch defines" equal "$(grep -c cudnnOwn list)" 0
check "nothing of other libraries" equal "$(grep -c libother list)" 0

python3 "$generator" --libtorch lib --answers libanswers.so --cc "$cc" --out made || exit 1
check "preload order, ours first" equal "$(head -1 made/preload.txt)" libmemledger_virtual_gpu.so
check "all libraries" equal "$(tail -n +2 made/preload.txt | tr '\n' ' ')" \
  "libcublas.so.5 libcuda.so.1 libcudart.so.77 libcurand.so.10 libnccl.so.2 libnvidia-ml.so.1 libnvshmem_host.so.3 "
check "nothing else in the folder" equal "$(ls made | wc -l)" 9
python3 "$generator" --libtorch lib --answers libanswers.so --driver libdriver.so --cc "$cc" --out made_both || exit 1
check "beside real libraries, the driver's and NCCL" equal "$(tr '\n' ' ' <made_both/driver/preload.txt)" \
  "libmemledger_virtual_gpu.so libcuda.so.1 libnccl.so.2 libnvidia-ml.so.1 "
check "beside real libraries, what stands for missing ones" equal "$(ls made_both/driver/absent | tr '\n' ' ')" \
  "libcurand.so.10 libnvshmem_host.so.3 "
check "nothing else beside real libraries" equal "$(ls made_both/driver | wc -l)" 6
check "the answers beside real libraries" cmp libdriver.so made_both/driver/libmemledger_virtual_gpu.so
readelf -dW made/libcudart.so.77 >elf
check "the real name inside" has elf "soname: [libcudart.so.77]"
check "the answers are left out" equal "$(nm -D made/libcudart.so.77 | grep -c ' T cudaMalloc')" 0

# A program that is linked with the real ones, started with the stand-ins.
cat >main.c <<'SOURCE'
#include <stdio.h>
int call(void), call_made_up(void);
int main(int count, char** arguments) {
  (void)arguments;
  printf("%d\n", count > 1 ? call_made_up() : call());
  return 0;
}
SOURCE
"$cc" -o main main.c lib/libc10_cuda.so -Wl,--allow-shlib-undefined
export LD_LIBRARY_PATH="$PWD/lib:$PWD/real"
preload() { sed "s|^|$1/|" "$1/preload.txt" | tr '\n' ':'; }
check "with the real ones" equal "$(./main)" "$((7 + 700 + 7 + 7 + 7 + 1))"
check "with the stand-ins" equal "$(LD_PRELOAD="$(preload "$PWD/made")" ./main)" "$((3 + 1))"
python3 "$generator" --libtorch lib --answers libanswers.so --cc "${CXX:-c++}" --out made_by_cxx || exit 1
check "with those of a C++ compiler" equal "$(LD_BIND_NOW=1 LD_PRELOAD="$(preload "$PWD/made_by_cxx")" ./main)" "$((3 + 1))"

# No CUDA in it: nothing to preload, and that is no error.
mkdir empty
python3 "$generator" --libtorch empty --answers libanswers.so --cc "$cc" --out made_empty || exit 1
check "nothing to preload" empty made_empty/preload.txt

if [[ "$has_cuda" != True ]]; then
  check "nothing to preload without CUDA" empty "$libraries/preload.txt"
  finish
fi

# With the real counter: what is reached is named at exit, and nothing is said otherwise.
python3 "$generator" --libtorch lib --answers "$libraries/libmemledger_virtual_gpu.so" --cc "$cc" --out counting || exit 1
all="$(preload "$PWD/counting")"
LD_PRELOAD="$all" ./main made-up >out 2>err
check "named at exit" has err "reached: cublasDoNothing (once), cudaNeverHeardOf (once)"
LD_PRELOAD="$all" /bin/echo hello >out 2>err
check "another program is left alone" equal "$(cat out)" hello
check "nothing is said where nothing is reached" empty err
MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED=$PWD/reached.txt LD_PRELOAD="$all" ./main made-up >out 2>err
check "into a file" has reached.txt "cudaNeverHeardOf (once)"
check "then not to standard error" empty err
(MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED=abort LD_PRELOAD="$all" ./main made-up) >out 2>err
check "an abort" equal $? 134
check "with the reason" has err "was reached, which has no considered answer"

# Every function that the real LibTorch needs is there: all of its libraries load with everything
# bound at once.
cat >load.py <<'SOURCE'
import ctypes, os, sys
for name in sys.argv[2:]:
    ctypes.CDLL(os.path.join(sys.argv[1], name), os.RTLD_NOW | os.RTLD_GLOBAL)
folder = os.path.realpath(os.path.dirname(os.environ["LD_PRELOAD"].split(":")[0]))
for line in open("/proc/self/maps"):
    path = line.split()[-1]
    name = os.path.basename(path)
    if name.startswith(("libcu", "libnv", "libnccl")) and os.path.realpath(os.path.dirname(path)) != folder:
        sys.exit("a library of NVIDIA is mapped: " + path)
SOURCE
LD_BIND_NOW=1 LD_PRELOAD="$(preload "$libraries")" python3 load.py "$libtorch" libtorch_cuda.so libtorch_cuda_linalg.so libcaffe2_nvrtc.so
check "the real LibTorch binds" equal $? 0

finish
