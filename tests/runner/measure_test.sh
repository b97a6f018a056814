#!/usr/bin/env bash
# measure_test.sh MEMLEDGER PROGRAM
#
# What a program that dry-run measures leaves in the folder of its run, against LibTorch's own
# figures and sizes worked out by hand.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model XDG_CACHE_HOME="$TEST_TMPDIR/cache"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out)

measure() {  # UNTIL SPECIFICATION MODE…: runs it, its status is in $status
  rm -rf run
  mkdir run
  MEMLEDGER_MEASURE="$TEST_TMPDIR/run" MEMLEDGER_MEASURE_UNTIL="$1" "$memledger" run --quiet \
    --virtual-gpu="$2" -- "$program" "${@:3}" >out 2>&1
  status=$?
}
figure() {  # EXPRESSION of m, the measurement
  python3 -c "
import glob, json, sys
files = glob.glob('run/*.json')
m = json.load(open(files[0])) if len(files) == 1 else {'files': len(files)}
reads = {r['op'] + ' ' + r['kind']: r for r in m.get('unknown_reads', [])}
print($1)" 2>&1 | tail -1
}

# The program is ended once its steps repeat, with the peak of the whole one.
for mode in sgd adam accumulate ema evaluate gan attack attack_once grow; do
  measure exit h100 "$mode"
  check "$mode ends by itself" equal "$(figure "m['ended']")" exit
  whole="$(figure "m['devices'][0]['allocated_peak_bytes']")"
  check "$mode: the peak is LibTorch's" equal "$whole" "$(tail -1 out | cut -d' ' -f2)"
  steps="$(figure "m['steps']")"
  measure step h100 "$mode"
  check "$mode: exit status" equal "$status" 0
  check "$mode is ended" equal "$(figure "m['ended']")" step
  check "$mode: its peak" equal "$(figure "m['devices'][0]['allocated_peak_bytes']")" "$whole"
  check "$mode: before its end" test "$(figure "m['steps']")" -lt "$steps"
  check "$mode: nothing is left untrained" equal "$(figure "m['unstepped_parameters']")" 0
done
# The last was grow, below the peak, for ten steps.
check "what grows is followed" test "$(figure "m['steps']")" -gt 10
measure step h100 sgd
check "steps that are alike are told" equal "$(figure "m['kind_of_steps']")" alike
measure exit h100 evaluate_later
whole="$(figure "m['devices'][0]['allocated_peak_bytes']")"
measure step h100 evaluate_later
check "what comes a little later is seen" equal "$(figure "m['devices'][0]['allocated_peak_bytes']")" "$whole"
# Training, evaluation and the rest have peaks of their own.
stage() { figure "[r['allocated_peak_bytes'] for r in m['stages'] if r['stage'] == '$1']"; }
measure exit h100 evaluate
check "an evaluation has the peak" equal "$(stage evaluation)" "[$(tail -1 out | cut -d' ' -f2)]"
check "training takes less" test "$(figure "[r['allocated_peak_bytes'] for r in m['stages'] if r['stage'] == 'training'][0]")" -lt "$(tail -1 out | cut -d' ' -f2)"
check "the net alone is neither" test "$(figure "[r['allocated_peak_bytes'] for r in m['stages'] if r['stage'] == 'neither'][0]")" -gt 0
for mode in sgd adam ema gan; do
  measure exit h100 "$mode"
  check "$mode evaluates nothing" equal "$(stage evaluation)" "[]"
  check "$mode: the peak is of training" equal "$(stage training)" "[$(figure "m['devices'][0]['allocated_peak_bytes']")]"
done
measure exit h100 inference
check "inference alone trains nothing" equal "$(figure "sorted({r['stage'] for r in m['stages']} - {'neither'})")" "['evaluation']"
measure step h100 gan
check "steps of several kinds come again" equal "$(figure "m['kind_of_steps']")" repeat
measure step h100 inference
check "without a step a program runs to its end" equal "$(figure "m['ended'], m['steps']")" "exit 0"
check "and has its peak" equal "$(figure "m['devices'][0]['allocated_peak_bytes']")" "$(tail -1 out | cut -d' ' -f2)"

# Its gradient is not known: only the list shows it.
measure exit h100 lbfgs
check "LBFGS asks values" matches <(figure "sorted(reads)") 'fraction|branch'

measure exit h100 reset
check "a peak before a reset" equal "$(figure "m['devices'][0]['allocated_peak_bytes']")" $((64 << 20))
check "and the sum" equal "$(figure "m['devices'][0]['requested_bytes_in_all']")" $((65 << 20))

