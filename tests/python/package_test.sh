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
  gpu=(--virtual-gpu=h200,count=2)  # an example of the READMEs has two
  folder="$(dirname "$(dirname "$memledger")")/virtual_gpu/virtual_gpu_libraries"
  stand_ins=(env MEMLEDGER_VIRTUAL_GPU=h200,count=2 "LD_PRELOAD=$(sed "s,^,$folder/," "$folder/preload.txt" | paste -sd:)")
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
for how in alone watched; do
  tests_of "$how: the package" "$how" package_test.py
  tests_of "$how: what it promises" "$how" promises_test.py
  tests_of "$how: the READMEs" "$how" readme_test.py
  check "$how: what Courtesy copies is no read of the program's" test -z "$(grep "a copy of the program's own" err)"
done
options_of() {  # SUBCOMMAND: those that the wheel's script takes the next word for
  python3 -c 'import pathlib, sys, memledger_command
print(*sorted(memledger_command._with_values(pathlib.Path(sys.argv[1]), sys.argv[2])))' "$memledger" "$1"
}
check "options with values, of run" equal "$(options_of run)" \
  "--calibration --column --detail --function --gpu --html --json --log --report-near --report-on --save-report --stacks --text --timeline --virtual-gpu --writes --writes-limit -T -c -f -g -r"
for subcommand in dry-run fit validate; do
  options_of $subcommand >out
  check "options with values, of $subcommand" has out "--virtual-gpu"
done
if [[ "${6:-}" == --cuda ]]; then
  check "predict: exit status" watched "$tests/predict_program.py"
  check "predict" equal "$(cat out)" "predicted True"
fi
finish
