#!/bin/bash
# Checks that the CUDA allocator wrapper forwards every virtual function of the LibTorch in use, and
# that the check notices one that is missing.
# Usage: cuda_allocator_virtuals_test.sh CHECKER OUR_HEADER LIBTORCH_HEADER...
set -u
checker=$1 ours=$2
shift 2

case " $* " in
  *CUDACachingAllocator.h*) ;;
  *) echo "skipped: this LibTorch has no CUDA"; exit 0 ;;
esac

python3 "$checker" "$ours" "$@" || exit 1

# Each one-line forward taken away in turn.
mutant="${TEST_TMPDIR:-$(mktemp -d)}/mutant.h"
total=$(python3 "$checker" "$ours" "$@" | sed -n 's/.* \([0-9]*\) forwarded$/\1/p')
noticed=0 unneeded=0
while read -r line; do
  sed "${line}s/ override/ /" "$ours" > "$mutant"
  if python3 "$checker" "$mutant" "$@" > "$mutant.log"; then
    unneeded=$((unneeded + 1))  # of a newer or older LibTorch, or in a comment
  else
    grep -q '^not forwarded: ' "$mutant.log" || { echo "line $line: failed without a name"; exit 1; }
    noticed=$((noticed + 1))
  fi
done < <(grep -n ' override' "$ours" | cut -d: -f1)
echo "$noticed of $total noticed when taken away, $unneeded lines are not for this version"
# Declarations that take several lines have their `override` on the last, so each counts once.
[ "$noticed" -eq "$total" ] || { echo "the check would miss some"; exit 1; }
