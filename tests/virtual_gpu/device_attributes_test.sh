#!/usr/bin/env bash
# device_attributes_test.sh MEMLEDGER MEASURED
#
# The virtual H200 answers cuDeviceGetAttribute() as the measured one did, but for what is said
# below. Libraries choose what they do by these.
source tests/support/shell_test.sh
cat >"$TEST_TMPDIR/attributes.py" <<'END'
import ctypes, re, sys

# The place on the bus, and the board's number.
PLACE = [33, 34, 140]
# What the virtual device lacks: handles for other processes, direct access of other devices,
# compressed memory, waits for a value in memory, events between processes, memory of the host's
# nodes.
LACKS = [103, 107, 110, 116, 117, 118, 119, 122, 123, 124, 125, 128, 141, 142, 144, 145]

cuda = ctypes.CDLL("libcuda.so.1")
device = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
measured = re.findall(r"^attribute (\d+) = (-?\d+) \((\d+)\)", open(sys.argv[1]).read(), re.M)
compared = 0
for attribute, value, error in ((int(word) for word in row) for row in measured):
    if attribute in PLACE or error:
        continue
    seen = ctypes.c_int()
    result = cuda.cuDeviceGetAttribute(ctypes.byref(seen), attribute, device)
    wanted = 0 if attribute in LACKS else value
    if result != error or (error == 0 and seen.value != wanted):
        print(f"attribute {attribute}: {seen.value} ({result}), measured {value} ({error})")
    compared += 1
seen = ctypes.c_int()
assert cuda.cuDeviceGetAttribute(ctypes.byref(seen), 100000, device) == 1
print(f"{compared} compared")
END
"$1" run --quiet --virtual-gpu=h200 -- python3 "$TEST_TMPDIR/attributes.py" "$2" >"$TEST_TMPDIR/out" 2>&1
check "all attributes" equal "$(cat "$TEST_TMPDIR/out")" "144 compared"
finish
