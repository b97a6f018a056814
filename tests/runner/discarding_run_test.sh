#!/usr/bin/env bash
# discarding_run_test.sh MEMLEDGER PROGRAM WITHOUT_NAMESPACES TERMINAL_SCRIPT STATIC_PROGRAM
#
# `memledger run --writes=discard`: nothing that the program writes stays, memledger's reports do,
# and streams, terminal, signals and status are the program's own.
source tests/support/shell_test.sh
source tests/support/unchanged_files.sh
memledger="$PWD/$1" program="$PWD/$2" without_namespaces="$PWD/$3" terminal="$PWD/$4"
static_program="$(readlink -f "$5")"
cd "$TEST_TMPDIR" || exit 1
export TMPDIR="$TEST_TMPDIR/tmp"
mkdir -p "$TMPDIR" files && cd files || exit 1
shown_on_failure=(../out ../err)

run() {  # [OPTION]… -- PROGRAM…
  "${as[@]}" "$memledger" run --virtual-gpu=h100 --writes=discard "$@" >../out 2>../err
}
until_there() {  # FILE
  for ((i = 0; i < 300; i++)); do
    [[ -s "$1" ]] && return
    sleep 0.1
  done
  return 1
}

as_root=() without_rights=(setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin)
ways=()
if unshare --mount true 2>../err; then ways+=(root); else echo "SKIPPED: as root: $(cat ../err)"; fi
if "${without_rights[@]}" unshare --user --mount true 2>../err; then
  ways+=(without_rights)
else
  echo "SKIPPED: in a namespace of users: $(cat ../err)"
fi
if "$without_namespaces" "$memledger" run --virtual-gpu=h100 --writes=discard -- true 2>../err; then
  ways+=(landlock)
else
  echo "SKIPPED: Landlock: $(cat ../err)"
fi

