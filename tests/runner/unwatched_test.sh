#!/usr/bin/env bash
# Programs that nobody watches, of which the driver sees what they take and copy: verdicts, figures,
# and the statistics of a torch of another release.
#
#   unwatched_test.sh MEMLEDGER PROGRAM MEASURE_PROGRAM
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)

dry_run() {  # STATUS ARGUMENT…: runs it, and holds it to the status
  local wanted="$1"
  shift
  "$memledger" dry-run "$@" >out 2>err
  check "dry-run $*: exit status" equal "$?" "$wanted"
}
# What only the driver saw: the least and the most.
allocations="[t[end] for d in j['devices'] for t in d['terms'] if t['name'] == 'allocations' for end in ('low', 'high')]"
figure() { python3 -c "import json; j = json.load(open('out')); print($1)"; }  # EXPRESSION of j

# A program of the driver alone, and one next to a program that is watched.
cat >driver.py <<'END'
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
for error in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
              cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(3 << 30)),
              cuda.cuMemFree_v2(memory)):
    assert error == 0, error
os._exit(0)
END
dry_run 0 --gpu=h100 --json -- python3 driver.py
check "without LibTorch the driver sees what it takes" equal "$(figure \
  "$allocations")" "[$((3 << 30)), $((3 << 30))]"
check "that it is not watched is said" equal "$(figure "[j['unwatched_because'], j['evaluation_seen'], j['unknown_reads']]")" \
  "['no process with LibTorch was watched to its end', None, []]"
dry_run 0 --gpu=h100 --until=exit -- sh -c 'python3 driver.py && exec "$0" 1' "$program"
check "one of two is not watched" has out "Not watched: one of its processes used a GPU without being watched."
dry_run 11 --gpu=h100 -- sh -c 'python3 driver.py && exec "$0" 1000' "$program"
check "what is ended after a step has no verdict" has out "one of its processes used a GPU without being watched"
dry_run 0 --gpu=h100,count=2 --json -- sh -c 'CUDA_VISIBLE_DEVICES=1 python3 driver.py && exec python3 driver.py'
check "each device's own" equal \
  "$(figure "[(d['device'], d['process_peak']['low'] >> 30) for d in j['devices']]")" "[('cuda:0', 3), ('cuda:1', 3)]"
sed 's/os._exit(0)/os.execvp("python3", ["python3", "driver.py"])/' driver.py >twice.py
dry_run 0 --gpu=h100 --json -- python3 twice.py
check "before exec() and after" equal "$(figure "[d['process_peak']['low'] >> 30 for d in j['devices']]")" "[6]"
# It does not fit where a device is refused, and says so, or ends well with more.
dry_run 10 --gpu=h100:2GiB -- python3 driver.py
check "memory that is refused" matches out '^h100:2GiB: does not fit: 1\.[0-9] GiB short$'
cat >refused.py <<'END'
exec(open("driver.py").read().split("for error")[0])
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 50))
os._exit(3)
END
dry_run 11 --gpu=h100 -- python3 refused.py
check "what fails with enough memory, too" has out "not known: memory was refused, and what came of that is not known"
# What the driver copies to the host opens the verdict.
cat >reads.py <<'END'
exec(open("driver.py").read().split("for error")[0])
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(16 << 20)) == 0
bytes = int(sys.argv[1])
value = (ctypes.c_ubyte * bytes)()
def read():
    assert cuda.cuMemcpyDtoH_v2(value, memory, ctypes.c_size_t(bytes)) == 0
    return int.from_bytes(value, "little")
def take(size):
    assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)) == 0
def take_managed(size):
    assert cuda.cuMemAllocManaged(ctypes.byref(memory), ctypes.c_size_t(size), 1) == 0
exec(sys.argv[2])
os._exit(0)
END
# A program that hides that memory was refused has no more of it.
dry_run 10 --gpu=h100:2GiB -- sh -c 'python3 driver.py || true'
check "memory that is refused, and status 0" matches out '^h100:2GiB: does not fit: 1\.[0-9] GiB short$'
check "what was asked for" has out "The first allocation that fails: the program asks for 3.0 GiB"
cat >child.py <<'END'
import subprocess
subprocess.run(["python3", "driver.py"])
raise KeyError("out of memory was not the reason")
END
dry_run 11 --gpu=h100:2GiB -- python3 child.py
check "one that fails with more memory, too" has out "memory was refused, and what came of that is not known"
dry_run 0 --gpu=h100,addresses=down -- python3 reads.py 8 'for _ in range(3): print(read())'
check "values without an effect" has out \
  "copies to the host, taken for whole numbers: a number, tried with 5 values, which make the same allocations, 3 times"
