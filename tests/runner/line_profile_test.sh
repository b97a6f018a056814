#!/usr/bin/env bash
# The line profile of a program that was not built for it, on a virtual GPU. The figures are those
# of pytorch_memlab's README: a Linear of 100 by 100 takes 40000 bytes in a block of 40448 and 400
# in one of 512, together 40.00K, in a segment of 2.00M.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2" profiled="$PWD/$3" small="$PWD/$4"
cd "$TEST_TMPDIR" || exit 1

# figures FUNCTION PATTERN: prints the figures of the row whose code contains PATTERN.
figures() { awk -v title="## $1" -v code="$2" '/^## /{ inside = $0 == title } inside && index($0, code) { print $1, $2 }' err; }

"$memledger" run --virtual-gpu=h200 -f outer -f inner -r profile.json -T profile.txt --html profile.html -- "$program" >out 2>err
check "exit status" equal $? 0
check "standard output" equal "$(cat out)" ""
check "outer begins" equal "$(figures outer 'static void outer()')" "0.00B 0.00B"
check "the first" equal "$(figures outer ' linear = ')" "40.00K 2.00M"
check "the second" equal "$(figures outer 'linear2 =')" "80.00K 2.00M"
check "the call" equal "$(figures outer 'inner();')" "120.00K 2.00M"
check "inner begins" equal "$(figures inner 'static void inner()')" "80.00K 2.00M"
check "inner's line" equal "$(figures inner 'linear =')" "120.00K 2.00M"
check "the heads" has err "active_bytes reserved_bytes line  code"
check "no report beside it" has_not err "Storage on"
check "the text in its file" equal "$(cat profile.txt)" "$(cat err)"
check "JSON" python3 - <<'EOF'
import json
profile = json.load(open("profile.json"))
assert profile["device"] == "cuda:0", profile["device"]
for function in profile["functions"]:
    lines = function["lines"]
    for figure in ("allocated_bytes", "freed_bytes", "left_bytes"):
        assert sum(line[figure] or 0 for line in lines) == function["total"][figure], (function["function"], figure)
outer = next(f for f in profile["functions"] if f["function"] == "outer")
assert outer["total"]["allocated_bytes"] == 3 * 40400, outer["total"]
assert outer["total"]["left_bytes"] == 0
assert max(l["active_bytes.all.peak"] or 0 for l in outer["lines"]) == 3 * 40960
EOF
check "HTML" has profile.html "void outer()"
check "HTML without anything from elsewhere" has_not profile.html "http"

"$memledger" run --virtual-gpu=h200 -q -f outer -D -c line.allocated -T lines-%p.txt -- "$program" >out 2>err
check "quiet" equal "$(cat err)" ""
check "a file by process" has "$(echo lines-*.txt)" "118.36K"
check "only that column" has_not "$(echo lines-*.txt)" "active_bytes"

"$memledger" run --virtual-gpu=h200 -q -f outer --log quiet-logs -- "$program" >out 2>err
check "quiet with a folder" equal "$(cat err)" ""
check "quiet with a folder: the profile in it" has quiet-logs/memledger-lines.txt "## outer"
check "quiet with a folder: no report without --report" equal "$(ls quiet-logs)" memledger-lines.txt
"$memledger" run --virtual-gpu=h200 -q --report -f outer --log quiet-both -- "$program" >out 2>err
check "quiet with --report" equal "$(cat err)" ""
check "quiet with --report: the report in the folder" has quiet-both/memledger-exit.txt "cuda:0"

"$memledger" run --virtual-gpu=h200 --report -f outer --log logs -- "$program" >out 2>err
check "the profile in the log's folder" has logs/memledger-lines.txt "## outer"
check "the report beside it" has logs/memledger-exit.txt "cuda:0"

"$memledger" run --virtual-gpu=h200 -f outter -- "$program" >out 2>err
check "a function that is not there: status" equal $? 0
check "a function that is not there" has err 'there is no function `outter`'
check "a near one" has err '`outer`'

"$memledger" run --virtual-gpu=h200 -f outer -g 7 -- "$program" >out 2>err
check "a GPU that is not there: status" equal $? 0
check "a GPU that is not there" has err "memledger: -g 7: LibTorch sees 1 CUDA device"
"$memledger" run --virtual-gpu=h200 -f outer -g 0 -- "$program" >out 2>err
check "the first GPU by its number" equal "$(figures outer 'inner();')" "120.00K 2.00M"
check "the first GPU by its number: nothing said" has_not err "LibTorch sees"

