#!/usr/bin/env bash
# The comparison of the real with the virtual device, where there is no real one: a virtual one
# takes its place. Equal devices must be equal, and different ones must not pass for equal.
# Arguments: validate, measure_models, memledger.
source tests/support/shell_test.sh

validate="$PWD/$1"
places=("--measure_models=$PWD/$2" "--memledger=$PWD/$3")
cd "$TEST_TMPDIR" || exit 1
export MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered.txt"

status_is() { [[ "$status" == "$1" ]] || { echo "  the exit status is $status"; return 1; }; }
validate() {
  "$validate" "${places[@]}" "$@" >out 2>err
  status=$?
  cat out err
}

# The name that the device tells leads to its profile.
for device in h200 h100 a100 l4 rtx4090 t4; do
  validate --real_side="$device" --models=MLP --expect_equal
  check "$device is itself" status_is 0
  check "$device: every phase is compared" matches out '^0 of 5 phases differ'
  check "$device: the same device" matches_not out 'not the same device'
done
validate --real_side=a100 --models=ResNet-50 --expect_equal
check "ResNet-50 twice" status_is 0

# Another device has other workspaces.
validate --real_side=a100 --virtual_gpu=h200 --models=ResNet-50,MLP
check "a difference is no failure" status_is 0
check "the devices are named" matches out 'not the same device'
check "the phases that differ" matches out '^[1-9][0-9]* of 10 phases differ'
sizes="$(sed -nE 's/^(ResNet-50|MLP) +[a-z]+ +[0-9]+ +[0-9]+ +[+-]?([0-9]+).* [0-9]+ +[0-9]+ +[+-]?([0-9]+)( \(.*)?$/\2 \3/p' out |
  awk '{ print ($1 > $2) ? $1 : $2 }')"
check "ten rows" test "$(wc -l <<<"$sizes")" -eq 10
check "the largest difference comes first" test "$sizes" == "$(sort -rn <<<"$sizes")"
validate --real_side=a100 --virtual_gpu=h200 --models=MLP --expect_equal
check "a difference where none is expected" status_is 1

# The log of addresses.
validate --real_side=a100 --models=MLP --address_log=log.csv
check "addresses on equal devices" matches out '^300 of 300 blocks lie as far .* 300 on the same side'
check "the head of the log" test "$(head -n 1 log.csv)" == call,bytes,real,virtual
check "300 blocks" test "$(grep -c '^allocate,' log.csv)" -eq 300
check "all of them freed" test "$(grep -c '^free,' log.csv)" -eq 300
validate --real_side=a100 --virtual_gpu=a100,addresses=up --models=MLP --address_log=log.csv
check "other orders differ" matches out '^[0-9]{1,2} of 300 blocks lie as far'
validate --real_side=a100 --models=MLP --address_log=/nowhere/log.csv
check "a log that cannot be written" status_is 1

# What cannot be compared.
validate --real_side=a100 --models=MLP,nothing
check "an unknown model" status_is 1
check "an unknown model is told" matches err 'there are ResNet-50'
validate --real_side=nothing
check "an unknown device" status_is 1

if [[ -s "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED" ]]; then
  cat "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED"
  failures=$((failures + 1))
fi
finish
