#!/usr/bin/env bash
# dry_run_reads_test.sh MEMLEDGER PROGRAM
#
# What a program reads without anybody knowing it opens the verdict, unless runs that assume
# something else of it close it.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)

dry_run() {  # STATUS MODE [OPTION]…
  "$memledger" dry-run --gpu=h100,addresses=down --settings=none --json "${@:3}" -- "$program" "$2" >out 2>err
  check "$2 ${*:3}: exit status" equal "$?" "$1"
}
figure() {  # EXPRESSION of the prediction j and its device d
  python3 -c "import json; j = json.load(open('out')); d = j['devices'][0]; print($1)"
}
read_as() { figure "[(r['kind'], r['values_tried'], r['effect']) for r in j['unknown_reads'] if r['kind'] != 'size']"; }
gibibytes() { figure "[d['allocated_peak'][e] >> 30 for e in ('low', 'high')]"; }

# The likely value first: steps are made, and the narrow interval stays. The other now and then.
for mode in is_finite is_no_nan scaler; do
  dry_run 0 "$mode"
  check "$mode: it steps" test "$(figure "j['program']['steps']")" -gt 0
  check "$mode: what a step takes is there" equal "$(gibibytes)" "[8, 8]"
  check "$mode: the other way was tried" matches <(read_as) "^\[\('branch', 2, '(same_peak|within)'\)\]$"
done
dry_run 0 prints
check "a loss that is printed" equal "$(read_as)" "[('fraction', 4, 'none')]"
check "does not widen the interval" equal "$(gibibytes)" "[8, 8]"

dry_run 0 truth
check "a truth has two ends" equal "$(gibibytes)" "[0, 8]"
check "both were seen" equal "$(read_as)" "[('branch', 2, 'within')]"
dry_run 0 truth --assume=reads_program.cc:1=true
check "a line that was not read is told" has err "--assume=reads_program.cc:1=true: the program read no value there"
"$memledger" dry-run --gpu=h100:4GiB,addresses=down --settings=none -- "$program" truth >out 2>err
check "a device that is too small for one of them" equal "$?" 11

# The number is none that a check has found, though the check lies next to it, or lay in its place.
for mode in beside reused early; do
  dry_run 11 "$mode"
  check "$mode: it has no bound" matches <(read_as) "'open'"
done
for mode in fraction bucket; do
  dry_run 11 "$mode"
  check "$mode: it has no bound" matches <(read_as) "'open'"
  check "$mode: what to say is told" matches <(figure "j['sentence']") "that only the device has \(aten::item in .*--assume=[a-z_]+\.cc:[0-9]+=VALUE says"
  line="$(figure "j['sentence'].split('--assume=')[1].split('=')[0]")"
  dry_run 0 "$mode" --assume="$line=4"
  check "$mode: what was said holds" equal "$(figure "[(r['kind'], r['value']) for r in j['unknown_reads']]")" "[('said', 4.0)]"
done
"$memledger" fit --gpu=h100,addresses=down --to=2 --arg='{}' --assume=a.cc:7 -- "$program" bucket >out 2>err
check "what says nothing is refused" equal "$?" 2
check "with what it has to be" has err "it is FILE:LINE=VALUE"

dry_run 0 bounded
check "a bound of the program's own" equal "$(gibibytes) $(read_as)" "[0, 8] [('number', 4, 'within')]"
for mode in host_mask host_fractions; do
  dry_run 0 "$mode"
  check "$mode: all may be kept, or none" equal "$(gibibytes)" "[0, 8]"
done
dry_run 11 endless
check "a loop that does not end" equal "$(read_as)" "[('number', 4, 'open')]"
dry_run 0 index
check "what the program refuses is no value" equal "$(read_as)" "[('number', 2, 'none')]"
# Instead of a number that the program refuses a million says whether anything depends on it.
dry_run 0 refused_token
check "a token" equal "$(read_as)" "[('number', 4, 'same_peak')]"
dry_run 11 refused_size
check "a size below the peak" equal "$(read_as)" "[('number', 4, 'open')]"

# A run that fails because the smallest sizes leave something out is not made again as it was.
"$memledger" dry-run --gpu=h100 --settings=none --writes=allow -- bash -c 'echo run >>starts; exec "$@"' bash "$program" no_box >out 2>err
check "a program that expects a box" equal "$?" 0
check "its runs: both ends, the low one again, the other order, other sizes" equal "$(wc -l <starts)" 7

# A size that drives a loop is capped, unless the loop is another one's.
dry_run 11 label_loop
check "a loop that a size drives: the verdict says so" matches <(figure "j['sentence']") \
  "^not known: how often a loop runs \(reads_program.cc:[0-9]+.*capped at 128 of 10000000\); --assume=reads_program.cc:[0-9]+=VALUE says what it is"
check "a loop that a size drives: what comes later is seen" equal "$(gibibytes)" "[8, 8]"
line="$(figure "j['sentence'].split('--assume=')[1].split('=')[0]")"
dry_run 0 label_loop --assume="$line=300"
dry_run 0 class_loop
check "a loop over no more values than there are classes: nothing is capped" equal \
  "$(figure "[r['before_cap'] for r in j['unknown_reads'] if r['before_cap']]")" "[]"
dry_run 0 batches
check "a loop of the program's own: nothing is capped" equal "$(figure "[r['before_cap'] for r in j['unknown_reads'] if r['before_cap']]")" "[]"

finish
