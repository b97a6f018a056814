#!/usr/bin/env bash
# The same ResNet-50 from Python and from C++ on the same virtual device, by torch's and LibTorch's
# own figures. Arguments: memledger, measure_models, resnet50.py, LibTorch's lib folder, its version
# (2.11).
#
# python3 must be able to import the torch package that LibTorch is a part of: a plain LibTorch has
# none, and the package needs others, which --test_env=PYTHONPATH=FOLDER leads to: pip install
# --target FOLDER typing_extensions sympy networkx jinja2 filelock fsspec
set -uo pipefail

memledger="$PWD/$1" measure_models="$PWD/$2" resnet50="$PWD/$3" packages="$(dirname "$(dirname "$4")")" version="$5"
cd "$TEST_TMPDIR" || exit 1
export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED="$PWD/unconsidered.txt"
on_a100=("$memledger" run --quiet --virtual-gpu=a100 --)

cannot() {
  echo "FAILED: $1"
  exit 1
}

command -v python3 >/dev/null || cannot "there is no python3"
found="$("${on_a100[@]}" python3 -c 'import torch; print(torch.__version__, torch.__file__)' 2>import_error)" ||
  cannot "python3 cannot import torch from $packages: $(tail -n 1 import_error)"
[[ "$found" == "$version".*" $packages/torch/"* ]] || cannot "python3 finds torch $found, not $version of $packages"
echo "torch $found"

failures=0
"${on_a100[@]}" "$measure_models" ResNet-50 >cpp.txt || exit 1
"${on_a100[@]}" python3 "$resnet50" >python.txt || exit 1
grep ^figures cpp.txt >cpp
grep ^figures python.txt >python
cat cpp python

# Python's Adam makes the state of all parameters before it updates the first one, and its variable
# `denom` lives on until the next parameter's is made. So the first step has another peak: above
# what is left after it, in C++
#   + 2 temporaries of the largest parameter with the fewest bytes of state still to come, fc.weight
#   - both averages of fc.bias;
# and in Python
#   + 2 temporaries of the largest parameter, layer4.2.conv2.weight
#   + the denom of the one before, layer4.2.bn1.bias.
peak_above_rest() { awk '$3 == "step" { print $9 - $8 }' "$1"; }
expect() {  # WHAT ACTUAL EXPECTED
  [[ "$2" == "$3" ]] && return
  echo "FAILED: $1: $2 is not $3"
  failures=$((failures + 1))
}
expect "C++, the step's requested peak" "$(peak_above_rest cpp)" $((2 * 4 * 1000 * 2048 - 2 * 4 * 1000))
expect "Python, the step's requested peak" "$(peak_above_rest python)" $((2 * 4 * 512 * 512 * 9 + 4 * 512))

# All else is equal: the other phases, and what is left after the step.
without_the_peaks_of_the_step() { awk -v OFS='\t' '$3 == "step" { $5 = $9 = "-" } { print }' "$1"; }
expect "phases" "$(cut -f 3 cpp | tr '\n' ' ')" "build forward backward step again "
if ! diff <(without_the_peaks_of_the_step cpp) <(without_the_peaks_of_the_step python); then
  echo "FAILED: C++ (<) and Python (>) differ"
  failures=$((failures + 1))
fi

if [[ -s "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED" ]]; then
  cat "$MEMLEDGER_VIRTUAL_GPU_UNCONSIDERED"
  failures=$((failures + 1))
fi
exit $((failures > 0))
