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

"$memledger" run "--virtual-gpu=h100:8GiB" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
has 'sizes 6 times \(reads=all: the largest possible\); values that may steer the program 2 times'
# 20 000 elements of two dimensions, 8 bytes each, three times.
has '^  aten::nonzero, 3 times: 937\.5 KiB of results, first at .*size_reads_test\.cc:[0-9]+ read_for_a_list|^  aten::nonzero, 3 times: 937\.5 KiB of results, first at .*read_for_a_list'
has '^  aten::nonzero in aten::index, once: 78\.1 KiB of results'
has '^  aten::bincount, .*no largest size is known'
has '^  aten::item, once: a value, read as zero'
has '^  aten::item, once: a whole number, read as zero'
has 'reads=none gives the lower'

"$memledger" run "--virtual-gpu=h100:8GiB,reads=none" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
has 'aten::nonzero, 3 times: 0\.0 B of results'

"$memledger" run --quiet "--virtual-gpu=h100:8GiB" -- "$program" --list 2>"$TEST_TMPDIR/list.txt"
[[ ! -s "$TEST_TMPDIR/list.txt" ]] || fail "--quiet printed something"
