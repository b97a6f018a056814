#!/usr/bin/env bash
# A program that nvcc compiles with its default flags, which link the CUDA runtime into it. Where
# there is no nvcc, static_runtime_test stands in: it makes by hand what nvcc writes.
source tests/support/shell_test.sh

memledger="$PWD/$1" libtorch_lib="$2" program="$PWD/tests/virtual_gpu/nvcc_program.cu"
cd "$TEST_TMPDIR" || exit 1

# The toolkit's, or that of NVIDIA's wheels next to LibTorch.
nvcc=""
for candidate in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$(command -v nvcc)" "$libtorch_lib"/../../nvidia/*/bin/nvcc; do
  [[ -x "$candidate" ]] && nvcc="$candidate" && break
done
if [[ -z "$nvcc" ]]; then
  echo "SKIPPED: no nvcc in CUDA_HOME, /usr/local/cuda, PATH or beside LibTorch; static_runtime_test is run without it"
  finish
fi

# The wheels' nvcc finds their libraries in lib, and looks in lib64.
libraries=(-L"$(dirname "$nvcc")/../lib")
run() { MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered" "$memledger" run -q --virtual-gpu="$1" -- "${@:2}" >out 2>err; }
check_run() {  # WHAT GPU PROGRAM…
  run "${@:2}"
  check "$1: status" equal $? 0
  check "$1: output" equal "$(cat out)" "all is well"
  check "$1: all functions have an answer" equal "$(cat unconsidered 2>/dev/null)" ""
  rm -f unconsidered
}
shown_on_failure=(out err)

"$nvcc" "${libraries[@]}" -o by_default "$program"
check "compiled with default flags" equal $? 0
check "the runtime is inside" equal "$(readelf -d by_default | grep -c cudart)" 0
check_run "default flags" h100:8GiB,context=0B ./by_default
check_run "default flags, another device" t4:8GiB,context=0B ./by_default
"$nvcc" "${libraries[@]}" -cudart shared -o shared "$program"
check_run "the runtime as a library" h100:8GiB,context=0B ./shared
"$nvcc" "${libraries[@]}" -rdc=true -o relocatable "$program"
check_run "relocatable device code" h100:8GiB,context=0B ./relocatable
"$nvcc" "${libraries[@]}" --default-stream per-thread -o per_thread "$program"
check_run "a default stream for each thread" h100:8GiB,context=0B ./per_thread
finish
