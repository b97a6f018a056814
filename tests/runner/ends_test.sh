#!/usr/bin/env bash
# ends_test.sh MEMLEDGER PROGRAM PROGRAM_LINKED_WITH_MEMLEDGER PLUGIN OTHER_PLUGIN ALLOCATOR
#
# However a program ends, it is reported, and its parent sees the end that it would have seen.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2" linked="$PWD/$3" plugins=("$PWD/$4" "$PWD/$5")
allocator="$PWD/$6"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)
ulimit -c 0

# Ends with the status of a shell: 128 + the signal's number.
run() { timeout --foreground -k 1 60 "$memledger" run "$@" </dev/null >out 2>err; }
reported() {  # HOW [BYTES [DETAILS]]
  matches err "^memledger: [^ ,]+,? ${1//[()]/.} after [0-9.]+ s${3:+: $3} [(]process [0-9]+, rank 0[)]" &&
    matches err "^  (not freed at the end|alive now): ${2:-3.00M}"
}
once() { equal "$(grep -c 'peak allocated' err)" 1; }

ended() {  # END STATUS HOW [DETAILS]
  run -- "$program" "$1"
  check "$1: status" equal $? "$2"
  check "$1: the report" reported "$3" "" "${4:-}"
  check "$1: once" once
}
ended return 0 "ended (0)"
ended exit 3 "ended (3)"
ended exception 134 "ended by SIGABRT" "uncaught exception: a user's mistake"
ended abort 134 "ended by SIGABRT"
ended null 139 "ended by SIGSEGV"
ended overflow 139 "ended by SIGSEGV"
ended _exit 4 "ended by _exit(4)"
ended _Exit 5 "ended by _exit(5)"
ended quick_exit 6 "ended by quick_exit()"
ended ignored 8 "ended (8)"
ended many 143 "ended by SIGTERM"
for signal in TRAP SYS VTALRM PROF IO PWR STKFLT RTMIN RTMIN+7 RTMAX-2 RTMAX; do
  number=$(kill -l "$signal" 2>/dev/null) || continue
  run -- "$program" raise "$number"
  check "SIG$signal: status" equal $? $((128 + number))
  check "SIG$signal: the report" reported "ended by SIG${signal/+/.}"
  check "SIG$signal: once" once
done

# Another program takes its place.
ended exec 0 "ended by exec" "/bin/echo"
check "exec: the other program" has out "another program"
ended exec_nothing 3 "ended (3)"
check "exec of nothing: not an end" has_not err exec
run -- "$program" exec_fails
check "exec that fails: status" equal $? 3
check "exec that fails: an attempt" has err "memledger: exec of /bin/echo has failed: the program goes on"
check "exec that fails: the end" reported "ended (3)"
ended exec_in_child 0 "ended (0)"
check "exec in a child of vfork: no end" has_not err exec

# The program's handler ends it while it works: inside malloc, or with the books' locks held.
for end in exit_in_handler exit_in_nested_handler quick_exit_in_handler _exit_in_handler; do
  for ((i = 0; i < ${MEMLEDGER_FULL:+9}0 + 10; i++)); do
    run -- "$program" "$end" "$i"
    check "$end, $i: status" equal $? 0
    check "$end, $i: once" once
  done
done

# The same with an allocator of its own, whose malloc() is no frame.
LD_PRELOAD="$allocator" run -- "$program" exit_in_slow_malloc
check "exit in another allocator: status" equal $? 0
check "exit in another allocator: the report" reported "ended (0)"

# Starts the program in the background and waits until it is ready.
start() {
  : >out
  "$memledger" run "$@" </dev/null >out 2>err &
  process=$!
  for ((i = 0; i < 600; i++)); do
    grep -qs ready out && return
    sleep 0.1
  done
  fail "$*: never ready"
}
# Returns the status, or 100 where it does not end within a minute.
status() {
  (sleep 60 && kill -KILL "$process") 2>/dev/null &
  local clock=$!
  wait "$process"
  local result=$?
  kill "$clock" 2>/dev/null
  return "$result"
}
killed() {  # END SIGNAL STATUS HOW [BYTES]
  start -- "$program" "$1"
  kill -"$2" "$process"
  status
  check "$1, SIG$2: status" equal $? "$3"
  check "$1, SIG$2: the report" reported "$4" "${5:-}"
  check "$1, SIG$2: once" once
}
killed wait TERM 143 "ended by SIGTERM"
killed wait HUP 129 "ended by SIGHUP"
killed wait USR1 138 "ended by SIGUSR1"
# A call lets the signal in that the thread blocks otherwise.
for call in 0 1 2; do
  start -- "$program" wait_with_mask $call
  kill -TERM "$process"
  status
  check "a call with a mask of its own, $call: status" equal $? 143
  check "a call with a mask of its own, $call: the report" reported "ended by SIGTERM"
  check "a call with a mask of its own, $call: does not return" equal "$(cat out)" ready
