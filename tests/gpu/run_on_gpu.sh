#!/usr/bin/env bash
# run_on_gpu.sh PROGRAM [ARGUMENT]…: a test program on the GPU that is there. A virtual one would
# prove nothing here.
set -euo pipefail
if [[ "${LD_PRELOAD:-}" == *memledger_virtual_gpu* ]]; then
  echo "FAILED: a virtual GPU is preloaded"
  exit 1
fi
exec "$@"
