#!/usr/bin/env bash
# Which GPUs a step fits on, found without any. Argument: the example.
source tests/support/shell_test.sh
example="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
"$example" >out 2>err
check "the example's status" equal "$?" 0
check "too small" matches out '^rtx3060: does not fit: '
check "large enough" matches out '^a100: fits through run [0-9]+ of the step; no evaluation was seen$'
check "two lines" equal "$(wc -l <out)" 2
finish
