#!/usr/bin/env bash
# pack_validate.sh OUT.tar.gz: memledger with the built-in networks of `memledger validate`, for a
# machine with a GPU and a torch package, without Bazel.
set -euo pipefail
[[ $# == 1 && -x tests/gpu/measure_models ]] || { echo "usage: ./bazelw run //tests/gpu:pack_validate -- OUT.tar.gz" >&2; exit 1; }
out="$(cd "${BUILD_WORKING_DIRECTORY:-.}" && realpath "$1")"
programs=(tests/gpu/measure_models tests/gpu/models_test_program runner/memledger)
packed="$(mktemp -d)"
trap 'rm -rf "$packed"' EXIT
cp -rL --parents "${programs[@]}" runner/inside/libmemledger{,_preload,_measure}.so virtual_gpu/virtual_gpu_libraries "$packed"
# Debian's libraries that the programs use and other machines may not have.
mkdir "$packed/lib"
ldd "${programs[@]}" | awk '/lib(absl|fmt)/ { print $3 }' | sort -u | xargs -r cp -L -t "$packed/lib"
tar -C "$packed" -czf "$out" .
echo "$out"
