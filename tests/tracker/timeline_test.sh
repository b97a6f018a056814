#!/usr/bin/env bash
# Arguments: write_timelines, check_timelines.py.
set -uo pipefail
"$1" "$TEST_TMPDIR" >"$TEST_TMPDIR/expected" || exit 1
cat "$TEST_TMPDIR/expected"
exec python3 "$2" "$TEST_TMPDIR"
