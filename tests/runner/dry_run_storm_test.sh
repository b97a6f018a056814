#!/usr/bin/env bash
# dry_run_storm_test.sh MEMLEDGER PROGRAM WITHOUT_NAMESPACES [OPTION]…, of dry_run_storm.py
#
# Dry-runs that are ended at random moments while a real job runs do it no harm and leave nothing
# behind.
source tests/support/shell_test.sh
runs=6
[[ -n "${MEMLEDGER_FULL:-}" ]] && runs=200
check "the storm" python3 tests/runner/dry_run_storm.py --memledger="$1" --program="$2" \
  --without-namespaces="$3" --runs="$runs" "${@:4}"
finish
