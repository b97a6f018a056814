#!/usr/bin/env bash
# second_copy_test.sh MEMLEDGER PROGRAM…
#
# The programs' own copy of memledger hands over to the runner's, whose hooks are the only ones:
# what hooks see of a training has to come back to the copy that reports. Without a report to write
# the runner's copy would watch nothing.
set -uo pipefail
memledger="$1"
shift
failures=0
for program in "$@"; do
  report="$TEST_TMPDIR/${program##*/}.json"
  # Printed rows are compared, so without the lines that are sampled otherwise.
  "$memledger" run --quiet --stacks=off --save-report="$report" -- "$program" >"$TEST_TMPDIR/out" 2>&1 &&
    [[ -s "$report" ]] && continue
  echo "$program, as the second copy:"
  tail -n 40 "$TEST_TMPDIR/out"
  failures=$((failures + 1))
done
exit $((failures > 0))
