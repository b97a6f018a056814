#!/usr/bin/env bash
# libraries= where nobody gives it: `real` where the program finds all of NVIDIA's libraries that it
# needs, else `stand-ins`. Programs and folders are made here; printenv shows what was chosen.
#
#   own_libraries_test.sh MEMLEDGER
source tests/support/shell_test.sh

memledger="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
unset LD_LIBRARY_PATH PYTHONPATH
export HOME="$PWD/home"
mkdir own home

# made NAME: a library of that name, of a release that no machine has.
# linked TARGET NAME…: a library that needs those.
made() { echo 'int a_function(void) { return 1; }' | cc -x c -shared -fPIC -o "own/$1" -Wl,-soname,"$1" -; }
linked() {
  echo 'int another(void) { return 2; }' |
    cc -x c -shared -fPIC -o "$1" - -Wl,--no-as-needed,-rpath,"$PWD/own" -Lown "${@:2}"
}
made libcudart.so.99
made libcublas.so.99
made libcudnn.so.99
cat >main.c <<'SOURCE'
#include <stdio.h>
#include <stdlib.h>
int main(void) { return puts(getenv("MEMLEDGER_VIRTUAL_GPU")) < 0; }
SOURCE
all=(-l:libcudart.so.99 -l:libcublas.so.99 -l:libcudnn.so.99)
cc -o linked main.c -Wl,--no-as-needed,-rpath,"$PWD/own" -Lown "${all[@]}"
cc -o without main.c

chosen() { "$memledger" run -q --virtual-gpu="${gpu:-h100}" -- "$@" 2>&1 | tail -1; }
real=h100,libraries=real stand_ins=h100,libraries=stand-ins
check "a program with its libraries" equal "$(chosen ./linked)" "$real"
check "a program that needs none" equal "$(chosen ./without)" "$stand_ins"
check "behind env and timeout" equal "$(chosen env A=1 timeout 60 ./linked)" "$real"
check "what is given stays" equal "$(gpu=$stand_ins chosen ./linked)" "$stand_ins"

# LibTorch's part for CUDA need not be linked.
mkdir libtorch
echo 'int a_part(void) { return 1; }' | cc -x c -shared -fPIC -o libtorch/libtorch_cpu.so -Wl,-soname,libtorch_cpu.so -
cc -o of_libtorch main.c -Wl,--no-as-needed,-rpath,"$PWD/own:$PWD/libtorch" -Lown -Llibtorch -ltorch_cpu "${all[0]}"
check "a LibTorch without CUDA" equal "$(chosen ./of_libtorch)" "$stand_ins"
linked libtorch/libtorch_cuda.so "${all[@]}"
check "a LibTorch that finds all" equal "$(chosen ./of_libtorch)" "$real"
mv own/libcudnn.so.99 own/aside
check "a LibTorch that lacks a library" equal "$(chosen ./of_libtorch)" "$stand_ins"
# Looked at, and not started, as it could not be.
looked_at() { chosen printenv MEMLEDGER_VIRTUAL_GPU --no-python "$@"; }
check "a program that lacks a library" equal "$(looked_at ./linked)" "$stand_ins"
mv own/aside own/libcudnn.so.99
check "it has all again" equal "$(looked_at --tee 3 ./linked)" "$real"

# venv FOLDER: a virtual environment of a Python that prints variables.
venv() {
  mkdir -p "$1/bin" "$1/lib/python3.11/site-packages"
  cp "$(command -v printenv)" "$1/bin/python3.11"
  ln -s python3.11 "$1/bin/python"
  echo "home = /nowhere" >"$1/pyvenv.cfg"
}
torch() { mkdir -p "$1/torch/lib" && linked "$1/torch/lib/libtorch_cuda.so" "${all[@]}"; }
packages=lib/python3.11/site-packages
venv with && torch "with/$packages"
venv no_cuda && mkdir -p "no_cuda/$packages/torch/lib"
venv elsewhere && torch checkout && echo "$PWD/checkout" >"elsewhere/$packages/own.pth"
venv wheels && mkdir -p "wheels/$packages/nvidia/cu13/lib" && cp own/libcublas.so.99 "wheels/$packages/nvidia/cu13/lib"
venv bare
python() { chosen "$1/bin/python" MEMLEDGER_VIRTUAL_GPU; }
check "a Python with torch" equal "$(python with)" "$real"
check "a torch without CUDA" equal "$(python no_cuda)" "$stand_ins"
check "a torch that a file names" equal "$(python elsewhere)" "$real"
check "wheels without torch" equal "$(python wheels)" "$real"
check "a Python without packages" equal "$(python bare)" "$stand_ins"
check "a toolkit without torch" equal "$(LD_LIBRARY_PATH="$PWD/wheels/$packages/nvidia/cu13/lib" python bare)" "$real"
check "PYTHONPATH" equal "$(PYTHONPATH="$PWD/checkout" python bare)" "$real"
mkdir -p "home/.local/$packages" && torch "home/.local/$packages"
check "not the user's packages in an environment" equal "$(python bare)" "$stand_ins"
rm -r home/.local
mv own/libcublas.so.99 own/aside
check "a torch that lacks a library" equal "$(python with)" "$stand_ins"
mv own/aside own/libcublas.so.99

cat >launched <<SOURCE
#!/usr/bin/env -S $PWD/with/bin/python MEMLEDGER_VIRTUAL_GPU
SOURCE
chmod +x launched
check "a script of Python's" equal "$(chosen ./launched)" "$real"
check "--no-python" equal "$(chosen ./with/bin/python MEMLEDGER_VIRTUAL_GPU --no-python ./without)" "$stand_ins"
finish
