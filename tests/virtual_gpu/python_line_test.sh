#!/usr/bin/env bash
# python_line_test.sh LIBRARY
#
# Where a Python program is, against what Python itself says.
source tests/support/shell_test.sh
export PROBE="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out)

mkdir -p site/torch
cat >site/torch/inner.py <<'END'
def call(function): return function()
END
cat >main.py <<'END'
import ctypes, os, sys, threading
sys.path.insert(0, "site/torch")
import inner

library = ctypes.CDLL(os.environ["PROBE"])  # releases the GIL, as PyTorch does
text = ctypes.create_string_buffer(4096)

def line():
    library.write_python_line(text, len(text))
    return text.value.decode()

def here(frame): return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"

class Net:
    def forward(self): return line(), here(sys._getframe())

def check(what, is_so): print("ok" if is_so else "FAILED", what)

found = line()
check("the innermost line: " + found, found.endswith("/main.py:9 line"))
def through_pytorch():
    library.write_python_line(text, len(text)); return text.value.decode(), here(sys._getframe())
found, truth = inner.call(through_pytorch)
check("a line called by PyTorch: " + found, found == truth)
# The callback is a C function: the innermost Python line is PyTorch's.
import functools
probe = functools.partial(library.write_python_line, text, len(text))
inner.call(probe)
found = text.value.decode()
check("not one of PyTorch: " + found, found.endswith("/main.py:%d <module>" % (sys._getframe().f_lineno - 2)))
thread = threading.Thread(target=probe)
thread.start(); thread.join()
check("on another thread: " + text.value.decode(), ".run" in text.value.decode() or " run" in text.value.decode())
try: raise ValueError("kept")
except ValueError: probe()
check("while an exception is handled: " + text.value.decode(), "main.py" in text.value.decode())
END
PYTHONDONTWRITEBYTECODE=1 python3 main.py >out 2>&1
check "the program ends well" equal "$?" 0
check "five answers" equal "$(grep -c '^ok ' out)" 5
check "all right" has_not out FAILED
finish
