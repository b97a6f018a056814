#!/usr/bin/env bash
# referee_test.sh REFEREE MEMLEDGER PUBLISHED_CASE LIBTORCH_LIB
#
# A slice of the published rows, held against the virtual GPU, and with --config=full all of them
# for 50 minutes: a further run goes on with what is left then. Then what the referee says of
# made-up results.
source tests/support/shell_test.sh
referee=("$PWD/$1" "--memledger=$PWD/$2" "--published-case=$PWD/$3" "--libtorch=$4")
root="$PWD"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)
# What is installed on this machine must not matter.
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model PYTHONDONTWRITEBYTECODE=1

referee() { "${referee[@]}" "$@" >out 2>err; }
refuses() { ! referee "$@"; }

if [[ -n "${MEMLEDGER_FULL:-}" ]]; then
  check "all rows" referee --rows=all --calibrate --within=3000
  cat out
fi
check "the slice" referee --slice --results=results.jsonl
cat out
check "MLPs: inside" matches out "^\| MLPs.* \| 20 of 1500 \| 20 \| 20 \(100 %\) \| 0 \| 0 \|"
check "CNNs: what ran fits" matches out '^\| CNNs.* \| ran \| 3 \| 3 \|'
check "CNNs: nothing that ran out does" matches out '^\| CNNs.* \| out of memory \| 5 \| 0 \|'
if ! has out "not run, there is no Python"; then
  check "Liger: inside" matches out '^\| Liger.* \| 12 of 171 \| 12 \| 12 \(100 %\) \| 0 \| 0 \|'
fi

# A row that is done is not run again.
cp out first
referee=("${referee[0]}" --memledger=/bin/false "${referee[@]:2}")
check "again, without memledger" referee --slice --results=results.jsonl
same "the same is said" "$(tail -n +2 out)" "$(tail -n +2 first)"

# Made-up results: ROW LOW HIGH VERDICT, in bytes.
made_up() { printf '{"row":"%s","process_peak":[%s,%s],"verdict":"%s","sentence":""}\n' "$@" >made_up.jsonl; }
of_row() { refuses --set="$1" --rows=all --only="$2" --results=made_up.jsonl; }

# mlp/101 took 1 685 MiB with the constant of 1 429: 256 MiB.
made_up mlp/101 262144000 262144000 fits
check "a figure above" of_row mlp "947 172 10 uniform 496 elu"
check "the failure is named" matches out '^FAILED: MLPs.*: real figures above their interval: 1$'
check "and how far" matches out ' \| 1 \(6\.0\) \| 0 \| 0 \(0 %\)'
made_up mlp/101 268435456 268435456 "not known"
check "a verdict that is not known" of_row mlp "947 172 10 uniform 496 elu"
check "is counted apart" matches out '^\| MLPs.* \| ran \| 1 \| 0 \| 0 \| 1 \| 0 \|$'
# cnn/119 ran out.
made_up cnn/119 268435456 268435456 fits
check "a false fits" of_row cnn "3 684 15 pyramid 65 30 182 softplus"
check "the failure is named" has out "FAILED: CNNs, GPUMemNet: said to fit, and ran out of memory: 1"
finish