for how in ${ways[@]+"${ways[@]}"}; do
  case "$how" in
    root) as=() ;;
    without_rights) as=("${without_rights[@]}") ;;
    landlock) as=("$without_namespaces") ;;
    *) continue ;;
  esac
  rm -rf -- ./* && mkdir checkpoints && echo real >model.pt && echo real >log.txt && echo real >checkpoints/old.pt

  unchanged "a program" run -- bash -c 'echo zeros >model.pt; echo more >>log.txt; rm -r checkpoints; mkdir out; echo new >out/new.pt
    [[ "$(cat model.pt log.txt out/new.pt | tr "\n" " ")" == "zeros real more new " ]] && exit 7'
  status=0
  run -- bash -c 'echo zeros >model.pt; echo new >new.pt; rm log.txt; exit 7' || status="$?"
  check "$how: status" equal "$status" 7
  check "$how: a line at the end" matches ../err "^memledger run: without --writes=discard the program would have written 2 files, [0-9.]+B: model.pt \(6.00B\), new.pt \(4.00B\); and removed a file: log.txt$"
  check "$how: one line" equal "$(wc -l <../err)" 1
  run -q -- bash -c 'echo zeros >model.pt'
  check "$how: quiet" equal "$(cat ../err)" ""
  run -- true
  check "$how: nothing to say" equal "$(cat ../err)" ""

  # Streams.
  echo input | run -- bash -c 'cat; echo error >&2'
  check "$how: standard input and output" equal "$(cat ../out)" input
  check "$how: standard error" equal "$(cat ../err)" error
  ("${as[@]}" "$memledger" run -q --virtual-gpu=h100 --writes=discard -- bash -c 'exec >&-; sleep 5' |
    (time -p cat) 2>../time)
  check "$how: a closed output is seen to end" matches ../time '^real [0-2]\.'
  "${as[@]}" "$memledger" run --virtual-gpu=h100 --writes=discard -- bash -c 'echo from 5 >&5; read -r line <&6; echo "$line"' 5>>log.txt 6<model.pt >../out 2>../err
  if [[ "$how" == landlock ]]; then
    check "$how: a descriptor that is written is refused" has ../err "descriptor 5 is open for writing on $PWD/log.txt"
  else
    check "$how: a descriptor that is read" equal "$(cat ../out)" real
  fi
  check "$how: a descriptor that is written" equal "$(cat log.txt)" real

  # Ends.
  python3 - "${as[@]}" "$memledger" >../out <<'END'
import subprocess, sys
for end in ("exit 200", "kill -KILL $$", "kill -SEGV $$", "kill -TERM $$", "kill -RTMIN+3 $$"):
    print(subprocess.run([*sys.argv[1:], "run", "-q", "--virtual-gpu=h100", "--writes=discard", "--", "bash", "-c", end]).returncode, end=" ")
END
  check "$how: ends are the program's" equal "$(cat ../out)" "200 -9 -11 -15 -37 "
  status=0
  run -- ./missing || status="$?"
  check "$how: no such program" equal "$status" 127
  check "$how: which is said" matches ../err '^memledger run: cannot run ./missing: No such file'

  # Signals reach the program, once each.
  cat >waits.sh <<'END'
for signal in INT TERM HUP USR1 QUIT RTMIN+1; do trap "echo $signal" "$signal"; done
trap 'echo done; exit 5' USR2
echo ready
while :; do sleep 0.05; done
END
  setsid env --default-signal "${as[@]}" "$memledger" run -q --virtual-gpu=h100 --writes=discard -- bash waits.sh >../out 2>../err &
  process=$!
  until_there ../out
  for signal in INT TERM HUP USR1 QUIT RTMIN+1; do kill -"$signal" "$process"; sleep 0.4; done
  for signal in TERM USR1; do kill -"$signal" -- "-$process"; sleep 0.4; done
  kill -TERM "$process"; sleep 0.4
  # On a busy machine the witness may run late.
  witness="$(pgrep -P "$process")"
  kill -STOP "$witness"; sleep 0.1; kill -HUP -- "-$process"; sleep 0.2; kill -CONT "$witness"; sleep 0.4
  kill -USR2 "$process"
  status=0
  wait "$process" || status="$?"
  check "$how: signals: status" equal "$status" 5
  check "$how: signals" equal "$(tr '\n' ' ' <../out)" "ready INT TERM HUP USR1 QUIT RTMIN+1 TERM USR1 TERM HUP done "

  # A terminal.
  check "$how: a terminal" python3 "$terminal" "${as[@]}" "$memledger" run -q --virtual-gpu=h100 --writes=discard -- python3

  # What outlives the program, and what is killed.
  unchanged "a process that outlives it" run -- bash -c 'setsid bash -c "sleep 1; echo late >model.pt" & exit 0'
  check "$how: it is ended" equal "$(pgrep -f 'late >model.pt')" ""
  killed() {
    "${as[@]}" "$memledger" run --virtual-gpu=h100 --writes=discard -- bash -c 'setsid env -i bash -c "echo begun >&2; sleep 20.25; echo late >model.pt" & echo zeros >model.pt; sleep 20.25' >../out 2>../err &
    local process=$!
    until_there ../err
    kill -KILL "$process"
    wait "$process" 2>/dev/null
  }
  unchanged "memledger is killed" killed
  sleep 0.3
  check "$how: all are ended" equal "$(pgrep -f 'sleep 20.25')" ""

  # Reports stay, wherever they are asked for.
  touch marker && sleep 0.1 && mkdir other
  run --save-report=report.json --timeline=other/time-%r.json --log=logs/a -- "$program" unknown 'echo zeros >report.csv'
  check "$how: a saved report" equal "$(python3 -c 'import json; print(json.load(open("report.json"))["schema"])')" memledger.run_report/1
  check "$how: a timeline" test -s other/time-0.json
  check "$how: a report in a folder" matches logs/a/memledger-exit.txt '^memledger: unreal_files_program'
  check "$how: nothing else" equal "$(find . -newer marker -type f -printf '%f\n' | sort | tr '\n' ' ')" "memledger-exit.txt report.json time-0.json "
  check "$how: they are not the program's" matches ../err 'the program would have written [0-9]+ files, .*: early.txt'
  check "$how: nor named" has_not ../err report.json
  MEMLEDGER_SAVE_REPORT=by_variable.html run -- "$program" unknown
  check "$how: asked for by a variable" test -s by_variable.html
  check "$how: a report on the screen" matches ../err '^memledger: unreal_files_program'
  run --save-report=several-%p.txt -- bash -c '"$0" unknown; "$0" unknown; true' "$program"
  check "$how: of several processes" equal "$(find . -name 'several-*.txt' | wc -l)" 2
  for ((i = 1; i < 200; i++)); do echo mine >"mine-$i.txt"; done
  run --save-report=mine-%p.txt -- "$program" known
  check "$how: what was there stays" equal "$(cat mine-{1..199}.txt | sort | uniq -c | xargs)" "199 mine"
  check "$how: beside it the report" equal "$(grep -l '^memledger: ' mine-*.txt | wc -l)" 1
  rm mine-*.txt
  run --save-report=one.txt -- bash -c '"$0" unknown; "$0" unknown; true' "$program"
  check "$how: of several processes, by one name" equal "$(find . -name 'one*.txt' | wc -l)" 2
  check "$how: whose names are the user's" matches ../err "another process of this run wrote $PWD/one.txt; the report of process [0-9]+, rank 0, is in $PWD/one\.[0-9]+\.txt"
  check "$how: no temporary folder is left" equal "$(find "$TMPDIR" -mindepth 1 | head -3)" ""
done

# What is not as outside is reported.
how=root as=()
if unshare --mount true 2>/dev/null; then
  run --writes-limit=4MiB -- bash -c 'head -c 8M /dev/zero >large'
  check "a full layer" matches ../err '^memledger run: a call on files was not answered as it is without --writes=discard: write: ENOSPC, .*/large$'
