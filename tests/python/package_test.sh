#!/usr/bin/env bash
# package_test.sh MEMLEDGER LIBMEMLEDGER C_INTERFACE_H LIBTORCH_LIB VERSION [--cuda]
#
# `import memledger` in a Python program, alone and under `memledger run`; then the examples of the
# READMEs. Needs a python3 that imports the torch of this LibTorch, as
# tests/runner/python_names_test.sh says.
source tests/support/shell_test.sh
memledger="$PWD/$1" library="$PWD/$2" packages="$(dirname "$(dirname "$4")")" version="$5"
export MEMLEDGER_C_INTERFACE_H="$PWD/$3" MEMLEDGER_VIRTUAL_GPU_CUDNN=model PYTHONDONTWRITEBYTECODE=1
tests="$PWD/tests/python" root="$PWD"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)
gpu=() stand_ins=()  # a torch with CUDA does not start without NVIDIA's libraries
if [[ "${6:-}" == --cuda ]]; then
  gpu=(--virtual-gpu=h200)
  folder="$(dirname "$(dirname "$memledger")")/virtual_gpu/virtual_gpu_libraries"
  stand_ins=(env MEMLEDGER_VIRTUAL_GPU=h200 "LD_PRELOAD=$(sed "s,^,$folder/," "$folder/preload.txt" | paste -sd:)")
fi

python="${MEMLEDGER_TEST_PYTHON:-python3}"
export PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}"
[[ -n "${MEMLEDGER_TEST_PYTHON:-}" ]] || PYTHONPATH="$PYTHONPATH:$packages"
found="$("$memledger" run --quiet "${gpu[@]}" -- "$python" -c 'import torch; print(torch.__version__)' 2>import_error)"
if [[ "$found" != "$version".* ]]; then
  echo "SKIPPED: $python finds torch '$found', not $version: $(tail -n 1 import_error)"
  [[ -z "${MEMLEDGER_TEST_PYTHON:-}" ]]
  exit
fi

alone() { MEMLEDGER_LIBRARY="$library" "${stand_ins[@]}" "$python" "$@" >out 2>err; }
watched() { "$memledger" run --quiet "${gpu[@]}" -- "$python" "$@" >out 2>err; }
passed() { equal "$?" 0; }

alone "$tests/package_test.py"
check "alone" passed
watched "$tests/package_test.py"
check "under memledger run" passed
for how in alone watched; do
  "$how" "$tests/readme_test.py"
  check "$how: the READMEs" passed
done
if [[ "${6:-}" == --cuda ]]; then
  watched "$tests/predict_program.py"
  check "predict: exit status" passed
  check "predict" equal "$(cat out)" "predicted True"
fi
finish
