#!/usr/bin/env bash
# ./bazelw run //:install -- --prefix DIR
#
# Installs the headers, libmemledger.so, the command `memledger` and the libraries it preloads, the
# CMake package and the pkg-config file. The library works with the LibTorch that it was built with;
# see LIBTORCH in the README.
set -euo pipefail

usage() {
  echo "usage: ./bazelw run //:install -- --prefix DIR" >&2
  exit 2
}

prefix=""
while (($#)); do
  case "$1" in
    --prefix) [[ $# -ge 2 ]] || usage; prefix="$2"; shift 2 ;;
    --prefix=*) prefix="${1#--prefix=}"; shift ;;
    *) echo "install: there is no option \`$1\`" >&2; usage ;;
  esac
done
[[ -n "$prefix" ]] || usage
# `bazel run` starts this in a folder of its own.
[[ "$prefix" == /* ]] || prefix="${BUILD_WORKING_DIRECTORY:-$PWD}/$prefix"

files="$(cd "${RUNFILES_DIR:-${BASH_SOURCE[0]}.runfiles}/memledger" 2>/dev/null && pwd)" || files="$PWD"
[[ -e "$files/memledger.h" ]] || { echo "install: cannot find what Bazel built, in $files" >&2; exit 1; }

mkdir -p "$prefix" 2>/dev/null && [[ -d "$prefix" && -w "$prefix" ]] || { echo "install: cannot write to $prefix" >&2; exit 1; }
prefix="$(cd "$prefix" && pwd)"

put() {  # FILE DESTINATION [MODE]
  mkdir -p "$(dirname "$2")"
  # Copied next to it, then renamed: a program that has mapped the old file keeps it.
  cp -L "$1" "$2.new"
  chmod "${3:-644}" "$2.new"
  mv -f "$2.new" "$2"
}

# The two headers that users include first, and those that they reach.
headers=(memledger.h memledger_fmt.h)
# What they do not reach: the adaptors of test frameworks.
headers+=(tracker/expectations_doctest.h tracker/expectations_gtest.h prediction/expectations_doctest.h prediction/expectations_gtest.h)
seen=" "
while ((${#headers[@]})); do
  header="${headers[0]}"
  headers=("${headers[@]:1}")
  [[ "$seen" == *" $header "* ]] && continue
  seen+="$header "
  put "$files/$header" "$prefix/include/memledger/$header"
  while read -r included; do
    if [[ -e "$files/$included" ]]; then headers+=("$included"); fi
  done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$files/$header")
done

put "$files/runner/inside/libmemledger.so" "$prefix/lib/libmemledger.so" 755
put "$files/runner/inside/libmemledger_preload.so" "$prefix/lib/memledger/libmemledger_preload.so" 755
put "$files/runner/inside/libmemledger_measure.so" "$prefix/lib/memledger/libmemledger_measure.so" 755
put "$files/runner/memledger" "$prefix/bin/memledger" 755
# Compiled into the programs that link memledger::virtual_gpu.
put "$files/virtual_gpu/linked.cc" "$prefix/lib/memledger/virtual_gpu_linked.cc"
# And these into the programs that link memledger::autostart.
for file in registry/autostart.cc runner/inside/linked_names.cc runner/inside/torch_calls.cc runner/inside/torch_calls.h; do
  put "$files/$file" "$prefix/lib/memledger/autostart/$file"
done
rm -rf "$prefix/lib/memledger/virtual_gpu"
if [[ -e "$files/virtual_gpu/virtual_gpu_libraries/preload.txt" ]]; then
  for folder in . driver; do
    put "$files/virtual_gpu/virtual_gpu_libraries/$folder/preload.txt" "$prefix/lib/memledger/virtual_gpu/$folder/preload.txt"
    while read -r library; do
      [[ -z "$library" ]] || put "$files/virtual_gpu/virtual_gpu_libraries/$folder/$library" "$prefix/lib/memledger/virtual_gpu/$folder/$library" 755
    done < "$files/virtual_gpu/virtual_gpu_libraries/$folder/preload.txt"
  done
  # Those of NVIDIA's that a program may lack.
  for file in "$files"/virtual_gpu/virtual_gpu_libraries/driver/absent/*; do
    put "$file" "$prefix/lib/memledger/virtual_gpu/driver/absent/${file##*/}" 755
  done
  for file in memledger_cudnn_planner libmemledger_cudnn_planner_driver.so nvidia-smi; do
    [[ ! -e "$files/virtual_gpu/virtual_gpu_libraries/$file" ]] || put "$files/virtual_gpu/virtual_gpu_libraries/$file" "$prefix/lib/memledger/virtual_gpu/$file" 755
  done
fi

# shellcheck source=/dev/null
source "$files/runner/install/versions.sh"
libtorch_cflags=' -isystem "${libtorch}/include" -isystem "${libtorch}/include/torch/csrc/api/include"'
libtorch_libs=' -L"${libtorch}/lib" -Wl,--no-as-needed -ltorch_cpu -Wl,--as-needed -lc10 -Wl,-rpath,"${libtorch}/lib"'
fill_in() {  # TEMPLATE DESTINATION
  local filled
  filled="$(mktemp)"
  sed -e "s|@VERSION@|$MEMLEDGER_VERSION|g" -e "s|@LIBTORCH@|$MEMLEDGER_LIBTORCH|g" \
      -e "s|@LIBTORCH_VERSION@|$MEMLEDGER_LIBTORCH_VERSION|g" \
      -e "s|@LIBTORCH_CFLAGS@|$libtorch_cflags|g" -e "s|@LIBTORCH_LIBS@|$libtorch_libs|g" \
      -e "s|@CXX_STANDARD@|$MEMLEDGER_CXX_STANDARD|g" "$1" > "$filled"
  put "$filled" "$2"
  rm -f "$filled"
}
fill_in "$files/runner/install/memledgerConfig.cmake.in" "$prefix/lib/cmake/memledger/memledgerConfig.cmake"
fill_in "$files/runner/install/memledgerConfigVersion.cmake.in" "$prefix/lib/cmake/memledger/memledgerConfigVersion.cmake"
put "$files/cmake/libtorch.cmake" "$prefix/lib/cmake/memledger/memledgerLibTorch.cmake"
fill_in "$files/runner/install/memledger.pc.in" "$prefix/lib/pkgconfig/memledger.pc"

echo "installed memledger $MEMLEDGER_VERSION for LibTorch $MEMLEDGER_LIBTORCH_VERSION in $prefix"
