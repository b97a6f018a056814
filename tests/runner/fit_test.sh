#!/usr/bin/env bash
# fit_test.sh MEMLEDGER PROGRAM
#
# The largest value that fits: held against runs of the program on the same device, where LibTorch
# itself says whether it does.
source tests/support/shell_test.sh
memledger="$1" program="$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
memledger="$OLDPWD/$memledger" program="$OLDPWD/$program"
shown_on_failure=(out err)

fit() {  # STATUS ARGUMENT…: runs it, and holds it to the status
  local wanted="$1"
  shift
  "$memledger" fit "$@" >out 2>err
  check "fit $*: exit status" equal "$?" "$wanted"
}
figure() {  # EXPRESSION, in which d is the JSON and t what was tried
  python3 -c "import json; d = json.load(open('out')); t = d.get('tried'); print($1)"
}
runs() {  # BATCH OPTION: whether LibTorch runs it to its end, with the maximum of a device
  "$memledger" run --quiet --virtual-gpu="h100:640MiB,events=late,workspaces=upper,reads=all,$2" -- \
    "$program" 4 "batch=$1" >/dev/null 2>&1
}

fit 0 --gpu=h100:640MiB --arg='batch={}' --json --svg=peak.svg -- "$program" 4
largest="$(figure "d['largest']")" runs_without_reads="$(figure "d['runs']")"
check "the schema" equal "$(figure "d['schema']")" memledger.fit/1
check "the next is the one above" equal "$(figure "d['next']")" "$((largest + 1))"
check "in few values" test "$(figure "len(t)")" -le 14
check "both were tried" equal \
  "$(figure "[x['verdict'] == 'fits' for x in t if x['value'] in ($largest, $largest + 1)].count(True)")" 1
check "LibTorch runs the largest" runs "$largest" context=24MiB
if runs "$((largest + 1))" context=24MiB,addresses=up &&
  runs "$((largest + 1))" context=24MiB,addresses=down; then
  fail "LibTorch runs the next with 24 MiB to spare, too"
fi
check "only remedies that help are there" equal \
  "$(figure "[r for r in d['remedies'] if r.get('verdict') != 'fits' and not r['freed_bytes'] > 0]")" "[]"
check "the picture is XML" python3 -c 'import xml.dom.minidom; xml.dom.minidom.parse("peak.svg")'
check "with a mark for each value" equal "$(grep -c 'class="value"' peak.svg)" \
  "$(figure "sum(x['process_peak']['low'] <= 2 * x['capacity_bytes'] for x in t)")"

fit 0 --gpu=h100:640MiB --from="$largest" --to="$((largest + 1))" --arg='batch={}' -- "$program" 4
check "the sentence" matches out "^h100:640MiB: the largest that fits is batch=$largest; batch=$((largest + 1)) (does not fit|is not known): "
check "the settings" matches out '(: fits$|^Other settings of LibTorch and cuBLAS do not help with batch=)'
check "no line is too long" equal "$(awk 'length > 200' out)" ""
cp out once
fit 0 --gpu=h100:640MiB --from="$largest" --to="$((largest + 1))" -- "$program" 4 'batch={}'
check "twice the same, and {} may stand in the program's own argument" cmp out once
check "the picture's bars" matches out "^ *$largest .*#+.*fits$"

# A read that allocates alike is tried with the first value, and with those on both sides.
fit 0 --gpu=h100:640MiB --json -- "$program" 4 'batch={}' huge=1000000
check "the same largest where a loss is read" equal "$(figure "d['largest']")" "$largest"
check "no other values of it for each batch" test \
  "$(figure "d['runs'] - $runs_without_reads")" -le 20
# One that decides nothing with small values, and does with large ones: the search goes on below.
fit 0 --gpu=h100:640MiB --to=8 --json -- "$program" 4 'batch={}' huge=5
check "the largest with which the loss decides nothing" equal \
  "$(figure "(d['largest'], d['next'])")" "(4, 5)"

fit 0 --gpu=h100:640MiB --to=9 --arg='batch={}' --json=fit.json -- "$program" 4
check "all fit: said" has out "the largest that fits is batch=9, and no larger value was asked for"
check "the JSON in a file" has fit.json '"largest":9,"next":null,"end":"all fit"'
fit 0 --gpu=orin --to=2 --arg='batch={}' -- "$program" 4
check "a device that may have less memory is named" has out "cuda:0 may have less: the memory is the host's"
fit 10 --gpu=h100:64MiB --arg='batch={}' -- "$program" 4
check "none fits: what is short" matches out 'none fits: batch=1 does not fit: '
fit 2 --gpu=h100 --arg='ignored={}' -- "$program" 2
check "a value that changes nothing" has out "no answer: the value does not change the peak"
fit 12 --gpu=h100 --arg='batch={}' -- "$program" 2 fail
fit 12 --gpu=h100:640MiB -- /bin/sh -c "[ {} -lt 4 ] || { echo no such batch; exit 3; }; exec '$program' 2 batch={}"
check "a program that fails at some value: said" matches out 'no answer: .* failed: the program ended with 3.*; .* fits; is there a largest'
check "its last lines" has err "no such batch"
fit 2 --gpu=h100 --arg='batch=' -- "$program" 2
check "--arg without {}" has err "memledger fit: --arg=batch=: it needs {} where the value goes"
fit 127 --gpu=h100 --arg='{}' -- no_such_program
finish
