#!/usr/bin/env bash
# The comparison of the real with the virtual device, where there is no real one: a virtual one
# takes its place. Equal devices must be equal, and different ones must not pass for equal.
# Arguments: measure_models, memledger.
source tests/support/shell_test.sh

networks="$PWD/$1"
memledger="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1
export MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered.txt"

status_is() { [[ "$status" == "$1" ]] || { echo "  the exit status is $status"; return 1; }; }
validate() {
  "$memledger" validate --networks-program="$networks" "$@" >out 2>err
  status=$?
  cat out err
}

# The name that the device reports leads to its profile.
devices=(a100 t4)
[[ -z "${MEMLEDGER_FULL:-}" ]] || devices=(h200 h100 a100 l4 rtx4090 t4)
for device in "${devices[@]}"; do
  validate --real-side="$device" --network=MLP --expect-equal
  check "$device is itself" status_is 0
  check "$device: every phase is compared" matches out '^0 of 5 phases differ'
  check "$device: the same device" matches_not out 'not the same device'
done
validate --real-side=a100 --network=ResNet-50 --expect-equal
check "ResNet-50 twice" status_is 0

# Another device has other workspaces.
validate --real-side=a100 --gpu=h200 --network=ResNet-50 --network=MLP
check "a difference is no failure" status_is 0
check "the devices are named" matches out 'not the same device'
check "the phases that differ" matches out '^[1-9][0-9]* of 10 phases differ'
sizes="$(sed -nE 's/^(ResNet-50|MLP) +[a-z]+ +[0-9]+ +[0-9]+ +[+-]?([0-9]+).* [0-9]+ +[0-9]+ +[+-]?([0-9]+)( \(.*)?$/\2 \3/p' out |
  awk '{ print ($1 > $2) ? $1 : $2 }')"
check "ten rows" test "$(wc -l <<<"$sizes")" -eq 10
check "the largest difference comes first" test "$sizes" == "$(sort -rn <<<"$sizes")"
validate --real-side=a100 --gpu=h200 --network=MLP --expect-equal
check "a difference where none is expected" status_is 1

# The log of addresses.
validate --real-side=a100 --network=MLP --address-log=log.csv
check "addresses on equal devices" matches out '^300 of 300 blocks lie as far .* 300 on the same side'
check "the head of the log" test "$(head -n 1 log.csv)" == call,bytes,real,virtual
check "300 blocks" test "$(grep -c '^allocate,' log.csv)" -eq 300
check "all of them freed" test "$(grep -c '^free,' log.csv)" -eq 300
validate --real-side=a100 --gpu=a100,addresses=up --network=MLP --address-log=log.csv
check "other orders differ" matches out '^[0-9]{1,2} of 300 blocks lie as far'
validate --real-side=a100 --network=MLP --address-log=/nowhere/log.csv
check "a log that cannot be written" status_is 2

# What cannot be compared.
validate --real-side=a100 --network=MLP --network=nothing
check "an unknown model" status_is 12
check "an unknown model is told" matches err 'there are ResNet-50'
validate --real-side=nothing
check "an unknown device" status_is 2
validate --networks-program=/nowhere
check "no networks" status_is 12
check "what to do without them" matches err 'memledger validate -- PROGRAM'

# A program. The device in the real one's place is measured as a real one: by LibTorch's statistics
# and NVML.
inside() {  # FIGURE
  matches out "^cuda:0  $1 .* yes$"
}
validate --real-side=a100,context=510MiB --until=exit -- "$networks" MLP
check "a program" status_is 0
check "its device" matches out '^cuda:0: NVIDIA A100-SXM4-80GB, 81045 MiB$'
for figure in allocated reserved process; do check "$figure" inside "$figure peak"; done
check "the context" matches out '^cuda:0  context +534 773 760 +520 093 696 +565 182 464  yes$'
allocated="$("$memledger" run --quiet --virtual-gpu=a100 -- "$networks" MLP |
  awk -F '\t' '$1 == "figures" { print $5 }' | sort -n | tail -n 1)"
check "LibTorch's own peak" equal "$(grep '^cuda:0  allocated peak' out | cut -c25-40 | tr -d ' ')" "$allocated"
validate --real-side=h200 --gpu=a100 --until=exit --json -- "$networks" MLP
check "a device that takes more" status_is 0
check "is told from one that does not" matches out '^\{"schema":"memledger.validation/1","virtual_gpu":"a100",.*"capacity_bytes":150108897280,.*"reserved_peak":\{"real":[0-9]+,"low":[0-9]+,"high":[0-9]+,"inside":false\}'

# A calibration: what cuDNN asked for there, and the context. The model of cuDNN, since an upper
# bound of plans that an installed cuDNN was asked for is no other device.
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
validate --real-side=a100,workspaces=upper,context=510MiB --until=exit --write-calibration=a100.json -- "$networks" ResNet-50
check "a calibration" status_is 0
check "it is told" matches err 'the calibration of NVIDIA A100-SXM4-80GB is in a100.json, with 68 convolutions'
check "its context" matches a100.json '^\{"schema":"memledger.calibration/1","device":"NVIDIA A100-SXM4-80GB","context_bytes":534773760,"libraries_bytes":0,"of_process":true,'
peaks() { "$memledger" run --quiet --virtual-gpu="$1" "${@:2}" -- "$networks" ResNet-50 | grep ^figures; }
check "an upper bound is another device" test "$(peaks a100,workspaces=upper)" != "$(peaks a100)"
check "a calibrated device takes what that took" test "$(peaks a100,workspaces=upper)" == "$(peaks a100 --calibration=a100.json)"
check "and knows no upper bound" test "$(peaks a100,workspaces=upper)" == "$(peaks a100,workspaces=upper --calibration=a100.json)"
if [[ -n "${MEMLEDGER_FULL:-}" ]]; then
  validate --real-side=a100,workspaces=upper,context=510MiB --gpu=a100,calibration=a100.json --until=exit -- "$networks" ResNet-50
  check "the same program, calibrated" status_is 0
  for figure in "allocated peak" "reserved peak" "process peak" context; do check "calibrated: $figure" inside "$figure"; done
  check "one context" matches out '^cuda:0  context +534 773 760 +534 773 760 +534 773 760  yes$'
fi
"$memledger" run --virtual-gpu=h200 --calibration=a100.json -- "$networks" MLP >out 2>err
status=$?
check "a calibration of another device" status_is 2
check "both are named" matches err 'the calibration is of "NVIDIA A100-SXM4-80GB", not of the device "NVIDIA H200"'

validate --real-side=a100 -- /bin/true
check "no GPU used" status_is 12
check "it says so" matches err '^memledger validate: the program used no GPU'
validate --real-side=a100 -- "$networks" nothing
check "a program that fails" status_is 12
check "its status" matches err '^memledger validate: the program ended with 1 on the real device'

if [[ -s "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED" ]]; then
  cat "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED"
  failures=$((failures + 1))
fi
finish
