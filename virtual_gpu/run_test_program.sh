#!/usr/bin/env bash
# run_test_program.sh MEMLEDGER GPU PROGRAM [ARGUMENT]…
#
# A function without a considered answer makes the test fail: what it stands for was not tested.
set -euo pipefail
# Sizes must not depend on whether the machine has a cuDNN to ask.
export MEMLEDGER_VIRTUAL_GPU_CUDNN="${MEMLEDGER_VIRTUAL_GPU_CUDNN:-model}"
memledger="$1" gpu="$2"
shift 2
unconsidered="$TEST_TMPDIR/unconsidered.txt"
status=0
MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$unconsidered" "$memledger" run --quiet "--virtual-gpu=$gpu" -- "$@" || status=$?
if [[ -s "$unconsidered" ]]; then
  cat "$unconsidered"
  exit 1
fi
exit "$status"
