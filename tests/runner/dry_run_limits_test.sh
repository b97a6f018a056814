#!/usr/bin/env bash
# dry_run_limits_test.sh MEMLEDGER PROGRAM
#
# The verdict around both ends of a prediction. What each end needs is found by runs of the program
# itself on devices of many sizes.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)

low=events=once,reads=none
high=events=late,reads=all,workspaces=upper

runs() {  # MIB OPTIONS NET: whether no allocation fails on such a device, by LibTorch's count
  # LibTorch takes another plan for a convolution whose workspace does not fit.
  "$memledger" run --quiet --virtual-gpu="h100:${1}MiB,$2" -- "$program" 3 "$3" 2>/dev/null | tail -1 | grep -q '^3 .* 0$'
}
# The low end does not fit only if both orders of addresses fail, the high end fits only if none
# does.
low_runs() {
  runs "$1" "$low,workspaces=least,addresses=down" "$2" || runs "$1" "$low,workspaces=expected,addresses=up" "$2"
}
high_runs() { runs "$1" "$high,addresses=down" "$2" && runs "$1" "$high,addresses=up" "$2"; }

least() {  # FUNCTION NET: the least MiB with which it is true
  local fails=64 runs=1024 middle
  while ((runs - fails > 1)); do
    middle=$(((fails + runs) / 2))
    if "$1" "$middle" "$2"; then runs=$middle; else fails=$middle; fi
  done
  echo "$runs"
}
verdict() {  # MIB NET: the exit status
  "$memledger" dry-run --gpu="h100:${1}MiB" --settings=none -- "$program" 3 "$2" >out 2>err
  echo $?
}

for net in mlp conv; do
  low_needs="$(least low_runs "$net")"
  high_needs="$(least high_runs "$net")"
  echo "$net: $low_needs MiB to $high_needs MiB"
  check "$net: ends in order" test "$low_needs" -le "$high_needs"
  check "$net: 4 MiB less than the low end" equal "$(verdict $((low_needs - 4)) "$net")" 10
  check "$net: 28 MiB more than the high end" equal "$(verdict $((high_needs + 28)) "$net")" 0
  for ((mib = low_needs; mib < high_needs; mib += (high_needs - low_needs + 2) / 3)); do
    check "$net: $mib MiB, between them" equal "$(verdict "$mib" "$net")" 11
  done
done
check "convolutions have something between the ends" test "$low_needs" -lt "$high_needs"
finish
