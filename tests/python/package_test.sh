#!/usr/bin/env bash
# package_test.sh MEMLEDGER LIBMEMLEDGER C_INTERFACE_H LIBTORCH_LIB VERSION [--cuda]
#
# `import memledger` in a Python program, alone and under `memledger run`; then the examples of the
# READMEs. Needs a Python that imports the torch of this LibTorch: tests/support/python_test.sh says
# which.
source tests/support/shell_test.sh
source tests/support/python_test.sh
memledger="$PWD/$1" library="$PWD/$2"
export MEMLEDGER_C_INTERFACE_H="$PWD/$3" MEMLEDGER_VIRTUAL_GPU_CUDNN=model PYTHONDONTWRITEBYTECODE=1
tests="$PWD/tests/python" root="$PWD"
gpu=() stand_ins=()  # a torch with CUDA does not start without NVIDIA's libraries
if [[ "${6:-}" == --cuda ]]; then
  gpu=(--virtual-gpu=h200)
  folder="$(dirname "$(dirname "$memledger")")/virtual_gpu/virtual_gpu_libraries"
  stand_ins=(env MEMLEDGER_VIRTUAL_GPU=h200 "LD_PRELOAD=$(sed "s,^,$folder/," "$folder/preload.txt" | paste -sd:)")
fi

find_python "$4" "$5" "$memledger" run --quiet "${gpu[@]}" --
export PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)

alone() { MEMLEDGER_LIBRARY="$library" "${stand_ins[@]}" "$python" "$@" >out 2>err; }
watched() { "$memledger" run --quiet "${gpu[@]}" -- "$python" "$@" >out 2>err; }

tests_of() {  # TITLE HOW FILE
  check "$1" "$2" "$tests/$3"
  grep '^SKIPPED: ' out
}
tests_of "alone" alone package_test.py
tests_of "under memledger run" watched package_test.py
for how in alone watched; do
  tests_of "$how: the READMEs" "$how" readme_test.py
done
if [[ "${6:-}" == --cuda ]]; then
  check "predict: exit status" watched "$tests/predict_program.py"
  check "predict" equal "$(cat out)" "predicted True"
fi
finish
