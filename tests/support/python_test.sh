# For tests of Python programs, after shell_test.sh, in the folder of the runfiles:
#
#   find_python "$libtorch_lib" 2.11 memledger run --quiet --virtual-gpu=h100 --
#
# Sets `python` to a Python that imports the torch of this LibTorch:
# - what MEMLEDGER_TEST_PYTHON names (--test_env=MEMLEDGER_TEST_PYTHON=/venv/bin/python),
# - or a virtual environment of python3.11 with the torch that bazelw has put next to LibTorch,
# - or one of python3, if LIBTORCH is an installed package.
# Where there is none, ends the test as skipped. A torch that is there has to work.
find_python() {  # LIBTORCH_LIB VERSION COMMAND…
  local libtorch packages base found status
  libtorch="$(dirname "$1")"
  python="${MEMLEDGER_TEST_PYTHON:-}"
  if [[ -z "$python" ]]; then
    packages="$(python3 third_party/fetch_libtorch.py --find-python "$libtorch" 2>"$TEST_TMPDIR/no_python")"
    status=$?
    check "a Python is looked for" test "$status" -eq 0 -o "$status" -eq 2
    if [[ "$status" == 0 ]]; then
      base=python3.11
    elif [[ -e "$libtorch/__init__.py" ]]; then
      base=python3 packages="$(dirname "$libtorch")"
    else
      echo "SKIPPED: $(cat "$TEST_TMPDIR/no_python")"
      finish
    fi
    "$base" -m venv --without-pip "$TEST_TMPDIR/python"
    echo "$packages" >"$(echo "$TEST_TMPDIR"/python/lib/python3*/site-packages)/torch.pth"
    python="$TEST_TMPDIR/python/bin/python"
  fi
  found="$("${@:3}" "$python" -c 'import torch; print(torch.__version__)' 2>"$TEST_TMPDIR/import_error")"
  [[ "$found" == "$2".* ]] && return
  fail "$python finds torch '$found', not $2: $(cat "$TEST_TMPDIR/import_error")"
  finish
}
