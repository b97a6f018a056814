#!/usr/bin/env bash
# The published cases: each real figure has to lie inside the interval that dry-run would give, no
# interval may be too wide, and the program must say so where one is. Arguments: published,
# published_case, memledger.
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
  check "no case fails" status_is 0
  check "all were compared" matches out '^21 of 22 figures lie inside their interval, 0 failed'
  check "that of a program that is only described lies below" matches out '^GPT-2 124M, LayerNorm and GELU .* 12 MiB below'
else
  for cases in "MLP 1" convolution; do
    published --cases="$cases"
    check "$cases: no case fails" status_is 0
    check "$cases: all are inside" matches out '^([1-9][0-9]*) of \1 figures lie inside their interval, 0 failed'
  done
fi
published --cases=Qwen3
check "an 8B model" matches out '^2 of 2 figures lie inside their interval, 0 failed'
published --cases="MLP 3401" --markdown
check "a table for the page" matches out '^\| MLP 3401 558 10 gradual 858 \| A100 \| 2 549 088 256 \| 2 567 962 624 \| 2 549 088 256 \| yes \| 18 MiB \|$'

# A row of GPUMemNet's data, and the same with 20 MiB more and less than it took.
row='input:1269_output:25_depth:1_arch:bottleneck_batch:702.out,3,"[]",ReLU,1,2,702,'
printf '%s\n' Filename,Depth,… "${row}1477," "${row}1497," "${row}1457," "${row//_output:25_/_output:1_}1500," >rows.csv
published --mlp_data=rows.csv
check "rows that are off" status_is 1
check "one is not, and one has no program" matches out '^1 of 3 figures lie inside their interval, 2 failed'
for wrong in above below; do
  check "how far it is $wrong" matches out " 20 MiB $wrong "
  check "it is marked" matches out "^  FAILED: the real figure is $wrong the interval"
done

# Without workspaces the convolutions take less than they did.
MEMLEDGER_VIRTUAL_GPU_CUDNN_WORKSPACE=none published --cases="convolution, bfloat16"
check "a model that is too low" status_is 1
check "it says so" matches out '^  FAILED: the real figure is above'
published --cases="no such case"
check "no case" status_is 1
"$published" "${places[@]:1}" --published_case=/bin/false --cases=Qwen3 >out 2>err
status=$?
check "a program that fails" status_is 1
check "is named" matches err '^published: .*bin/false'

check "no function without a considered answer" test ! -s "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED"
finish
