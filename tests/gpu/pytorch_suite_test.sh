#!/usr/bin/env bash
# What pytorch_suite says of made-up tests, which need neither torch nor a device. Arguments:
# pytorch_suite, its list of expected failures.
source tests/support/shell_test.sh

suite="$PWD/$1" list="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1
mkdir tests

cat >memledger <<'END'
#!/usr/bin/env bash
while [[ "$1" != -- ]]; do
  [[ "$1" != --virtual-gpu=* ]] || echo "$1" >>"$OLDPWD/devices"
  shift
done
exec "${@:2}"
END
chmod +x memledger
cat >tests/test_cuda.py <<'END'
import os, time, unittest

in_this_process = []

class TestCuda(unittest.TestCase):
    def test_a(self):
        in_this_process.append("a")
    def test_alone(self):
        self.assertEqual(in_this_process, [])
    def test_crash(self):
        os.kill(os.getpid(), 11)
    def test_fails(self):
        self.assertEqual(1, 2)
    def test_hangs(self):
        time.sleep(100)
    def test_passes(self):
        pass
    def test_skipped(self):
        self.skipTest("no reason")
    def test_z(self):
        self.assertEqual(in_this_process, [])  # not after one that failed
END
echo 'import no_such_module' >tests/test_cuda_trace.py

suite() {
  OLDPWD="$PWD" python3 -B "$suite" --memledger=./memledger --python="$(command -v python3)" --tests=tests --jobs=2 \
    --timeout=5 --expected=expected "$@" >out 2>err
  status=$?
  cat out err
}

echo '# nothing' >expected
suite --files=test_cuda.py
check "failures end it with 1" equal "$status" 1
check "an assertion" matches out '^test_cuda.py TestCuda.test_fails failed: AssertionError: 1 != 2$'
check "a crash" matches out '^test_cuda.py TestCuda.test_crash failed: the process ended with -11$'
check "a test without end" matches out '^test_cuda.py TestCuda.test_hangs failed: no end after 5 s$'
check "nothing else" equal "$(grep -c ' failed: ' out)" 3
check "each counts" matches out '^4 passed, 0 failed as expected, 3 unexpected \(1 skipped\)$'
check "the device" matches devices '^--virtual-gpu=h100,events=late$'

cat >expected <<'END'
test_cuda.py TestCuda.test_crash needs a device
test_cuda.py TestCuda.test_fails api changed  # a comment
test_cuda.py TestCuda.test_hangs api changed
END
suite --files=test_cuda.py
check "what is expected ends it with 0" equal "$status" 0
check "expected failures count" matches out '^4 passed, 3 failed as expected, 0 unexpected \(1 skipped\)$'

cat >>expected <<'END'
test_cuda.py TestCuda.test_passes api changed
test_cuda.py TestCuda.test_gone api changed
END
suite --files=test_cuda.py --gpu=a100
check "a list that is not right ends it with 1" equal "$status" 1
check "passes" matches out '^test_cuda.py TestCuda.test_passes passed and is on the list: api changed$'
check "is no test" matches out '^test_cuda.py TestCuda.test_gone is on the list, and is no test$'
check "another device" matches devices '^--virtual-gpu=a100$'
suite --files=test_cuda.py --update
check "the list is brought up to date" equal "$(cut -d' ' -f2 expected | tr '\n' ' ')" \
  "TestCuda.test_crash TestCuda.test_fails TestCuda.test_hangs TestCuda.test_gone "

suite --files=test_cuda_trace.py
check "a file that cannot be imported ends it with 1" equal "$status" 1
check "is a failure" matches out '^test_cuda_trace.py import failed: the process ended with 1$'
suite --files=test_cuda_sanitizer.py
check "a file that is not there ends it with 1" equal "$status" 1
check "is named" matches out '^test_cuda_sanitizer.py is not in '
echo 'test_cuda.py TestCuda.test_fails' >expected
suite
check "a line without a reason" matches err '^expected:1: a line is a file, Class.test and a reason'

# The real list is as it should be.
cp "$list" expected
suite --files=test_cuda_trace.py
check "no line of the real list is wrong" has_not err "a line is"
finish
