#!/usr/bin/env bash
# The lines of examples/model_size on a virtual H200. Arguments: run_test_program.sh, memledger, the
# example.
#
# Results of layers that do not work in place:
#   (2 * 64 * 512^2 + 64 * 256^2 + 2 * 128 * 256^2 + 128 * 128^2 + 4 * 256 * 128^2 + 256 * 64^2
#   + 4 * 512 * 64^2 + 512 * 32^2 + 4 * 512 * 32^2 + 512 * 16^2) * 4 bytes = 342360064.
# Kept: without the last result (524288), with the pools' int64 indices (63963136).
set -uo pipefail
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
cd "$TEST_TMPDIR" || exit 1
"$run" "$memledger" h200 "$example" >out || exit 1
cat out
[[ "$(head -6 out)" == "on cuda:0

Model Sequential : params: 80.097536M
Model Sequential : intermedite variables: 342.360064 M (without backward)
Model Sequential : intermedite variables: 684.720128 M (with backward)
Model Sequential : kept for backward: 405.798912 M (measured)" ]] || { echo "FAILED: the lines"; exit 1; }
[[ "$(grep -c '(Conv2d)\|(ReLU)\|(MaxPool2d)' out)" == 37 ]] || { echo "FAILED: the layers"; exit 1; }
