#!/usr/bin/env bash
# An unmodified program trains on devices that are not there. Arguments: the program, the folder of
# libraries, whether there is CUDA.
set -uo pipefail
# Whether the machine has a cuDNN to ask makes no difference.
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model

program="$PWD/$1"
libraries="$PWD/$2"
[[ "$3" == True ]] || { echo "skipped: this LibTorch has no CUDA"; exit 0; }
cd "$TEST_TMPDIR" || exit 1
preload="$(sed "s|^|$libraries/|" "$libraries/preload.txt" | tr '\n' ':')"

failures=0
run() {  # SPECIFICATION ALLOCATOR-SETTINGS
  echo "== $1 $2"
  if ! MEMLEDGER_VIRTUAL_GPU="$1" PYTORCH_CUDA_ALLOC_CONF="$2" MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered.txt" \
    LD_PRELOAD="$preload" "$program"; then
    failures=$((failures + 1))
  fi
}
rm -f unconsidered.txt
for profile in b200 h200 h100 a100 l4 a10g rtx5090 rtx4090 t4; do run "$profile:24GiB" ""; done
# LibTorch for CUDA 13 has no code for it, and a real one ends so.
before=$failures
run "v100:24GiB" "" 2>v100.txt
if ((failures > before)) && grep -q "no kernel image is available for execution on the device" v100.txt; then
  failures=$before
fi
run "h100:24GiB+l4" ""
run "h200:24GiB,count=8" ""
run "h200:24GiB" "expandable_segments:True"

# Every function that this program reaches has a considered answer.
if [[ -e unconsidered.txt ]]; then
  cat unconsidered.txt
  failures=$((failures + 1))
fi
exit $((failures > 0))
