#!/usr/bin/env bash
# `memledger log` on long logs, and on files that are no logs. Arguments: memledger, how many
# blocks.
source tests/support/shell_test.sh
memledger="$PWD/$1" blocks="$2"
cd "$TEST_TMPDIR" || exit 1

# One shape, a birth and a death in each block: at most 10 s and 500 MB for a million blocks. CPU
# time counts, as the machine may be busy.
cat >measure.py <<'END'
import resource
import subprocess
import sys

memledger, blocks = sys.argv[1], int(sys.argv[2])
ROW = "%s | 1 * Size:(1024, 256)         | Memory: 1.0 M | Tensor               | torch.float32 | aten::ones\n"
with open("long.txt", "w") as log:
    log.write("GPU Memory Track | d | Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb\n\n\n")
    for block in range(blocks):
        log.write(ROW % "+" + (ROW % "-" if block > 0 else "") + "\nAt loop.cc line 7: main   Total Tensor Used Memory:1.0    Mb "
                  "Total Allocated Memory:2.0    Mb\n\n")
for arguments in [["long.txt"], ["long.txt", "long.txt"]]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run([memledger, "log"] + arguments, stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print("%d blocks, %d log(s): %.1f s, at most %d MB" % (blocks, len(arguments), seconds, after.ru_maxrss // 1000))
    assert seconds < 10e-6 * max(blocks, 200000) * len(arguments), "too slow"
    assert after.ru_maxrss < 500e3, "too much memory"
    if len(arguments) == 1:
        assert "\nd: %d blocks\n" % blocks in text, text
        # The last block's.
        assert "What never came back: 1.0 MiB born in this log and alive at its end\n  1.0 MiB, 1 * Tensor (1024, 256) " \
            "torch.float32, born before loop.cc line 7: main: aten::ones\n" in text, text
    else:
        assert text.count("\n") == 3 + blocks + 1 and text.endswith("Alive at the end: the same in both\n"), text[-200:]
END
python3 measure.py "$memledger" "$blocks" || fail "a long log"
rm long.txt

# status_of WANTED MESSAGE ARGUMENTS…
status_of() {
  local wanted="$1" message="$2" status
  shift 2
  timeout 60 "$memledger" log "$@" >out 2>error
  status=$?
  [[ $status == "$wanted" ]] || fail "$* ends with $status"
  [[ "$(<error)" == "memledger log: $message"* ]] || fail "$* says: $(<error)"
}

expected="; expected a log of MemTracker or gpu_mem_track"
status_of 1 "/dev/zero: line 1: longer than 1048576 bytes$expected" /dev/zero
status_of 1 "/dev/urandom: line " /dev/urandom
status_of 1 "/dev/null: this is no log of MemTracker or gpu_mem_track" /dev/null
status_of 1 "$PWD: a folder$expected" "$PWD"
status_of 1 "none.txt: No such file or directory" none.txt
mkfifo pipe
status_of 1 "pipe: a pipe that nobody writes to$expected" pipe
status_of 2 "which log?"
status_of 2 "there is no option \`--sgv\`" --sgv
# Gigabytes without a newline.
echo "GPU Memory Track | d | Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb" >line.txt
truncate -s 5G line.txt
status_of 1 "line.txt: line 2: longer than 1048576 bytes$expected" line.txt
rm line.txt

at="At a.cc line 1: f   Total Tensor Used Memory:1.0    Mb Total Allocated Memory:2.0    Mb"
echo "$at" >log.txt
for i in $(seq 3000); do echo "At a.cc line $i: g   Total Tensor Used Memory:1.0    Mb Total Allocated Memory:2.0    Mb"; done >long.txt
# A few bytes stay in a buffer until the program ends, many do not.
for arguments in log.txt "long.txt long.txt" "--svg=- long.txt"; do
  # shellcheck disable=SC2086
  "$memledger" log $arguments >/dev/full 2>error
  [[ $? == 1 && "$(<error)" == "memledger log: cannot write to standard output: No space left on device" ]] ||
    fail "$arguments to a full disk: $(<error)"
  # shellcheck disable=SC2086
  "$memledger" log $arguments >&- 2>error
  [[ $? == 1 && "$(<error)" == "memledger log: cannot write to standard output: Bad file descriptor" ]] ||
    fail "$arguments to a closed output: $(<error)"
  # shellcheck disable=SC2086
  "$memledger" log $arguments >/dev/full 2>&-
  [[ $? == 1 ]] || fail "$arguments, and standard error is closed, too"
done
"$memledger" log --svg=/dev/full log.txt >out 2>error
[[ $? == 1 && "$(<error)" == "memledger log: cannot write the SVG /dev/full: No space left on device" ]] ||
  fail "an SVG to a full disk: $(<error)"
grep -q "1 block" out || fail "the summary is missing where the SVG cannot be written"

printf 'At \033[2J<a>&\377\b line 1: f   Total Tensor Used Memory:1.0    Mb Total Allocated Memory:2.0    Mb\n' >names.txt
"$memledger" log --svg=names.svg names.txt >out || fail "names.txt"
LC_ALL=C grep -q '[[:cntrl:]]' out && fail "control characters in the summary: $(<out)"
python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse("names.svg")' || fail "the SVG is no XML"

finish
