#!/usr/bin/env bash
# unreal_files_test.sh MEMLEDGER PROGRAM
#
# The end of a run on a virtual GPU names the files that were written once a value was read that is
# not the real one.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1
mkdir files && cd files || exit 1
shown_on_failure=(../err)
line="written while the GPU's values were not real"

run() {  # ARGUMENT…: in a folder with what was there before
  rm -rf -- ./*
  echo real >old.bin
  echo real >untouched.txt
  sleep 0.1
  "$memledger" run "$@" >../out 2>../err </dev/null
}
names() { sed -nE "s/.*$line: (.*) \((it|they) may hold zeros.*/\1/p" ../err | tr -d ','; }
figure() { python3 -c "import json; j = json.load(open('../report.json'))['unreal_files']; print($1)"; }

run --virtual-gpu=h100 -- "$program" unknown
check "an unknown value: status" equal "$?" 0
check "an unknown value: how many" matches ../err "^3 files were $line: "
check "an unknown value: which" equal "$(names)" "log.txt model.bin part.bin"
check "an unknown value: once" equal "$(grep -c "$line" ../err)" 1

for end in _exit small_stack; do
  run --virtual-gpu=h100 -- "$program" "$end"
  check "$end: status" equal "$?" 0
  check "$end: which" equal "$(names)" "log.txt model.bin part.bin"
  check "$end: once" equal "$(grep -c "$line" ../err)" 1
done
run --virtual-gpu=h100 -- "$program" size
check "an assumed size" equal "$(names)" "log.txt model.bin part.bin"
run --virtual-gpu=h100 -- "$program" known
check "a known value" has_not ../err "$line"
run -- /bin/sh -c 'echo x >file'
check "no virtual GPU" has_not ../err "$line"

run -q --virtual-gpu=h100 --save-report=../report.json -- "$program" unknown
check "a saved report: standard error" equal "$(cat ../err)" ""
check "a saved report: how many" equal "$(figure "j['count'], j['is_complete']")" "3 True"
check "a saved report: paths" equal "$(figure "[p.rsplit('/', 1)[1] for p in j['paths']]")" "['log.txt', 'model.bin', 'part.bin']"
run -q --virtual-gpu=h100 --save-report=../report.json -- "$program" known
check "a saved report of known values" equal "$(figure "j")" None

# memledger's own files are not the program's.
run --virtual-gpu=h100 --log=logs --save-report=report.json --timeline=timeline.json --report-on=SIGUSR1 -- \
  "$program" unknown 'kill -USR1 $PPID; sleep 1; :'
check "memledger's own files" equal "$(sed -nE "s/.*$line: (.*) \(they.*/\1/p" logs/memledger-exit.txt)" "log.txt, model.bin, part.bin"

# Children, whether they load LibTorch or not.
run --virtual-gpu=h100 -- "$program" unknown 'cp model.bin copy.bin; env -u MEMLEDGER_RUN cp copy.bin again.bin'
check "children" equal "$(names)" "log.txt model.bin part.bin copy.bin again.bin"
run --virtual-gpu=h100 -- "$program" unknown "for i in 1 2 3 4 5 6 7 8 9; do echo \$i >\$i.txt; done"
check "many" matches ../err "^12 files were $line: .* and 7 more \(they may"

# A shell has no report; what came after the program's is reported when it ends.
for shell in dash bash; do
  run --virtual-gpu=h100 -- "$shell" -c '"$0" unknown; cp model.bin after.bin; cat early.txt >late.txt; true' "$program"
  check "$shell: both lines" equal "$(names | tr '\n' ' ')" "log.txt model.bin part.bin after.bin late.txt "
  check "$shell: whose" matches ../err "^memledger run: 2 files were $line: after.bin, late.txt \(they may hold"
done
run -q --virtual-gpu=h100 -- bash -c '"$0" unknown; cp model.bin after.bin; true' "$program"
check "quiet" equal "$(cat ../err)" ""

# The program's own descriptors are as without memledger, and the list takes no other file's place.
run -q --virtual-gpu=h100 -- bash -c 'exec 3<untouched.txt; "$0" unknown; ls /proc/self/fd' "$program"
check "low descriptors" equal "$(grep -c '^[3-9]$' ../out)" 2
run -q --virtual-gpu=h100 -- bash -c 'exec 900>>untouched.txt; "$0" unknown; cp model.bin copy.bin' "$program"
check "a descriptor that the program took: status" equal "$?" 0
check "a descriptor that the program took" equal "$(cat untouched.txt)" real

# A dry run of the same program holds its writes, and needs no list.
"$memledger" dry-run --gpu=h100 --settings=none -- "$program" unknown >../out 2>../err </dev/null
check "a dry run" has_not ../err "$line"
finish
