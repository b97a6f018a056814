#!/usr/bin/env bash
# dry_run_test.sh MEMLEDGER PROGRAM
#
# Whether a program fits: verdicts, exit statuses, and figures against LibTorch's own statistics.
source tests/support/shell_test.sh
memledger="$1" program="$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
memledger="$OLDPWD/$memledger" program="$OLDPWD/$program"
shown_on_failure=(out err)

dry_run() {  # STATUS ARGUMENT…: runs it, and holds it to the status
  local wanted="$1"
  shift
  "$memledger" dry-run "$@" >out 2>err
  check "dry-run $*: exit status" equal "$?" "$wanted"
}
figure() { python3 -c "import json; print(json.load(open('out'))$1)"; }

# LibTorch's own peaks of the whole program.
"$memledger" run --quiet --virtual-gpu=h100 -- "$program" 6 >truth
read -r _ allocated reserved < <(tail -1 truth)

dry_run 0 --gpu=h100 --json -- "$program" 6
check "the JSON's schema" equal "$(figure "['schema']")" memledger.prediction/1
check "the verdict" equal "$(figure "['verdict']")" fits
check "the allocated peak is LibTorch's" equal "$(figure "['devices'][0]['allocated_peak']['low']")" "$allocated"
check "the reserved peak is LibTorch's" equal "$(figure "['devices'][0]['reserved_peak']['low']")" "$reserved"
check "the program was ended after a step" equal "$(figure "['program']['ended']")" step
check "the sum of the terms is the process's peak" equal \
  "$(figure "['devices'][0]['process_peak']['high']")" "$(python3 -c "import json; print(sum(t['high'] for t in json.load(open('out'))['terms']))")"
dry_run 0 --gpu=h100 --until=exit --json -- "$program" 6
check "or not" equal "$(figure "['program']['ended']")" exit
check "with the same peak" equal "$(figure "['devices'][0]['allocated_peak']['high']")" "$allocated"

# 4 MiB more than is reserved, and 4 MiB less than is allocated: between them LibTorch empties its
# cache. Such a device has no context of its own.
dry_run 0 --gpu="h100:$(((reserved >> 20) + 4))MiB" -- "$program" 4
check "the text's verdict" has out "MiB: fits"
dry_run 10 --gpu="h100:$(((allocated >> 20) - 4))MiB" --json -- "$program" 4
check "a device that is too small" matches out '"sentence":"(does not fit: .*short at aten::|fits with expandable)'
check "says by how much" matches out '"headroom_bytes":-[0-9]'
dry_run 10 --gpu=h100:64MiB -- "$program" 4
check "far too small" matches out 'h100:64MiB: does not fit: .* short at .*, which asks for'

dry_run 10 --gpu=h100:64MiB --gpu=h100 -- "$program" 2
check "what fits comes first" matches <(head -1 out) '^h100: fits'

dry_run 12 --gpu=h100 -- "$program" 1 fail
check "the program's status" has out "h100: failed: the program ended with 3"
check "its last lines" has err "the last lines of the program:"
dry_run 12 --gpu=h100 -- "$program" 1 wait
check "its input is empty" has out "failed"
dry_run 10 --gpu=h100 -- "$program" 1 catch
dry_run 12 --gpu=h100 -- /bin/true
check "a program without a GPU" has out "it used no GPU"
dry_run 11 --gpu=h100 --timeout=1 -- /bin/sleep 60
check "a program that does not end" has out "did not end in time"
dry_run 2 --gpu=h1000 -- /bin/true
check "an unknown GPU" has err "is not a known device: h100?"
dry_run 2 -- /bin/true
dry_run 2 --gpu=h100 --until=never -- /bin/true
dry_run 0 --gpu=h100 --json=prediction.json -- "$program" 2
check "the JSON in a file" has prediction.json '"schema":"memledger.prediction/1"'
check "beside the text" has out "h100: fits"
finish