"$memledger" run -f f -c active_bytes.all -- "$program" >out 2>err
check "a wrong column: status" equal $? 2
check "a wrong column" has err "line.allocated, line.freed, line.left"
"$memledger" run -r x.json -- "$program" >out 2>err
check "no function: status" equal $? 2
check "no function" has err "-f FUNCTION"

# MEMLEDGER_PROFILE(), without the runner.
"$profiled" exit >out 2>err
check "a profiled program: status" equal $? 7
check "a profiled program: its functions" equal "$(grep '^## ' out)" "$(printf '## work\n## other')"
check "a profiled program: its bytes" has out "allocated 4.14K, freed 4.14K, left behind 0.00B"
check "a profiled program: the other's bytes" has out "allocated 2.07K, freed 2.07K, left behind 0.00B"
"$profiled" clear >out 2>err
check "what was cleared is gone, what runs again is there" equal "$(grep '^## ' out)" "## other"
check "and from then on" has out "allocated 2.07K, freed 2.07K, left behind 0.00B"
# What LibTorch's symbolizer keeps must be there until the last table is printed; MALLOC_PERTURB_
# overwrites freed memory.
MALLOC_PERTURB_=165 "$profiled" between >out 2>err
check "a table printed on the way: status" equal $? 7
check "a table printed on the way" equal "$(grep '^## ' out)" "$(printf '## between\n## work\n## other')"
check "and the sums at the end" has out "allocated 8.29K, freed 8.29K, left behind 0.00B"
MALLOC_PERTURB_=165 "$memledger" run -f survive --report -- "$small" survive 0 </dev/null >out 2>err
check "a caught failure, lines and a report: status" equal $? 0
check "a caught failure, lines and a report" has err "## survive"
# A background process of a shell ignores Ctrl-C: Python starts it as a terminal would.
check "Ctrl-C" python3 - "$profiled" <<'EOF'
import signal, subprocess, sys

def start(mode):
    return subprocess.Popen([sys.argv[1], mode], stdout=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

def check(text):
    assert text.count("## work\n") == 1 and text.count("## other\n") == 1, text
    assert text.count("left behind 0.00B\n") == 2, text

child = start("wait")
assert child.stdout.readline() == "ready\n"
child.send_signal(signal.SIGINT)
check(child.communicate(timeout=60)[0])
assert child.returncode == -signal.SIGINT, child.returncode
# It ends at the same moment: the tables are whole, and printed once.
for _ in range(5):
    child = start("interrupt")
    check(child.communicate(timeout=60)[0])
    assert child.returncode in (-signal.SIGINT, 7), child.returncode
EOF

printf 'nothing' >data && chmod +x data
"$memledger" run -- ./data >out 2>err
check "not a program: status, as of a shell" equal $? 127
check "not a program: told by the shell" has err "nothing: not found"
if echo 'int main() { return 3; }' | ${CC:-gcc} -static -x c - -o static 2>/dev/null; then
  "$memledger" run -- ./static >out 2>err
  check "a static program runs: status" equal $? 3
  check "a static program" has err "is linked statically"
  "$memledger" run -q -- ./static >out 2>err
  check "a static program, quiet" equal "$(cat err)" ""
fi
if [[ -x /lib64/ld-linux-x86-64.so.2 ]]; then
  "$memledger" run -- /lib64/ld-linux-x86-64.so.2 /bin/sh -c 'exit 4' >out 2>err
  check "a loader starts its program: status" equal $? 4
  check "a loader" has err "is linked statically, or a loader"
fi
if echo 'extern "C" void _ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh() {} int main() { return 0; }' | ${CXX:-g++} -x c++ - -o inside 2>/dev/null; then
  "$memledger" run -- ./inside >out 2>err
  check "LibTorch inside runs: status" equal $? 0
  check "LibTorch inside" matches err "has LibTorch linked into it statically: .* It runs, but is not watched$"
  "$memledger" run --virtual-gpu=h100 -- ./inside >out 2>err
  check "LibTorch inside has no virtual GPU: status" equal $? 126
  check "LibTorch inside has no virtual GPU" has err "so it cannot have a virtual GPU"
fi

((failures == 0)) || cat err
finish