done
# Bash starts background processes with these ignored, which is a choice that we leave alone.
for signal in INT QUIT; do
  python3 - "$memledger" "$program" SIG$signal >out 2>err <<'PYTHON'
import signal, subprocess, sys
for number in signal.SIGINT, signal.SIGQUIT:
    signal.signal(number, signal.SIG_DFL)
program = subprocess.Popen([sys.argv[1], "run", "--", sys.argv[2], "wait"], stdout=subprocess.PIPE)
program.stdout.readline()
program.send_signal(getattr(signal, sys.argv[3]))
print(signal.Signals(-program.wait(60)).name)
PYTHON
  check "SIG$signal: status" equal "$(cat out)" "SIG$signal"
  check "SIG$signal: the report" reported "ended by SIG$signal"
done

# Wherever the signal finds the threads: inside malloc, or with the books' locks held.
for _ in 1 2 3 4 5 6 7 8; do killed work TERM 143 "ended by SIGTERM" 3.; done

# The program's own handlers.
killed handled TERM 7 "ended by _exit(7)"
check "its handler ran" has out "its own handler"
check "it saw no handler of ours" has_not out "there was"
killed passed_on TERM 143 "ended by SIGTERM"
check "its handler ran first" has out "its own handler"
killed restored TERM 143 "ended by SIGTERM"
check "it saw its own actions only" equal "$(cat out)" ready

# A program that links memledger, without the command.
linked_ended() {  # END STATUS HOW
  MEMLEDGER=1 timeout --foreground -k 1 60 "$linked" "$1" </dev/null >out 2>err
  check "linked, $1: status" equal $? "$2"
  check "linked, $1: the report" reported "$3"
  check "linked, $1: once" once
}
linked_ended return 0 "ended (0)"
linked_ended abort 134 "ended by SIGABRT"
linked_ended _exit 4 "ended by _exit(4)"
linked_ended sent 143 "ended by SIGTERM"
linked_ended restored_and_sent 143 "ended by SIGTERM"
check "linked: it saw its own actions only" equal "$(cat out)" ""
linked_ended ignored 8 "ended (8)"
timeout --foreground -k 1 60 "$linked" abort </dev/null >out 2>err
check "linked, not asked: status" equal $? 134
check "linked, not asked: silent" has_not err memledger

# While the copy writes, nobody of the program's notices it. With so many storages that takes
# half a second.
many=150000
python3 - "$memledger" "$program" "$many" >out 2>err <<'PYTHON'
import os, signal, subprocess, sys, time
memledger, program, many = sys.argv[1:]
def start(end, *options):
    err = open("copy.err", "w+")
    process = subprocess.Popen([memledger, "run", *options, "--", program, end, many],
                               stdout=subprocess.PIPE, stderr=err, start_new_session=True)
    out = b""
    while b"ready" not in out:
        out += os.read(process.stdout.fileno(), 4096)
    return process
def reports():
    return open("copy.err").read().count("peak allocated")
def wait_for_report():
    for _ in range(600):
        if reports() == 1:
            return
        time.sleep(0.1)
def end(process):
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=60)[0].decode().split("\n")
# As `timeout` does, or a second Ctrl-C.
process = start("counted")
process.send_signal(signal.SIGTERM)
time.sleep(0.1)
os.killpg(process.pid, signal.SIGTERM)
print("second signal:", process.wait(60), reports())
# The copy shares the program's descriptors.
process = start("counted", "--report-on=SIGUSR2")
process.send_signal(signal.SIGUSR2)
time.sleep(0.1)
os.killpg(process.pid, signal.SIGINT)
wait_for_report()
time.sleep(0.5)
print("handler:", end(process), reports())
process = start("watched_children", "--report-on=SIGUSR2")
process.send_signal(signal.SIGUSR2)
wait_for_report()
print("children:", end(process), reports())
PYTHON
same "a copy at work" "$(cat out)" "second signal: -15 1
handler: ['call 1', ''] 2
children: [''] 2"

