#!/usr/bin/env bash
# ends_table_test.sh MEMLEDGER PROGRAM LIBTORCH_LIB VERSION --cuda|--cpu [OPTION OF ends_table.py]…
#
# The table of ends (ends_table.py): a slice of it, or with MEMLEDGER_FULL=1 a hundred runs of each
# cell.
source tests/support/shell_test.sh
source tests/support/python_test.sh
TEST_TMPDIR="${TEST_TMPDIR:-$(mktemp -d)}"
export TEST_TMPDIR
memledger="$1" program="$2"
gpu=()  # a torch with CUDA does not start without NVIDIA's libraries
[[ "$5" == --cuda ]] && gpu=(--virtual-gpu=h100)

# In a process of its own, as it ends where there is none.
looked="$(find_python "$3" "$4" "$memledger" run --quiet "${gpu[@]}" -- && echo "PYTHON $python")"
python="$(sed -n 's/^PYTHON //p' <<<"$looked")"
[[ "$looked" == *FAILED* ]] && fail "$looked"

length=(--slice --jobs=1)
[[ -n "${MEMLEDGER_FULL:-}" ]] && length=(--runs=100)
(($# > 5)) && length=()
# What may happen once in many runs is not allowed to happen twice in five.
[[ "${TEST_SHARD_INDEX:-0}" != 0 ]] || check "the table's bounds" python3 -c '
import sys
sys.path.insert(0, "tests/runner")
from ends_table import End, Cell, KINDS, RUNS_OF_DOUBT, is_too_often, lines_too_many
from ends_table_run import Seen
cell = Cell(KINDS[0], End("handler_exits", rarely="signal SIGABRT"))
well, rare, silent = Seen(status="exit 0"), Seen(status="signal SIGABRT"), Seen(why_not=["memledger: no report"])
assert is_too_often(cell, [well] * 5, [well] * 4 + [rare])
assert not is_too_often(cell, [well] * 105, [well] * 104 + [rare])
assert is_too_often(cell, [well] * 100, [well] * 95 + [rare] * 5)
assert lines_too_many([silent]) == 1
assert lines_too_many([silent] + [well] * RUNS_OF_DOUBT) == 0
assert lines_too_many([silent] * 2 + [well] * RUNS_OF_DOUBT) == 2'
[[ -n "${TEST_SHARD_STATUS_FILE:-}" ]] && touch "$TEST_SHARD_STATUS_FILE"
check "the table of ends" python3 tests/runner/ends_table.py --memledger="$memledger" \
  --programs="$(dirname "$program")" --python="$python" "${gpu[@]}" "${length[@]}" \
  --shard="${TEST_SHARD_INDEX:-0}/${TEST_TOTAL_SHARDS:-1}" "${@:6}"
finish