check "a block is taken for fractions, too" has out "taken for fractions: a fraction, tried with 5 values, which make the same"
dry_run 0 --gpu=h100,addresses=down --json -- python3 reads.py 1 'take((2 if read() else 1) << 30)'
check "a truth: both ends" equal "$(figure "$allocations")" "[$(((1 << 30) + (16 << 20))), $(((2 << 30) + (16 << 20)))]"
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 4 'take(1 + read() * 8)'
check "a size" matches out '^h100,addresses=down: not known: it depends on a (number|fraction) that only the device has \(copies to the host, taken for '
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 4 'n = read(); assert n < 1 << 30; take(1 + n)'
check "a size that refuses the largest" has out "not known: it depends on a number"
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 4 'import struct; f = struct.unpack("f", value)[0] if read() else 0; take((9 if f != f else 1) << 34)'
check "what is not finite" matches out '^h100,addresses=down: not known: it depends on a (number|fraction) that only the device has '
dry_run 0 --gpu=h100,addresses=down --json -- python3 reads.py 4 'take((3 if any([read() == 0 and read() != 0 for _ in range(20)]) else 1) << 30)'
check "values that differ" equal "$(figure "[b >> 30 for b in $allocations]")" "[1, 3]"
depends() {  # NAME BYTES TEXT: a program whose memory depends on what it copies
  dry_run 11 --gpu=h100:4GiB,addresses=down -- python3 reads.py "$2" "$3"
  check "$1" matches out "^h100:4GiB,addresses=down: not known: it depends on a (number|fraction|condition) that only the device has"
}
depends "the ends of a block" 16 'read(); s, e = memoryview(value).cast("B").cast("q"); take(max(1, e - s))'
depends "the lengths of a block" 64 'read(); v = list(memoryview(value).cast("B").cast("q")); take(max(1, max(b - a for a, b in zip(v, v[1:]))))'
depends "how many of a block differ" 8000 'read(); take(1 + (len(set(memoryview(value).cast("B").cast("q"))) << 21))'
depends "the difference of two copies" 8 'a, b = read(), read(); take(max(1, b - a))'
depends "the difference the other way" 8 'a, b = read(), read(); take(max(1, a - b))'
depends "a byte without a sign" 1 'take(1 + (read() << 24))'
depends "numbers within bounds" 8 'n = read(); take((n if 2 <= n <= 4096 else 1) << 20)'
depends "fractions within bounds" 4 'read(); f = memoryview(value).cast("B").cast("f")[0]; take(1 + (int(f * 1000) << 20 if 0 < f < 1 else 0))'
depends "a large block" 8388608 'read(); take(1 + (len(set(memoryview(value).cast("B").cast("i")[:5000])) << 20))'
dry_run 11 --gpu=h100:2GiB,keep=4KiB,addresses=down -- python3 reads.py 8 \
  'value[0] = 1; cuda.cuMemcpyHtoD_v2(memory, value, ctypes.c_size_t(8)); take(read() << 20)'
check "what keep= keeps is tried, too" has out "not known: it depends on a number that only the device has"
dry_run 0 --gpu=h100,addresses=down -- python3 reads.py 1 'assert read(), "the loss is not finite"; take(1 << 30)'
check "a check that fails with zeros" has out "The program fails if what it copies to the host is zeros, so it is ones at first."
dry_run 12 --gpu=h100,addresses=down -- python3 reads.py 1 'assert read() == 5'
check "one that fails with ones, too" has out "failed: the program ended with 1: AssertionError"
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 8 \
  'cuda.cuMemAllocHost_v2(ctypes.byref(memory), ctypes.c_size_t(64)); cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(ctypes.c_uint64()), memory, 0)'
check "mapped memory" has out "depends on values that only the device has (kernels that may write to the host's memory)"
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 8 'take_managed(1 << 20)'
check "managed memory" has out "depends on values that only the device has (managed memory, which is read without a copy)"
dry_run 11 --gpu=h100,addresses=down -- python3 reads.py 8 'cuda.cuMemAllocAsync(ctypes.byref(memory), ctypes.c_size_t(1 << 20), None)'
check "a stream-ordered pool" has out "nobody says at most how much memory CUDA's stream-ordered pool (cudaMallocAsync) takes"
sed -i 's/os._exit(0)//' driver.py
"$memledger" run --virtual-gpu=h100 -- python3 driver.py 2>err
check "at its end the device's figures are told" matches err \
  '^memledger: cuda:0 \(h100\): process [0-9]+ took 3[0-9]{3}\.[0-9] MiB of 8[0-9]{4}\.[0-9] at most, [0-9]{3}\.[0-9] of it the CUDA context$'
