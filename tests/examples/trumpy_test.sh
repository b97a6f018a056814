#!/usr/bin/env bash
# The sentences of examples/trumpy on the CPU and on a virtual H200. Arguments: run_test_program.sh,
# memledger, the example.
#
# The CPU's figures were measured in Python with LibTorch's memory reports: the graph of a
# ResNet-50, 16 images of 224x224, keeps 1374764544 bytes, 9633792 of them the input; a gigabyte in
# TRUMPY is 1024 ** 3.
set -uo pipefail
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
# The figures are those of a LibTorch that keeps cuBLAS's workspaces, as 2.15 does only if asked.
export TORCH_CUBLAS_WORKSPACE_CACHE=1
cd "$TEST_TMPDIR" || exit 1
"$run" "$memledger" h200 "$example" >out || { cat out; exit 1; }
cat out

failures=0
has() {
  grep -Eq -- "$1" out || { echo "FAILED: no line: $1"; failures=$((failures + 1)); }
}
has '^estimated memory usage for backward related tensors in cpu: 1\.2803492546081543 GB$'
has '^ground-truth memory usage for backward related tensors in cpu: 1\.2713770903646946 GB$'
has '^ +- +9633792  the input, which was there before$'
has '^  = +1365130756  bytes; measured 1365130756 \(0 unexplained\)$'
has '^estimated memory usage for backward related tensors in cuda:0: 1\.[0-9]+ GB$'
has '^ground-truth memory usage for backward related tensors in gpu: 1\.[0-9]+ GB$'
has '^  \+ +[1-9][0-9]+  library workspaces$'
[[ "$(grep -c '(0 unexplained)' out)" == 2 ]] || { echo "FAILED: something is unexplained"; failures=$((failures + 1)); }
exit "$((failures > 0))"
