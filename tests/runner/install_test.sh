#!/usr/bin/env bash
# Installs into an empty folder, then builds the ten-line program against it with CMake and with
# pkg-config, and runs it.
set -uo pipefail

install="$PWD/$1"
source_file="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1
prefix="$PWD/with a space/../prefix"

fail() {
  echo "FAILED: $1"
  shift
  [[ $# == 0 ]] || tail -n 40 "$@"
  exit 1
}

command -v cmake >/dev/null || fail "cmake is not here; ./bazelw test installs it"

mkdir -p "with a space"
"$install" --prefix "$prefix" >install.log 2>&1 || fail "installing" install.log
prefix="$PWD/prefix"
for file in include/memledger/memledger.h include/memledger/memledger_fmt.h lib/libmemledger.so lib/cmake/memledger/memledgerConfig.cmake lib/pkgconfig/memledger.pc \
            include/memledger/prediction/expectations_doctest.h include/memledger/prediction/expectations_gtest.h include/memledger/tracker/expectations_gtest.h \
            lib/cmake/memledger/memledgerLibTorch.cmake bin/memledger lib/memledger/libmemledger_preload.so lib/memledger/libmemledger_measure.so; do
  [[ -e "$prefix/$file" ]] || fail "$file is not installed"
done
if grep -rnE 'nlohmann|CLI11|"(text|runner)/' "$prefix/include"; then fail "an installed header needs more than is installed"; fi
"$prefix/bin/memledger" --version | grep -q '^memledger [0-9]' || fail "memledger --version"
if grep -rIn '@[A-Z_]*@' "$prefix/lib/cmake" "$prefix/lib/pkgconfig"; then fail "a template was not filled in"; fi

# What a second installation over the first needs, and what it must refuse.
"$install" --prefix="$prefix" >install.log 2>&1 || fail "installing again" install.log
echo file >occupied
if "$install" --prefix occupied/prefix >install.log 2>&1; then fail "installing under a file"; fi
grep -q 'cannot write to .*occupied/prefix' install.log || fail "the reason for not installing" install.log
if "$install" >install.log 2>&1; then fail "installing nowhere"; fi

mkdir project && cp "$source_file" project/main.cpp
cat >project/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.18)
project(ten_lines CXX)
find_package(memledger 0.1 REQUIRED)
add_executable(ten_lines main.cpp)
target_link_libraries(ten_lines PRIVATE memledger::memledger)
END
cmake -S project -B build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || fail "cmake" cmake.log
cmake --build build >build.log 2>&1 || fail "building with CMake" build.log
./build/ten_lines >out 2>err || fail "running" out err
grep -q '(0.00B unexplained)' out || fail "the report" out err

# LibTorch in a path with a space.
cat >small.cc <<'END'
#include <registry/registry.h>
int main() { return memledger::Registry::global().activate().ok() ? 0 : 1; }
END
libtorch="$(sed -n 's/^set(MEMLEDGER_LIBTORCH "\([^"]*\)".*/\1/p' "$prefix/lib/cmake/memledger/memledgerConfig.cmake")"
mkdir "lib torch" small && ln -s "$libtorch"/* "lib torch/" && cp small.cc small/main.cpp && cp project/CMakeLists.txt small/
cmake -S small -B build_space -DCMAKE_PREFIX_PATH="$prefix" -DLIBTORCH="$PWD/lib torch" >cmake.log 2>&1 || fail "cmake with a space" cmake.log
cmake --build build_space >build.log 2>&1 || fail "building with a space" build.log
./build_space/ten_lines || fail "running with a space"

# Abseil as the project's own targets, as FetchContent makes them, where the system has one, too.
sed -i 's/^find_package/add_library(absl_status INTERFACE)\nadd_library(absl::status ALIAS absl_status)\nfind_package/' small/CMakeLists.txt
cmake -S small -B build_absl -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || fail "cmake with an Abseil of the project's" cmake.log

# memledger::autostart: no line of memledger's in the program.
mkdir autostart && cat >autostart/main.cpp <<'END'
#include <iostream>

#include "registry/registry.h"

int main() { std::cout << (memledger::Registry::global().active() ? "tracked" : "not tracked") << '\n'; }
END
sed 's/memledger::memledger/memledger::autostart/' project/CMakeLists.txt >autostart/CMakeLists.txt
cmake -S autostart -B build_autostart -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || fail "cmake with memledger::autostart" cmake.log
cmake --build build_autostart >build.log 2>&1 || fail "building with memledger::autostart" build.log
[[ "$(./build_autostart/ten_lines)" == tracked ]] || fail "memledger::autostart does not track"

# What cannot be is said in one sentence that says what to do.
cmake -S project -B build_refused -DCMAKE_PREFIX_PATH="$prefix" -DLIBTORCH=/nowhere >cmake.log 2>&1 && fail "no LibTorch" cmake.log
tr -s ' \n' ' ' <cmake.log | grep -q 'LIBTORCH=/nowhere: no include/ATen/ATen.h and lib/libtorch_cpu.so there. Give' || fail "no LibTorch" cmake.log
mkdir -p other/include/torch/headeronly other/include/ATen other/lib && touch other/include/ATen/ATen.h other/lib/libtorch_cpu.so
printf '#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 8\n#define TORCH_VERSION_PATCH 7\n' >other/include/torch/headeronly/version.h
cmake -S project -B build_refused -DCMAKE_PREFIX_PATH="$prefix" -DLIBTORCH="$PWD/other" >cmake.log 2>&1 && fail "another LibTorch" cmake.log
tr -s ' \n' ' ' <cmake.log | grep -q 'was built with LibTorch [0-9.]*, and .*/other is 9.8.7. Build memledger with that one, or give' || fail "another LibTorch" cmake.log

# The environment alone makes the linked library report at the end.
MEMLEDGER=1 ./build/ten_lines >out 2>err || fail "running with MEMLEDGER=1" out err
grep -q '^memledger: .* ended (0) after' err || fail "MEMLEDGER=1" err
"$prefix/bin/memledger" run -- ./build/ten_lines >out 2>err || fail "memledger run" out err
[[ "$(grep -c '(process [0-9]*, rank 0)' err)" == 1 ]] || fail "memledger run: one report" err

# With the rights of others the environment is not obeyed. Needs root, and a disk that knows setgid.
cat >secure.c <<'END'
#include <sys/auxv.h>
int main(void) { return getauxval(AT_SECURE) ? 0 : 1; }
END
with_rights() { cp "$1" "$2" && chgrp nogroup "$2" && chmod 2755 "$2"; }
if [[ "$(id -u)" == 0 ]] && ${CC:-cc} secure.c -o secure && with_rights secure secure_setgid && ./secure_setgid; then
  with_rights build/ten_lines setgid || fail "a setgid program"
  MEMLEDGER=1 MEMLEDGER_TIMELINE="$PWD/secure.json" ./setgid >out 2>err || fail "a setgid program" out err
  if grep '^memledger' err || [[ -e secure.json ]]; then fail "a setgid program obeys the environment" err; fi
else
  echo "skipped: a setgid program, which only root can make here"
fi

# A test of a user's, which asks whether a step fits on a GPU that is not there.
if [[ -e "$prefix/lib/memledger/virtual_gpu/preload.txt" && -s "$prefix/lib/memledger/virtual_gpu/preload.txt" ]]; then
  [[ -n "$(ls "$prefix"/lib/memledger/virtual_gpu/driver/absent/libcufile.so.*)" ]] || fail "what stands for a missing cuFile"
  mkdir fits && cat >fits/main.cpp <<'END'
#include <doctest/doctest.h>
#include <torch/torch.h>

#include "memledger.h"
#include "prediction/expectations_doctest.h"

TEST_CASE("a step fits") {
  const auto step = [] { torch::zeros({100 << 20}, torch::dtype(torch::kByte).device(torch::kCUDA)); };
  CHECK(memledger::fits_on("h100:256MiB,addresses=down", step));
  CHECK_FALSE(memledger::fits_on("h100:64MiB,addresses=down", step));
}
END
  cat >fits/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.18)
project(fits CXX)
find_package(memledger 0.1 REQUIRED)
add_executable(fits main.cpp)
target_compile_definitions(fits PRIVATE DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN)
target_link_libraries(fits PRIVATE memledger::virtual_gpu)
END
  cmake -S fits -B build_fits -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || fail "cmake with memledger::virtual_gpu" cmake.log
  cmake --build build_fits >build.log 2>&1 || fail "building with memledger::virtual_gpu" build.log
  env -u RUNFILES_DIR -u TEST_SRCDIR ./build_fits/fits >out 2>err || fail "a step fits on a virtual GPU" out err
fi

# Where it was installed, and moved elsewhere.
standard="$(sed -n 's/.*cxx_std_\([0-9]*\).*/\1/p' "$prefix/lib/cmake/memledger/memledgerConfig.cmake")"
for place in "$prefix" "$PWD/moved"; do
  [[ "$place" == "$prefix" ]] || mv "$prefix" "$place" || fail "moving"
  export PKG_CONFIG_PATH="$place/lib/pkgconfig"
  pkg-config --exists memledger || fail "pkg-config does not know memledger"
  rm -f small_program
  eval "${CXX:-c++} -std=c++$standard small.cc -o small_program $(pkg-config --cflags --libs memledger)" >build.log 2>&1 || fail "building with pkg-config" build.log
  ./small_program || fail "running what pkg-config built"
done
echo "installed, built and run in $prefix"