run -- "$program" among_others "$many"
check "a fault: status" equal $? 139
check "a fault: the report" reported "ended by SIGSEGV" "[0-9]"
check "a fault: other threads are stopped" equal "$(sed '1,/now/d' out)" ""

# What other threads wait in does not end, however often they go on so that they leave locks.
for _ in 1 2 3 4 5; do
  run -- "$program" wait_in_calls
  check "calls beside a signal: status" equal $? 143
  check "calls beside a signal: none ends early" equal "$(cat out)" ""
  check "calls beside a signal: once" once
done
# The program may set the signal aside while it goes on for a moment: nothing waits for ever.
run -- "$program" ignore_while_reported
check "ignored while it is reported: status" equal $? 0
check "ignored while it is reported: the process goes on" equal "$(cat out)" "goes on"
check "ignored while it is reported: the end" reported "ended (0)"
# raise() does not return, however long another thread keeps what a copy needs.
run -- "$program" raise_beside_lock
check "raise(): status" equal $? 143
check "raise(): does not return" equal "$(cat out)" ""
run -- "$program" wait_for_all_signals "$many"
check "a thread that waits for all signals: status" equal $? 139
check "a thread that waits for all signals: sees none" equal "$(cat out)" ""

# Handlers that are called once: the second signal ends the program.
for end in raise_twice raise_twice_by_signal; do
  ended "$end" 143 "ended by SIGTERM"
  check "$end: its handler ran, and all was as it had set it" equal "$(cat out)" "once"
done
ended null_twice 139 "ended by SIGSEGV"
check "null_twice: its handler ran" equal "$(cat out)" "once"

# The one screen comes first; a file that takes too long is left out, and said.
run --save-report=slow.json -- "$program" many_storages 300000
check "a slow file: status" equal $? 143
check "a slow file: the report" reported "ended by SIGTERM" "[0-9]"
if [[ ! -e slow.json ]]; then
  check "a slow file: left out" matches err "^memledger: no /.*/slow.json at SIGTERM: it was not done eight seconds after a signal that ends the process$"
fi
check "a slow file: nothing half done" equal "$(echo slow*.part)" "slow*.part"

# A report at exit is cut short by a signal, and leaves nothing half done however the process ends.
python3 - "$memledger" "$program" 600000 >out 2>err <<'PYTHON'
import glob, os, signal, subprocess, sys, time
memledger, program, many = sys.argv[1:]
def start():
    process = subprocess.Popen([memledger, "run", "--save-report=late.json", "--", program, "exit_with_many", many],
                               stdout=subprocess.PIPE)
    while b"ready" not in os.read(process.stdout.fileno(), 4096):
        pass
    return process
process = start()
time.sleep(0.5)
process.send_signal(signal.SIGTERM)
sent = time.monotonic()
status = process.wait()
seconds = time.monotonic() - sent
print("signal:", "in time" if seconds < 11 else f"{seconds:.1f} s", status in (0, -15), glob.glob("late*.part"))
if os.path.exists("late.json"):
    os.remove("late.json")
process = start()
while not glob.glob("late*.part") and process.poll() is None:
    time.sleep(0.005)
process.kill()
print("killed:", process.wait())
time.sleep(1)
print(glob.glob("late*.part"))
PYTHON
same "a report at exit" "$(cat out)" "signal: in time True []
killed: -9
[]"

# Only what was asked for is missed.
run --quiet --timeline=uncopied.json -- "$program" uncopied
check "a process that cannot be copied: status" equal $? 143
check "a process that cannot be copied: a line for each file" matches err "^memledger: no /.*/uncopied.json at SIGTERM: the process cannot be copied$"
check "a process that cannot be copied: no more" equal "$(wc -l <err)" 1
ended uncopied_at_first 143 "ended by SIGTERM"
run -- "$program" uncopied
check "a process that cannot be copied: the report" equal "$(cat err)" "memledger: no report at SIGTERM: the process cannot be copied"

