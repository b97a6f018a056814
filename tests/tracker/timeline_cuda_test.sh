#!/usr/bin/env bash
# Arguments: run_test_program.sh, memledger, write_cuda_timeline, check_cuda_timeline.py.
set -uo pipefail
"$1" "$2" h200:512MiB,count=2 "$3" "$TEST_TMPDIR" >"$TEST_TMPDIR/expected" || exit 1
cat "$TEST_TMPDIR/expected"
exec python3 "$4" "$TEST_TMPDIR"
