#!/usr/bin/env bash
# size_reads_list_test.sh MEMLEDGER PROGRAM
#
# The list at exit of what the host read without knowing it.
set -euo pipefail
memledger="$1" program="$2"

fail() {
  echo "FAILED: $*"
  cat "$TEST_TMPDIR/list.txt"
  exit 1
}

has() { grep -qE "$1" "$TEST_TMPDIR/list.txt" || fail "no line matches: $1"; }

"$memledger" run --report=full "--virtual-gpu=h100:8GiB" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
has 'sizes 6 times \(reads=all: the largest possible\); values that may steer the program 2 times'
# 20 000 elements of two dimensions, 8 bytes each, three times.
has '^  aten::nonzero, 3 times: 937\.5 KiB of results, first at .*size_reads_test\.cc:[0-9]+ read_for_a_list|^  aten::nonzero, 3 times: 937\.5 KiB of results, first at .*read_for_a_list'
has '^  aten::nonzero in aten::index, once: 78\.1 KiB of results'
has '^  aten::bincount, .*no largest size is known'
has '^  aten::item, once: a value, read as 1'
has '^  aten::item, once: a whole number, read as 0'
has 'reads=none gives the lower'

# One screen says values in a line; sizes, which memory depends on, are listed.
"$memledger" run "--virtual-gpu=h100:8GiB" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
has '^read back, not known: 2 values, first in aten::item at size_reads_test\.cc'
has '^  aten::nonzero, 3 times: 937\.5 KiB of results'
if grep -q '^  aten::item' "$TEST_TMPDIR/list.txt"; then fail "values are listed as well"; fi

"$memledger" run --report=full "--virtual-gpu=h100:8GiB,reads=none" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
has 'aten::nonzero, 3 times: 0\.0 B of results'

"$memledger" run --report=full "--virtual-gpu=h100:8GiB" -- "$program" --numbers 2>"$TEST_TMPDIR/list.txt"
# Each line of the program by itself.
[[ "$(grep -c '^  aten::item, once: a whole number, read as 0, first at .*read_numbers' "$TEST_TMPDIR/list.txt")" == 3 ]] || fail "not three numbers"
has '^  aten::(to|_to_copy|copy_), once: a whole number, read as 0, first at .*read_numbers'
has '^  aten::item, once: a value, read as 0'
has '^  aten::item, once: a value, read as 1'
has '^  aten::is_nonzero, once: a value, read as 0'
has '^  aten::(to|_to_copy|copy_), once: a value, read as 1'
[[ "$(grep -c 'a whole number, read as 0' "$TEST_TMPDIR/list.txt")" == 4 ]] || fail "other numbers are listed"

"$memledger" run --report=full "--virtual-gpu=h100:8GiB" -- "$program" --unbounded 2>"$TEST_TMPDIR/list.txt"
for op in repeat_interleave bincount one_hot; do has "^  aten::$op, .*, no largest size is known"; done
has 'upper end but for what has no largest size'

"$memledger" run --quiet "--virtual-gpu=h100:8GiB" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
[[ ! -s "$TEST_TMPDIR/list.txt" ]] || fail "--quiet printed something"