# The kernel drops what is sent to the first process of a container.
if unshare --pid --fork --mount-proc true 2>/dev/null; then
  # The program is process 1, as exec keeps the number.
  unshare --pid --fork --mount-proc bash -c '
    (until grep -q ready out; do sleep 0.1; done
     kill -TERM 1
     kill -SEGV 1
     kill -USR1 1
     sleep 0.5
     kill -ALRM 1) &
    exec "$0" run -- "$1" exit_at_alarm' "$memledger" "$program" </dev/null >out 2>err
  check "process 1, sent SIGTERM: status" equal $? 9
  check "process 1, sent SIGTERM: its real end" reported "ended (9)"
  check "process 1, sent SIGTERM: once" once
  for end in abort null exit; do
    unshare --pid --fork --mount-proc "$program" $end </dev/null >out 2>err
    bare=$?
    unshare --pid --fork --mount-proc "$memledger" run -- "$program" $end </dev/null >out 2>err
    check "process 1, $end: status" equal $? $bare
    check "process 1, $end: once" once
  done
else
  echo "SKIPPED: no namespace of processes can be made here"
fi

# A LibTorch inside a plugin, of which memledger knows nothing: each finds its own functions.
"$memledger" run -- python3 -c '
import ctypes, sys
print([ctypes.CDLL(path).which_allocator() for path in sys.argv[1:] * 2])' "${plugins[@]}" >out 2>err
check "other LibTorchs: status" equal $? 0
check "other LibTorchs: each its own" equal "$(cat out)" "[7, 8, 7, 8]"

# A child has nothing to report of its parent.
run -- "$program" child
check "a child: status" equal $? 9
check "a child: the parent's report only" once
check "a child: its end" equal "$(cat out)" "$(printf 'child 15\nchild 11')"

# On demand.
start --report-on=SIGUSR2 -- "$program" wait
for count in 1 2; do
  kill -USR2 "$process"
  for ((i = 0; i < 300; i++)); do
    [[ "$(grep -c 'peak allocated' err)" == "$count" ]] && break
    sleep 0.1
  done
done
check "on demand" reported "on demand,"
kill -TERM "$process"
status
check "on demand: status" equal $? 143
check "on demand: each time, and at the end" equal "$(grep -c 'peak allocated' err)" 3
# The program's own use of the signal that asks for reports is as it would be without them.
for end in masks handle_in_worker wait_for_user_signal; do
  timeout --foreground -k 1 60 "$program" $end </dev/null >out.bare 2>/dev/null
  run --report-on=SIGUSR2 -- "$program" $end
  check "$end, and reports on demand: status" equal $? 0
  same "$end, and reports on demand" "$(cat out)" "$(cat out.bare)"
done
# The program itself may ask, on a thread of its own.
run --report-on=SIGUSR2 -- "$program" ask_for_reports
check "a program that asks: status" equal $? 0
check "a program that asks: goes on" equal "$(cat out)" "$(printf 'raised\nsent to itself\nblocked\nunblocked')"
check "a program that asks: each time" equal "$(grep -c '^memledger: .* on demand,' err)" 4
# Its children may go to another namespace of processes, which a copy must not begin.
in_namespace() {  # NUMBER STATUS ON_DEMAND
  run --report-on=SIGUSR2 -- "$program" end_in_namespace "$1"
  local result=$?
  if ((result == 77)); then
    echo "SKIPPED: namespaces of processes, $1"
    return
  fi
  check "children elsewhere, $1: status" equal $result "$2"
  check "children elsewhere, $1: its first child" equal "$(cat out)" ""
  check "children elsewhere, $1: on demand" equal "$(grep -c '^memledger: .* on demand,' err)" "$3"
}
why="its copy would begin the namespace of processes that it has made for its children"
in_namespace 0 143 0
check "children elsewhere: why not" has err "memledger: no report on SIGUSR2: $why"
check "children elsewhere: the report" reported "ended by SIGTERM"
in_namespace 2 143 1
check "children elsewhere, one is there: the report" reported "ended by SIGTERM"
in_namespace 3 143 1
check "children and users elsewhere, one is there: the report" reported "ended by SIGTERM"
in_namespace 1 143 0
check "children and users elsewhere: why not" has err "memledger: no report on SIGUSR2: $why"
in_namespace 5 3 0
check "children and users elsewhere, exit: the report" reported "ended (3)"
# So is a call that works in a process of one thread only; there are reports after it.
if unshare --user true 2>/dev/null; then
  start --report-on=SIGUSR2 -- "$program" call_alone
  check "a call that needs one thread: works" has out unshared
  kill -USR2 "$process"
  for ((i = 0; i < 300; i++)); do grep -qs 'on demand' err && break; sleep 0.1; done
  check "a call that needs one thread: a report after it" reported "on demand,"
  kill -TERM "$process"
  status
