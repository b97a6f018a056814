#!/usr/bin/env bash
# The published cases: none may be further from the real device than recorded, and the program must
# say so where one is. Arguments: published, published_case, memledger.
source tests/support/shell_test.sh

published="$PWD/$1"
places=("--published_case=$PWD/$2" "--memledger=$PWD/$3")
cd "$TEST_TMPDIR" || exit 1
export MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered.txt"

status_is() { [[ "$status" == "$1" ]] || { echo "  the exit status is $status"; return 1; }; }
published() {
  "$published" "${places[@]}" "$@" >out 2>err
  status=$?
  cat out err
}

if [[ -n "${MEMLEDGER_FULL:-}" ]]; then
  published
  check "no case is worse" status_is 0
  check "all were compared" matches out ' of 21 figures are equal, 0 further'
else
  for cases in Qwen3 "MLP 1" convolution FlashAttention; do
    published --cases="$cases"
    check "$cases: no case is worse" status_is 0
    check "$cases: some were compared" matches out ' of [1-9][0-9]* figures are equal, 0 further'
  done
fi
published --cases=Qwen3
check "an 8B model is equal" matches out '^2 of 2 figures are equal'
published --cases="MLP 2380" --markdown
check "a table for the page" matches out '^\| MLP 2380 28 9 uniform 625 \| A100 \| 2 645 557 248 \| 2 644 508 672 \| -1 MiB \|$'

# Without workspaces the convolutions are worse, and in a device too small a program cannot run.
MEMLEDGER_VIRTUAL_GPU_CUDNN_WORKSPACE=none published --cases=convolution
check "a case that is worse" status_is 1
check "it is marked" matches out '^  WORSE: '
published --cases="no such case"
check "no case" status_is 1
"$published" "${places[@]:1}" --published_case=/bin/false --cases=Qwen3 >out 2>err
status=$?
check "a program that fails" status_is 1
check "is named" matches err '^published: .*bin/false'

check "no function without a considered answer" test ! -s "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED"
finish
