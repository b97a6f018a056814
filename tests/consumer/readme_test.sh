#!/usr/bin/env bash
# The README's program is the one that is compiled and run here, line for line.
set -euo pipefail
readme="$(cat "$1")"
program="$(cat "$2")"
if [[ "$readme" != *"$program"* ]]; then
  echo "README.md does not hold the lines of $2" >&2
  exit 1
fi