fi
# A copy is no child: a process that has made none has something to say.
start --report-on=SIGUSR2 -- "$program" idle_wait
kill -USR2 "$process"
for ((i = 0; i < 300; i++)); do grep -qs 'on demand' err && break; sleep 0.1; done
sleep 0.5
kill -TERM "$process"
status
check "without a tensor, after a report on demand: a line" matches err "made no tensor: nothing to report$"
run --report-on=SIGKILL -- "$program" return
check "no such demand: status" equal $? 2
check "no such demand: named" has err "--report-on=SIGKILL: it is SIGUSR1 or SIGUSR2"

# Files are whole at every end.
run --quiet --save-report=report.json --timeline=timeline.json -- "$program" abort
check "files: status" equal $? 134
check "files: nothing else" matches_not err "peak allocated"
check "files: the report" python3 -c 'import json; r = json.load(open("report.json")); assert r["end"]["devices"]; assert r["ended"] == {"how": "signal", "status": None, "signal": "SIGABRT", "details": ""}, r["ended"]'
check "files: the timeline" python3 -c 'import json; json.load(open("timeline.json"))'

# Where two processes write to one path, the second's file bears its own number, not its copy's.
run --quiet --save-report=two.json -- sh -c '"$0" sent; "$0" sent; true' "$program"
check "two on one path: the number" python3 -c 'import glob, json
path, = glob.glob("two.*.json")
assert json.load(open(path))["process"] == int(path.split(".")[1]), path'

# Near the limit of a control group, where the kernel kills without a word.
limited() {  # COMMAND…
  local group
  for group in /sys/fs/cgroup/memory/memledger-$$ /sys/fs/cgroup/memledger-$$; do
    mkdir "$group" 2>/dev/null || continue
    local limit=memory.limit_in_bytes
    [[ -e "$group/memory.max" ]] && limit=memory.max
    if [[ -e "$group/$limit" ]] && echo 600M >"$group/$limit" 2>/dev/null; then
      timeout --foreground -k 1 60 bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@" </dev/null >out 2>err
      local result=$?
      rmdir "$group"
      return $result
    fi
    rmdir "$group"
  done
  return 77
}
limited "$memledger" run -- "$program" grow
result=$?
if ((result == 77)); then
  echo "SKIPPED: no control group can be made here"
else
  check "near the limit: status" equal $result 137
  check "near the limit: told" matches err "^memledger: .* is near the limit of its control group after [0-9.]* s: 5[0-9.]*M of 600.00M used, 32.00M asked for"
  check "near the limit: the report" has err "aten::empty"
  limited "$memledger" run --report-near=0 -- "$program" grow
  check "near the limit, off: status" equal $? 137
  check "near the limit, off: nothing" has_not err "near the limit"
fi
run --report-near=101 -- "$program" return
check "no such percentage: status" equal $? 2

# What has no tensor stays silent, and so does what only starts others.
run -- sh -c 'kill -TERM $$'
check "a shell: status" equal $? 143
check "a shell: silent" equal "$(cat err)" ""
run -- "$program" launcher
check "a launcher: status" equal $? 143
check "a launcher: silent but for what it starts" equal "$(grep -c "^memledger: " err)" 1
check "what it starts" reported "ended by SIGTERM"
run -- "$program" idle
check "without a tensor: status" equal $? 143
check "without a tensor: a line" matches err "^memledger: process .*, made no tensor: nothing to report$"
check "without a tensor: nothing else" equal "$(wc -l <err)" 1
finish