cat >forks.py <<'END'
exec(open("driver.py").read().replace("cuda.cuMemFree_v2(memory)", "0"))
if os.fork() == 0:
    os._exit(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)))
os.wait()
END
dry_run 0 --gpu=h100 --json -- python3 forks.py
check "the child of a fork counts its own" equal "$(figure \
  "$allocations")" "[$((4 << 30)), $((4 << 30))]"
# Another release of LibTorch, as the dynamic linker sees it.
mkdir -p other/lib && echo 2.99.0 >other/build-version
echo 'int torch(void) { return 0; }' | cc -x c -shared -fPIC -o other/lib/libtorch_cpu.so -Wl,-soname,libtorch_cpu.so -
echo 'int torch(void); int main(void) { return torch(); }' |
  cc -x c -o other_release - -x none -Lother/lib -Wl,-rpath,"$PWD/other/lib" -ltorch_cpu
dry_run 11 --gpu=h100 -- ./other_release
check "a LibTorch that is not watched" matches out \
  "^h100: not known: what it takes is not measured: its LibTorch is 2\.99\.0, and this memledger was built for [0-9.]+$"
# Another release in a Python program: its own torch has statistics.
mkdir -p fake/torch/cuda
cat >fake/torch/__init__.py <<'END'
import ctypes, os
__version__ = "2.99.0"
ctypes.CDLL(os.getcwd() + "/other/lib/libtorch_cpu.so")
from . import cuda
import colorsys  # as torch imports more
END
cat >fake/torch/cuda/__init__.py <<'END'
exec(open("driver.py").read().split("for error")[0])
MIB = 1 << 20
_queued = []
frames = [{"filename": __file__, "line": 7, "name": "empty"}, {"filename": "/x/train.py", "line": 3, "name": "main"}]
driver = cuda
def _lazy_call(function): _queued.append(function)
def _is_in_bad_fork(): return False
def is_initialized(): return True
def device_count(): return 1
def memory_stats(device):
    return {"reserved_bytes.all.peak": 20 * MIB, "allocated_bytes.all.peak": 12 * MIB, "allocation.all.allocated": 3}
class memory:
    def _record_memory_history(**options): memory.options = options
    def _snapshot():
        assert memory.options["enabled"] == "all"
        def event(action, address, mib): return {"action": action, "addr": address, "size": mib * MIB, "frames": frames}
        return {"device_traces": [[event("alloc", 1, 8), event("free_completed", 1, 8), event("alloc", 2, 6), event("alloc", 3, 6)]]}
def init():
    for function in _queued: function()
    driver.cuInit(0); driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); driver.cuCtxSetCurrent(context)
    assert driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(30 * MIB)) == 0
END
echo 'import torch; torch.cuda.init()' >fake.py
PYTHONPATH=$PWD/fake "$memledger" run --virtual-gpu=h100 -- python3 fake.py 2>err
check "its own figures" matches err '^memledger: cuda:0, by its torch 2\.99\.0: 12\.0 MiB allocated at most, 20\.0 reserved$'
check "the largest by line" matches err '^ +12\.0 MiB  2 x  train\.py:3 main$'
PYTHONPATH=$PWD/fake dry_run 0 --gpu=h100 --json -- python3 fake.py
check "they are in the prediction" equal \
  "$(figure "[t['low'] >> 20 for d in j['devices'] for t in d['terms'][:3]], j['peak']['place'], [(r['bytes'] >> 20, r['count'], r['place']) for r in j['peak']['largest']]")" \
  "[12, 8, 10] train.py:3 main [(12, 2, 'train.py:3 main')]"
# Others in the process may be refused memory, or take some by what they read, unseen by torch.
cat >beside.py <<'END'
import torch; torch.cuda.init()
import torch.cuda as t, ctypes, sys
def take(size): return t.driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))
exec(sys.argv[1])
END
PYTHONPATH=$PWD/fake dry_run 10 --gpu=h100:2GiB -- python3 beside.py 'take(3 << 30)'
check "what others were refused" has out "does not fit"
PYTHONPATH=$PWD/fake dry_run 11 --gpu=h100:2GiB,addresses=down -- python3 beside.py \
  'p, v = ctypes.c_uint64(), ctypes.c_uint64(); t.driver.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(8)); t.driver.cuMemcpyDtoH_v2(ctypes.byref(v), p, ctypes.c_size_t(8)); assert v.value < 1 << 20 or take(v.value) == 0'
check "what others take by what they read" has out "not known: it depends on a number that only the device has"
PYTHONPATH=$PWD/fake dry_run 0 --gpu=h100 -- python3 fake.py
check "in words" has out "12.0 MiB  2 x 6.0 MiB  an operator, at train.py:3 main"
finish
