#!/usr/bin/env bash
# The nvidia-smi that programs on a virtual GPU find. Argument: the runner.
source tests/support/shell_test.sh

memledger="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
smi() {  # ARGUMENTS…
  "$memledger" run -q --virtual-gpu=h100+rtx4090 -- nvidia-smi "$@" >out 2>err
}
shown_on_failure=(out err)

smi --query-gpu=index,name,memory.total,memory.used,memory.free,memory.reserved --format=csv
check "a query: status" equal $? 0
check "a query" equal "$(cat out)" "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], memory.reserved [MiB]
0, NVIDIA H100 80GB HBM3, 81559 MiB, 0 MiB, 80994 MiB, 565 MiB
1, NVIDIA GeForce RTX 4090, 24564 MiB, 0 MiB, 24049 MiB, 515 MiB"
check "nothing beside it" equal "$(cat err)" ""
smi -i 0 --query-gpu=clocks.max.sm,temperature.gpu,driver_version --format=csv,noheader,nounits
check "as Triton and Inductor ask" matches out '^1980, [0-9]+, [0-9]+\.[0-9]+\.[0-9]+$'
smi --query-gpu=mig.mode.current,fan.speed --format=csv,noheader
check "what a device has not" equal "$(cat out)" "Disabled, [N/A]
[N/A], 0 %"
smi --query-gpu=memory.mottled --format=csv
check "a field that is not there: status" equal $? 2
check "a field that is not there" has out 'Field "memory.mottled" is not a valid field to query.'
smi -L
check "the list" matches out '^GPU 1: NVIDIA GeForce RTX 4090 \(UUID: GPU-[-0-9a-f]{36}\)$'
smi
check "the table" matches out '^\| N/A +[0-9]+C +P0 .* 0MiB / 81559MiB \| +0%      Default \|$'
smi -q
check "all" matches out '^        Total +: 81559 MiB$'
smi --query-compute-apps=pid,used_memory --format=csv,noheader
check "no process has memory" equal "$(cat out)" ""
smi --shut-down
check "an option that is not there" equal $? 2
finish
