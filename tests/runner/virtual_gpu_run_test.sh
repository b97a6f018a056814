#!/usr/bin/env bash
# `memledger run --virtual-gpu`: what the program finds, and a LibTorch that it was not made for.
source tests/support/shell_test.sh

memledger="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
unset TRITON_LIBCUDA_PATH
count() { equal "$(grep -cE -- "$2" "$1")" "$3"; }  # FILE PATTERN TIMES

# Triton looks for the driver on disk and links with it by its file name.
"$memledger" run -q --virtual-gpu=h100 -- sh -c 'echo "$TRITON_LIBCUDA_PATH"' >out
folder="$(cat out)"
check "Triton's driver: a folder" equal "$(basename "$folder")" virtual_gpu_libraries
cat >launcher.c <<'C'
int cuInit(unsigned), cuDeviceGetCount(int *);
int launch(void) { int count = 0; return cuInit(0) || cuDeviceGetCount(&count) || count != 3; }
C
echo 'int launch(void); int main(void) { return launch(); }' >main.c
cc -shared -fPIC launcher.c -o liblauncher.so -L"$folder" -l:libcuda.so.1 &&
  cc main.c -o launcher -L. -Wl,-rpath,"$PWD" -llauncher -Wl,--allow-shlib-undefined
check "Triton's driver: can be linked with" equal $? 0
"$memledger" run -q --virtual-gpu=h100,count=3 -- ./launcher
check "Triton's driver: answers" equal $? 0
TRITON_LIBCUDA_PATH=/mine "$memledger" run -q --virtual-gpu=h100 -- sh -c 'echo "$TRITON_LIBCUDA_PATH"' >out
check "Triton's driver: the user's own" equal "$(cat out)" /mine
"$memledger" run -q -- sh -c 'echo "$TRITON_LIBCUDA_PATH"' >out
check "Triton's driver: none without a virtual GPU" equal "$(cat out)" ""

# The driver's files: two devices of the virtual GPU's, and no seventy-eighth.
"$memledger" run -q --virtual-gpu=h100,count=2 -- sh -c 'for file in 0 1 77 ctl; do [ -e /dev/nvidia$file ] && echo $file; done' >out
check "files of its devices" equal "$(tr '\n' ' ' <out)" "0 1 ctl "

# libtorch FOLDER VERSION SOURCE [LIBRARY]: a LibTorch as the dynamic linker sees it.
libtorch() {
  mkdir -p "$1/lib" && echo "$2" >"$1/build-version" && echo "$3" >torch.c &&
    cc -shared -fPIC -w -o "$1/lib/libtorch_cpu.so" -Wl,-soname,libtorch_cpu.so torch.c "${@:4}"
}
echo 'int torch(void); int main(void) { return torch(); }' >main.c
program() { cc main.c -o "$1" -L"$2/lib" -Wl,-rpath,"$PWD/$2/lib" -ltorch_cpu -Wl,--allow-shlib-undefined; }

libtorch newer 2.99.0+cu130 'int cudaNeverHeardOf(void); int torch(void) { return cudaNeverHeardOf(); }' -Wl,-z,now
program newer_program newer
"$memledger" run -q --virtual-gpu=h100 -- ./newer_program >out 2>err
check "a symbol that no library has: status" equal $? 126
check "a symbol that no library has: both versions" matches err \
  '^memledger run: \./newer_program is linked with LibTorch 2\.99\.0\+cu130 \(.*/newer/lib\), and the virtual GPU of this memledger was made for LibTorch [0-9.]+ with CUDA [0-9]+'
check "a symbol that no library has: which" has err "(undefined symbol: cudaNeverHeardOf)"
check "a symbol that no library has: what to do" matches err 'Build memledger for that LibTorch \(LIBTORCH=.*/newer \./bazelw'
check "a symbol that no library has: said once" equal "$(wc -l <err)" 1

echo 'int cudaMalloc(void) { return 0; }' >runtime.c
cc -shared -fPIC -o libcudart.so.7 -Wl,-soname,libcudart.so.7 runtime.c
libtorch older 2.1.0+cu70 'int cudaMalloc(void); int torch(void) { return 0 * cudaMalloc(); }' -L. -l:libcudart.so.7 -Wl,--no-as-needed
program older_program older
rm libcudart.so.7
"$memledger" run -q --virtual-gpu=h100 -- ./older_program >out 2>err
check "another CUDA: status" equal $? 126
check "another CUDA: which library" has err "(libcudart.so.7 => not found)"

# Another release that fits is started.
libtorch fitting 2.99.0 'int torch(void) { return 5; }'
program fitting_program fitting
"$memledger" run -q --virtual-gpu=h100 -- ./fitting_program >out 2>err
check "another release that fits" equal $? 5

# The dynamic linker is asked about a program by starting it, and starts one with the rights of
# others for good. Each start leaves a trace.
echo 'int main(void) { return 6; }' >plain.c
cc plain.c -o plain
starts() {  # MODE
  rm -f trace.* && chmod "$1" plain
  LD_DEBUG=files LD_DEBUG_OUTPUT="$PWD/trace" "$memledger" run -q --virtual-gpu=h100 -- ./plain
  check "mode $1: is run" equal $? 6
  starts="$(grep -lE 'needed by (\./)?plain' trace.* | wc -l)"
}
starts 755
check "a program is asked about" equal $((starts > 1)) 1
for mode in 4755 2755; do
  starts "$mode"
  check "mode $mode: a program with rights of others is started once" equal "$starts" 1
done

# Another dynamic linker than glibc's knows nothing of such questions, and would run the program.
cat >linker.c <<'C'
static long call(long number, const void *a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
void _start(void) {
  long file = call(2, "started", 02101 /* append, create, write */, 0600);
  call(1, (void *)file, (long)"started\n", 8);
  call(231, (void *)6, 0, 0);
}
C
cc -nostdlib -static-pie -fPIE -O1 linker.c -o linker && cc plain.c -o of_another_linker -Wl,--dynamic-linker="$PWD/linker"
"$memledger" run -q --virtual-gpu=h100 -- ./of_another_linker
check "another dynamic linker: cannot have one" equal $? 126
check "another dynamic linker: is not started" test ! -e started

# Loaded while the program runs, as Python does.
cat >loader.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
  for (int i = 1; i < count; ++i)
    if (!dlopen(words[i], RTLD_NOW | RTLD_GLOBAL)) printf("%s\n", dlerror());
  return 9;
}
C
cc loader.c -o loader -ldl
"$memledger" run -q --virtual-gpu=h100 -- ./loader "$PWD/newer/lib/libtorch_cpu.so" "$PWD/newer/lib/libtorch_cpu.so" >out 2>err
check "loaded later: status" equal $? 9
check "loaded later: both versions, once" count err \
  'belongs to LibTorch 2\.99\.0\+cu130, and the virtual GPU of this memledger was made for LibTorch [0-9.]+ with CUDA [0-9]+' 1
check "loaded later: the linker's own words" count out 'undefined symbol: cudaNeverHeardOf' 2
"$memledger" run -q -- ./loader "$PWD/newer/lib/libtorch_cpu.so" >out 2>err
check "loaded later, without a virtual GPU" equal "$(cat err)" ""
finish