# Values that only the device has.
measure exit h100 reads
check "sizes with a largest one" equal "$(figure "[reads['aten::nonzero size']['has_upper_bound'], reads['aten::_unique2 size']['has_upper_bound'], reads['aten::nonzero in aten::masked_select size']['has_upper_bound']]")" "[True, True, True]"
check "20 000 elements of two dimensions, 8 bytes each" equal "$(figure "reads['aten::nonzero size']['bytes']")" 320000
check "sizes without" equal "$(figure "[reads['aten::one_hot size']['has_upper_bound'], reads['aten::repeat_interleave size']['has_upper_bound'], reads['aten::bincount size']['has_upper_bound']]")" "[False, False, False]"
check "their line" matches <(figure "reads['aten::one_hot size']['where']") 'reads'
measure exit h100,reads=none reads
check "none of them" equal "$(figure "reads['aten::nonzero size']['bytes']")" 0
measure exit h100 item_size
check "a number that becomes a size" equal "$(figure "reads['aten::item number']['has_upper_bound']")" False
measure exit h100 copied_counts
check "numbers that are copied" equal "$(figure "reads['aten::to number']['has_upper_bound']")" False
measure exit h100 branches
check "truths and fractions steer" equal "$(figure "sorted((r['kind'], r['has_upper_bound'], r['assumed']) for r in m['unknown_reads'])")" \
  "[('branch', False, 1.0), ('fraction', False, 1.0), ('fraction', False, 1.0)]"
measure exit h100 known
check "what is known is not listed" equal "$(figure "m['unknown_reads']")" "[]"

# Two runs that differ in what numbers are show whether they matter.
for mode in item_size copied_counts item_printed; do
  measure exit h100,numbers=zero "$mode"
  zero="$(figure "m['devices'][0]['allocations'], m['devices'][0]['requested_bytes_in_all']")"
  measure exit h100,numbers=one "$mode"
  one="$(figure "m['devices'][0]['allocations'], m['devices'][0]['requested_bytes_in_all']")"
  if [[ "$mode" == item_printed ]]; then
    check "$mode does not depend on it" equal "$one" "$zero"
  else
    check "$mode depends on it" test "$one" != "$zero"
  fi
done

# A failed allocation, in a device of 1 GiB, without a context.
measure exit h100:1GiB fail
check "the failure ends it" equal "$status" 134
check "what it asked for" equal "$(figure "m['failure']['requested_bytes']")" $((1 << 40))
check "what was free" equal "$(figure "m['failure']['free_bytes'] + m['failure']['reserved_bytes']")" $((1 << 30))
check "what was allocated" equal "$(figure "m['failure']['allocated_bytes']")" $((32 << 20))
check "by which line" matches <(figure "m['failure']['where']") 'allocate_too_much'
check "how it ended" matches <(figure "m['cause']") 'SIGABRT, uncaught exception: CUDA out of memory'
measure exit h100:1GiB fail_and_go_on
check "or did not" equal "$(figure "m['ended'], m['failure']['requested_bytes']")" "exit $((1 << 40))"

# However a program ends, its figures are there, and its status is its own.
while read -r mode wanted ended cause; do
  measure exit h100 "$mode"
  check "$mode: exit status" equal "$status" "$wanted"
  check "$mode: figures" equal "$(figure "m['devices'][0]['allocated_peak_bytes']")" $((8 << 20))
  check "$mode: how it ended" equal "$(figure "m['ended']")" "$ended"
  check "$mode: why" matches <(figure "m['cause']") "^$cause\$"
done <<'END'
segv 139 not SIGSEGV
aborts 134 not SIGABRT
throws 134 not SIGABRT, uncaught exception: no data set here
exits 3 exit
exits_quickly 4 exit
is_terminated 143 not SIGTERM
handles_its_segv 5 exit
crashes_in_malloc 134 not SIGABRT
forks 0 exit
forks_late 0 exit
END

mkdir run2
MEMLEDGER_MEASURE="$TEST_TMPDIR/run2" timeout -s KILL 12 "$memledger" run --quiet --virtual-gpu=h100 -- "$program" is_killed_later
check "a program that is killed" matches <(cat run2/*.json) '"allocated_peak_bytes":8388608'
check "how far it was" matches <(cat run2/*.progress) '^0 0 aten::'

# Files.
measure exit h100 saves
check "files written" equal "$(tr '\0' '\n' <run/written | sed 's|.*/||' | sort | tr '\n' ' ')" "from_shell.txt gone.txt log.txt net.pt "
finish
