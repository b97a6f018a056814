#!/usr/bin/env bash
# A program that needs more than its (virtual) GPU has dies as it would without memledger, and a
# file says who held what.
source tests/support/shell_test.sh

memledger="$PWD/$1"
program="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1

ulimit -c 0

"$memledger" run --virtual-gpu=h200:7GiB,context=0B --log=logs -- "$program" >out 2>err
check "the program is ended by its own exception" equal $? 134
check "LibTorch's error reaches it" has err "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 7.00 GiB"
check "one report" equal "$(echo logs/oom-*.txt | wc -w)" 1
report="$(echo logs/oom-*.txt)"
check "told where" has err "who holds it: $PWD/$report"
check "what was asked for" has "$report" "Asked for: 1.00G (1073741824 bytes) by aten::zeros"
check "who held it" has "$report" "       7.00G       7 x  aten::zeros"
check "by role, though nothing is registered" has "$report" "Who holds it, by role, as far as operators show it:"
check "no role is made up" equal "$(grep -cF '       7.00G       7 x  Tensor [forward]' "$report")" 1
check "nothing unexplained" has "$report" "Explained: 7.00G of 7.00G (0.00B unexplained)"

"$memledger" run --virtual-gpu=h200:7GiB,context=0B -- "$program" >out 2>err
check "without a folder, a line on standard error" has err "memledger: out of memory on cuda:0: asked for 1.00G by aten::zeros"
check "without a folder: how it ended" matches err '^memledger: .* ended by SIGABRT after [0-9.]+ s: uncaught exception: CUDA out of memory[.] Tried to allocate 1024.00 MiB'
check "without a folder: who held it" has err "       7.00G       7 x  aten::zeros"
check "without a folder: the device's peak" matches err '^cuda:0 .* peak allocated 7\.00G, reserved 7\.00G of 7\.00G'
# A failure that is caught: the same line, and a page with the report.
"$memledger" run --virtual-gpu=h200:7GiB,context=0B -- "$program" 100 catch >out 2>err
check "caught: status" equal $? 1
check "caught: a line" equal "$(grep -c 'memledger: out of memory on cuda:0' err)" 1
check "caught: at the end who held it" has err "       7.00G       7 x  aten::zeros"
check "caught: the device's peak" matches err '^cuda:0 .* peak allocated 7\.00G, reserved 7\.00G of 7\.00G'
check "caught: one screen, beside LibTorch's frames" test "$(grep -vc '^frame #' err)" -le 25
"$memledger" run --quiet --virtual-gpu=h200:7GiB,context=0B -- "$program" >out 2>err
check "quiet" equal "$(grep -c 'Who holds it' err)" 0

"$memledger" run --quiet --virtual-gpu=h200:7GiB,context=0B --log=quiet-logs -- "$program" >out 2>err
check "quiet with a folder" equal "$(grep -c 'who holds it' err)" 0
check "quiet with a folder: the report in it" equal "$(echo quiet-logs/oom-*.txt | wc -w)" 1
check "quiet with a folder: who held it" has "$(echo quiet-logs/oom-*.txt)" "       7.00G       7 x  aten::zeros"

# A program that fits: the report at its end, while CUDA's allocator is still there.
"$memledger" run --virtual-gpu=h200:7GiB,context=0B -- "$program" 3 >out 2>err
check "a program that fits: status" equal $? 5
check "its report" has err "not freed at the end: 3.00G: 3.00G aten::zeros [forward]"
"$memledger" run --report=full --virtual-gpu=h200:7GiB,context=0B -- "$program" 3 >out 2>err
check "its tables" has err "The allocated memory on cuda:0: 3.00G"
check "nothing unexplained at its end" has err "Explained: 3.00G of 3.00G (0.00B unexplained)"
check "what it asked for" has err "Requested: 3.00G (0.00B unexplained)"

# With settings that LibTorch cannot read, its allocator stays half made, yet says it is
# initialized.
PYTORCH_CUDA_ALLOC_CONF=nonsense:1 "$memledger" run --virtual-gpu=h200:7GiB,context=0B -- "$program" 1 catch >out 2>err
check "a program that fails early: status" equal $? 1
check "LibTorch's reason" has err "nonsense"

if ((failures)); then
  echo "--- standard error of the last run"
  cat err
fi
finish