fi

# Dry runs where Landlock holds: programs that are not redirected, what is left when the command is
# killed, and one within another.
if [[ " ${ways[*]} " == *" landlock "* ]]; then
  "$without_namespaces" "$memledger" dry-run --gpu=h100 -- bash -c 'setsid env -i bash -c "sleep 20.75; :" & touch begun; sleep 20.75' >../out 2>../err &
  process=$!
  for ((i = 0; i < 300; i++)); do
    [[ -n "$(pgrep -f 'sleep 20.75; :')" ]] && break
    sleep 0.1
  done
  kill -KILL "$process"
  wait "$process" 2>/dev/null
  sleep 0.5
  check "a killed dry run's daemons" equal "$(pgrep -f 'sleep 20.75')" ""
  # The libraries cannot go into them, and the kernel refuses their writes: no figure rests on that.
  not_redirected() {  # COMMAND…
    unchanged "$1" "$without_namespaces" "$memledger" dry-run --gpu=h100,addresses=down --settings=none --json -- "$@" >../out 2>../err
    check "$1: what held" equal "$(python3 -c 'import json; print(json.load(open("../out"))["writes_held_by"])')" landlock
    check "$1: not known" has ../out '"verdict":"not known"'
    check "$1: its call" has ../out '{"call":"any write of a static program: EACCES","path":"'"$static_program"'"}'
  }
  echo real >model.pt
  not_redirected bash -c '"$0" model.pt; exec "$@"' "$static_program" "$program" known
  not_redirected bash -c 'env -i "$0" model.pt; exec "$@"' "$static_program" "$program" known
  not_redirected python3 -c 'import os, sys; os.posix_spawn(sys.argv[1], sys.argv[1:2] + ["model.pt"], {}); os.wait(); os.execv(sys.argv[2], sys.argv[2:])' "$static_program" "$program" known
  not_redirected python3 -c 'import os, sys
if os.fork() == 0: os.execve(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1:2] + ["model.pt"], {})
os.wait(); os.execv(sys.argv[2], sys.argv[2:])' "$static_program" "$program" known
  "$without_namespaces" "$memledger" dry-run --gpu=h100,addresses=down --settings=none --json -- bash -c 'ldconfig -p >/dev/null; exec "$@"' bash "$program" known >../out 2>../err
  check "a static program that only reads" has ../out '"refused_calls":[]'
  linker="$(echo /lib64/ld-linux-*.so.2)"
  if [[ -x "$linker" ]]; then
    "$without_namespaces" "$memledger" dry-run --gpu=h100,addresses=down --settings=none --json -- bash -c '"$0" "$@"; rm early.txt' "$linker" "$program" known >../out 2>../err
    check "a program that its linker starts" has ../out '"refused_calls":[]'
    check "a program that its linker starts: is redirected" has ../out '/model.bin"'
  fi
  status=0
  "$without_namespaces" "$memledger" dry-run --gpu=h100 --settings=none -- "$static_program" model.pt >../out 2>../err || status=$?
  check "a static program alone: status" equal "$status" 11
  check "a static program alone: its file" equal "$(cat model.pt)" real
  "$without_namespaces" "$memledger" run --virtual-gpu=h100 --writes=discard -- "$static_program" model.pt >../out 2>../err
  check "a static program that is discarded" has ../err "a call on files was not answered as it is without --writes=discard: any write of a static program: EACCES, $static_program"
  "$without_namespaces" "$memledger" dry-run --gpu=h100 -- "$memledger" dry-run --gpu=h100 -- "$program" known >../out 2>../err
  check "a dry run within another: why not" has ../err "this is within a run that is redirected, where no second one can be: --writes=allow"
fi

# Where nothing holds, nothing is run.
status=0
"$without_namespaces" --landlock "$memledger" run --virtual-gpu=h100 --writes=discard -- bash -c 'echo ran' >../out 2>../err || status="$?"
check "nothing holds: status" equal "$status" 126
check "nothing holds: why" matches ../err '^memledger run: nothing here keeps the program from writing: .*--writes=allow lets it write'
check "nothing holds: it is not run" equal "$(cat ../out)" ""

for wrong in '--writes=discard' '--virtual-gpu=h100 --writes=never' '--virtual-gpu=h100 --writes-limit=1GiB' '--virtual-gpu=h100 --writes=discard --writes-limit=much'; do
  status=0
  # shellcheck disable=SC2086
  "$memledger" run $wrong -- true >../out 2>../err || status="$?"
  check "wrong usage: $wrong" equal "$status" 2
done
finish
