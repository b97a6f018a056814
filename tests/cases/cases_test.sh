#!/usr/bin/env bash
# cases_test.sh MEMLEDGER LIBTORCH_LIB VERSION [OPTION OF cases_table.py]…
#
# The table of cases (cases_table.py): a slice of it, or with MEMLEDGER_FULL=1 those that take long,
# too.
source tests/support/shell_test.sh
source tests/support/python_test.sh
TEST_TMPDIR="${TEST_TMPDIR:-$(mktemp -d)}"
export TEST_TMPDIR
memledger="$PWD/$1"

# In a process of its own, as it ends where there is none.
looked="$(find_python "$2" "$3" "$memledger" run --quiet --virtual-gpu=h100 -- && echo "PYTHON $python")"
python="$(sed -n 's/^PYTHON //p' <<<"$looked")"
[[ "$looked" == *FAILED* ]] && fail "$looked"
[[ "$looked" == *SKIPPED* ]] && echo "$looked"

length=()
[[ -n "${MEMLEDGER_FULL:-}" ]] && length=(--full)
[[ -n "${TEST_SHARD_STATUS_FILE:-}" ]] && touch "$TEST_SHARD_STATUS_FILE"
check "the table of cases" python3 tests/cases/cases_table.py --memledger="$memledger" \
  --programs="$PWD/tests/cases" --python="$python" "${length[@]}" \
  --shard="${TEST_SHARD_INDEX:-0}/${TEST_TOTAL_SHARDS:-1}" "${@:4}"
finish
