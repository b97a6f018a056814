#!/usr/bin/env bash
# The training steps of the built-in networks on this machine's GPU and on the virtual one.
exec runner/memledger validate --networks-program="$PWD/tests/gpu/measure_models" "$@"
