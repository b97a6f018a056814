#!/usr/bin/env bash
# `memledger run` as a user types it: the program must not notice, and its memory must be reported.
source tests/support/shell_test.sh

memledger="$PWD/$1"
program="$PWD/$2"
cd "$TEST_TMPDIR" || exit 1

# Standard streams, exit status, and the report.
printf 'one\ntwo\n' | "$memledger" run -- "$program" exit 7 >out 2>err
check "exit status" equal $? 7
check "standard output" equal "$(cat out)" "$(printf 'echo one\necho two')"
check "standard error" has err "to standard error"
check "the report" matches err '^memledger: small_program ended \(7\) after [0-9.]+ s \(process [0-9]+, rank 0\); every row: memledger run --save-report=FILE'
check "the peak" has err "cpu  peak allocated 1.00M"
check "what is left" has err "not freed at the end: 1.00M: 1.00M aten::"
check "one screen" test "$(wc -l <err)" -le 10
check "no tables" has_not err "Storage on"
"$memledger" run --report=full -- "$program" exit 7 </dev/null >out 2>err
check "the tables: status" equal $? 7
check "the tables" has err "The allocated memory on cpu: 1.00M"
check "nothing unexplained" has err "Explained: 1.00M of 1.00M (0.00B unexplained)"
check "from the first allocation on" has_not err "before tracking"
"$memledger" run --report=short -- "$program" exit 7 </dev/null >out 2>err
check "another kind of report: status" equal $? 2
check "another kind of report: named" has err "--report=short: it is full"

# Names only: the figures are the same, and what is missing is said.
"$memledger" run --detail=names -- "$program" exit 7 </dev/null >out 2>err
check "names only: status" equal $? 7
check "names only: said" has err "detail=names: no shapes, layers or lines"
check "names only: the peak" has err "cpu  peak allocated 1.00M"
check "names only: who made it" has err "not freed at the end: 1.00M: 1.00M aten::"
MEMLEDGER_DETAIL=names "$memledger" run -- "$program" exit 0 </dev/null >out 2>err
check "by the environment" has err "detail=names"
"$memledger" run --detail=some -- "$program" exit 7 </dev/null >out 2>err
check "another detail: status" equal $? 2
check "another detail: named" has err "--detail=some: it is all or names"

# Signals end the program as ever (ends_test.sh has all ends).
"$memledger" run "$program" signal 15 </dev/null >out 2>err
check "a signal" equal $? 143
check "the report at a signal" has err "peak allocated 1.00M"

# --quiet, and a program's own arguments after its name.
"$memledger" run --quiet "$program" exit 0 </dev/null >out 2>err
check "quiet status" equal $? 0
check "quiet" equal "$(cat err)" "to standard error"

# A program's words are handed over untouched.
words=(p '[a,b]' -- top '')
"$memledger" run -- sh -c 'printf "<%s>" "$0" "$@"' "${words[@]}" >out 2>err
check "a program's words" equal "$(cat out)" "<p><[a,b]><--><top><>"
"$memledger" run -q sh -c 'printf "<%s>" "$0" "$@"' "${words[@]}" >out 2>err
check "a program's words without --" equal "$(cat out)" "<p><[a,b]><--><top><>"

# Children are watched; programs without LibTorch are left alone.
"$memledger" run -- sh -c "exec '$program' exit 3" </dev/null >out 2>err
check "a child's status" equal $? 3
check "a child's report" has err "cpu  peak allocated 1.00M"
check "one report only" equal "$(grep -c 'peak allocated' err)" 1
"$memledger" run -- sh -c 'echo hello' >out 2>err
check "a shell's output" equal "$(cat out)" hello
check "nothing about a shell" equal "$(cat err)" ""

# Files instead.
RANK=3 "$memledger" run --log=logs/%r-%p -- "$program" exit 0 </dev/null >out 2>err
check "quiet standard error" equal "$(cat err)" "to standard error"
check "a folder by rank and process" equal "$(echo logs/3-*/memledger-exit.txt | wc -w)" 1
check "the report in it" has "$(echo logs/3-*/memledger-exit.txt)" "cpu  peak allocated 1.00M"
"$memledger" run -q --log=quiet-logs -- "$program" exit 0 </dev/null >out 2>err
check "quiet with a folder: standard error" equal "$(cat err)" "to standard error"
check "quiet with a folder: the report in it" has quiet-logs/memledger-exit.txt "cpu  peak allocated 1.00M"
echo file >occupied
"$memledger" run --log=occupied/logs -- "$program" exit 0 </dev/null >out 2>err
check "a folder that cannot be: status" equal $? 2
check "a folder that cannot be: the reason" equal "$(cat err)" "memledger run: --log: cannot write occupied/logs: Not a directory"
check "a folder that cannot be: nothing ran" equal "$(cat out)" ""
MEMLEDGER_LOG=occupied/logs "$memledger" run -q -- "$program" exit 0 </dev/null >out 2>err
check "the caller's folder that cannot be: status" equal $? 2
check "the caller's folder that cannot be: named" has err "memledger run: MEMLEDGER_LOG: cannot write occupied/logs"
MEMLEDGER_LOG=occupied/logs "$memledger" run --log=other-logs -- "$program" exit 0 </dev/null >out 2>err
check "the option's folder counts" has other-logs/memledger-exit.txt "cpu  peak allocated 1.00M"
# Where the command does not see it.
with_variable="MEMLEDGER_LOG=occupied/logs exec '$program' exit 0"
"$memledger" run -- sh -c "$with_variable" </dev/null >out 2>err
check "a folder found out later: status" equal $? 0
check "a folder found out later: the reason" has err "MEMLEDGER_LOG=occupied/logs: cannot write to"
check "a folder found out later: the report all the same" has err "cpu  peak allocated 1.00M"
"$memledger" run -q --save-report=r.json -- sh -c "MEMLEDGER=1 $with_variable" </dev/null >out 2>err
check "quiet with such a folder: the reason" has err "MEMLEDGER_LOG=occupied/logs: cannot write to"
check "quiet with such a folder: no report" has_not err "peak allocated"
"$memledger" run -- sh -c "MEMLEDGER_STACKS=some MEMLEDGER_REPORT_NEAR=abc exec '$program' exit 0" </dev/null >out 2>err
check "wrong values found out later: status" equal $? 0
check "wrong values found out later: told" has err "memledger: MEMLEDGER_STACKS=some: it is off, sampled or all; the default is taken"
check "wrong values found out later: the number" has err "memledger: MEMLEDGER_REPORT_NEAR=abc: it is a number of percent"

# Formats by the name's ending, without regard to case.
for name in r.HTML r.htm; do
  "$memledger" run -q "--save-report=$name" -- "$program" exit 0 </dev/null >out 2>err
  check "$name" matches "$name" '^<!DOCTYPE html>'
done
"$memledger" run -q --save-report=r.Json --timeline=t.PKL -- "$program" exit 0 </dev/null >out 2>err
check "r.Json" python3 -c 'import json; json.load(open("r.Json"))'
check "t.PKL" python3 -c 'import pickle; pickle.load(open("t.PKL", "rb"))["segments"]'
"$memledger" run -q --save-report=plain -- "$program" exit 0 </dev/null >out 2>err
check "no ending" has plain "At the peaks"
"$memledger" run -f main --html=new/lines.HTM -- "$program" exit 0 </dev/null >out 2>err
check "a line profile's folder is made" matches new/lines.HTM '^<!DOCTYPE html>'
"$memledger" run --save-report=r.json.gz -- "$program" exit 0 </dev/null >out 2>err
check "no format: status" equal $? 2
check "no format: the known ones" has err ".json, .html, .htm, .csv or .txt"
check "no format: nothing ran" equal "$(cat out)" ""

# The environment alone does it where the library is there; 0 is off.
MEMLEDGER=0 "$memledger" run --quiet -- "$program" exit 0 </dev/null >out 2>err
check "MEMLEDGER=0" has_not err "peak allocated"

# A timeline, with and without reports; the program's own folder does not matter.
mkdir -p elsewhere
"$memledger" run --quiet --timeline=t-%r.json -- sh -c "cd elsewhere && exec '$program' exit 5" </dev/null >out 2>err
check "a timeline: status" equal $? 5
check "a timeline: no report" equal "$(cat err)" "to standard error"
check "a timeline: in the folder of the runner" test -s t-0.json
check "a timeline: the last total" equal "$(python3 - <<'END'
import json
events = json.load(open("t-0.json"))["traceEvents"]
print([e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "all"][-1])
END
)" 1048576
"$memledger" run --timeline=t.pickle -- "$program" exit 0 </dev/null >out 2>err
check "a timeline with a report" has err "cpu  peak allocated 1.00M"
check "a timeline for memory_viz" equal "$(python3 -c 'import pickle
print(sum(s["total_size"] for s in pickle.load(open("t.pickle", "rb"))["segments"]))')" 1048576
"$memledger" run --quiet --timeline=occupied/t.json -- "$program" exit 4 </dev/null >out 2>err
check "a timeline that cannot be: status" equal $? 2
check "a timeline that cannot be: the reason" equal "$(cat err)" "memledger run: --timeline: cannot write occupied/t.json: Not a directory"
"$memledger" run --quiet --timeline=gone/t.json -- sh -c "touch gone; exec '$program' exit 4" </dev/null >out 2>err
check "a timeline that can no longer be: status" equal $? 4
check "a timeline that can no longer be: the reason" has err "gone/t.json: Not a directory"

# What cannot be written never changes how a program ends: a full disk, no standard error, a broken
# pipe.
"$memledger" run -q --timeline=/dev/full -- "$program" exit 0 </dev/null >out 2>/dev/full
check "a full disk, and standard error on one: status" equal $? 0
"$memledger" run -q --timeline=/dev/full -- "$program" exit 0 </dev/null >out 2>err
check "a full disk is told once" equal "$(grep -c '/dev/full: No space left on device' err)" 1
"$memledger" run -- "$program" exit 6 </dev/null >out 2>/dev/full
check "a report to a full disk: status" equal $? 6
"$memledger" run -- "$program" exit 5 </dev/null >out 2>&-
check "standard error closed: status" equal $? 5
# Its own line is read, the report is not.
{ "$memledger" run -- "$program" exit 4 </dev/null 2>&1 >out; echo $? >status; } | head -n 1 >first_line
check "a report into a broken pipe: status" equal "$(cat status)" 4
"$memledger" help >/dev/full 2>err
check "help to a full disk: status" equal $? 1
check "help to a full disk: told" has err "cannot write to standard output: No space left on device"

# Names that we choose follow no link and replace nothing.
mkdir -p linked && echo precious >victim && ln -s ../victim linked/memledger-exit.txt
"$memledger" run --log=linked -- "$program" exit 0 </dev/null >out 2>err
check "a link in the way: untouched" equal "$(cat victim)" precious
check "a link in the way: the next name" has linked/memledger-exit-2.txt "cpu  peak allocated 1.00M"

# Processes of one run leave each other's files alone, the next run replaces what the user named.
"$memledger" run --log=both -- sh -c "'$program' exit 0; '$program' exit 0" </dev/null >out 2>err
check "two programs, two reports" equal "$(cat both/*.txt | grep -c 'cpu  peak allocated 1.00M')" 2
"$memledger" run -q --timeline=shared.json -- sh -c "'$program' exit 0; cd elsewhere; '$program' exit 0" </dev/null >out 2>err
check "two programs, two timelines" equal "$(ls shared.json shared.*.json | wc -l)" 2
check "two timelines: told" has err "another process of this run wrote $PWD/shared.json; the timeline of process"
"$memledger" run -q --timeline=inner.json -- sh -c "'$memledger' run -q --timeline=inner.json -- '$program' exit 0; '$program' exit 0" </dev/null >out 2>err
check "a run within a run: two timelines" equal "$(ls inner.json inner.*.json | wc -l)" 2
check "a run within a run: told" has err "another run has meanwhile written $PWD/inner.json; the timeline of process"
sleep 0.1
"$memledger" run -q --timeline=shared.json -- "$program" exit 0 </dev/null >out 2>err
check "the next run has the name again" equal "$(cat err) $(ls shared.*json | wc -l)" "to standard error 2"
"$memledger" run --log=relative -- sh -c "cd elsewhere; '$program' exit 0" </dev/null >out 2>err
check "folders are of the caller's folder" has relative/memledger-exit.txt "cpu  peak allocated 1.00M"
ln -sf ../victim elsewhere/link.json
"$memledger" run -q --timeline=elsewhere/link.json -- "$program" exit 0 </dev/null >out 2>err
check "the user's link is followed" has victim traceEvents
check "the user's link stays" test -L elsewhere/link.json
# Not /dev/stdout: a runner that renames would remove that link from the machine if the test is
# root.
"$memledger" run -q --timeline=/dev/fd/1 -- "$program" exit 0 </dev/null >out 2>err
check "standard output is written in place" has out traceEvents

# A process that makes no tensor, such as a launcher that is rank 0, too, must not overwrite what
# the ranks wrote.
"$memledger" run --log=launched --timeline=launched.json -- "$program" nothing 0 </dev/null >out 2>err
check "no tensor, no report" equal "$(ls launched)" ""
check "no tensor, no timeline" test ! -e launched.json
"$memledger" run -- "$program" nothing 0 </dev/null >out 2>err
check "no tensor: said in a line" equal "$(grep -c 'made no tensor: nothing to report' err)" 1

# Logs.
cat >log.txt <<'END'
GPU Memory Track | 30-Apr-21-20:25:29 | Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb

At main.cpp line 10: main                             Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb

+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter            | torch.float32 | features.5.weight …

At main.cpp line 12: main                             Total Tensor Used Memory:6.8    Mb Total Allocated Memory:6.8    Mb

END
"$memledger" log log.txt --svg=log.svg >out 2>err
check "log: status" equal $? 0
check "log: the biggest step" has out "Biggest step: +6.8 MiB, of 6.8 MiB born and 0.0 MiB gone, at main.cpp line 12: main"
check "log: a plot" has out "MiB, 2 blocks: # in tensors"
check "log: a drawing" has log.svg "main.cpp line 12: main: 6.8 MiB"
"$memledger" log --svg=- log.txt >out 2>err
check "log: a drawing alone" equal "$(head -c 5 out)" "<svg "
"$memledger" log log.txt log.txt >out 2>err
check "log: two" has out "Alive at the end: the same in both"
"$memledger" log no_such.txt >out 2>err
check "log: none: status" equal $? 1
check "log: none: named" has err "no_such.txt"
"$memledger" log occupied >out 2>err
check "log: something else" has err "occupied: this is no log"
"$memledger" log --svg=/dev/full log.txt >out 2>err
check "log: a full disk" equal $? 1
"$memledger" log >out 2>err
check "log: which: status" equal $? 2
check "log: which: said" has err "which log?"

# A plugin's own $ORIGIN, before LibTorch is there: the real dlopen has to see who asks.
mkdir -p plugins/further
echo 'int further(void) { return 5; }' | ${CC:-gcc} -shared -fPIC -x c - -o plugins/further/further.so
cat >plugin.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
int opens(void) {
  void* const library = dlopen("$ORIGIN/further/further.so", RTLD_NOW);
  if (library == NULL) puts(dlerror());
  return library == NULL ? 1 : ((int (*)(void))dlsym(library, "further"))();
}
END
cat >host.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  void* const plugin = dlopen("plugins/plugin.so", RTLD_NOW);
  if (plugin == NULL) puts(dlerror());
  return plugin == NULL ? 2 : ((int (*)(void))dlsym(plugin, "opens"))();
}
END
${CC:-gcc} -shared -fPIC plugin.c -o plugins/plugin.so -ldl && ${CC:-gcc} host.c -o host -ldl
"$memledger" run -- ./host >out 2>err
check "a plugin's \$ORIGIN: status" equal $? 5
check "a plugin's \$ORIGIN" equal "$(cat out err)" ""

# A report on demand disturbs nothing. Sends the signal until the program ends.
demanded() {  # WHAT SECONDS
  shown_on_failure=(out err)
  : >out
  "$memledger" run --report-on=SIGUSR2 -- "$program" "$1" 7 </dev/null >out 2>err &
  local process=$! i
  for ((i = 0; i < 300; i++)); do grep -qs ready out && break; sleep 0.1; done
  while kill -USR2 "$process" 2>/dev/null; do sleep "$2"; done
  wait "$process"
  check "$1: status" equal $? 7
  shown_on_failure=()
}
demanded waits 0.15
check "nothing that waits ends early" has out "early:"
check "nothing that waits ends early: none" matches out '^early:$'
check "reports on demand" test "$(grep -c ', on demand, after' err)" -ge 5
check "and one at the end" equal "$(grep -c 'ended (7) after' err)" 1
check "nothing was left out" has_not err "no report"
demanded handles 5
check "the program's own handler has it, on its own thread" equal "$(tail -n 1 out)" "handled 1, woken"
"$memledger" run --report-on=SIGUSR2 -- "$program" starts 0 </dev/null >out 2>err
"$program" starts 0 </dev/null >bare 2>err.bare
check "programs that it starts have the same mask" equal "$(cat out)" "$(cat bare)"

# Programs that we cannot go into run as they would without us, and so do those that others start.
shown_on_failure=(out err)
printf 'echo "script $1"\nexit 4\n' >script && chmod +x script
"$memledger" run -- ./script one >out 2>err
check "a script without #!: status" equal $? 4
check "a script without #!: runs, without a word" equal "$(cat out err)" "script one"
printf "exec '%s' exit 3\n" "$program" >script
"$memledger" run -- ./script </dev/null >out 2>err
check "what such a script starts: status" equal $? 3
check "what such a script starts: the report" has err "cpu  peak allocated 1.00M"

echo '#include <stdio.h>
int main(void) { puts("runs"); return 6; }' >runs.c
for sanitizer in address thread; do
  if ! ${CC:-gcc} -fsanitize=$sanitizer runs.c -o sanitized || [[ "$(./sanitized)" != runs ]]; then
    echo "SKIPPED: no program of -fsanitize=$sanitizer runs here"
    continue
  fi
  for command in ./sanitized "sh -c ./sanitized" "python3 -c import_subprocess;exit(subprocess.call('./sanitized'))"; do
    read -ra words <<<"$command"
    words=("${words[@]//import_/import }")
    "$memledger" run -- "${words[@]}" >out 2>err
    check "$sanitizer, $command: status" equal $? 6
    check "$sanitizer, $command: as without us" equal "$(cat out err)" runs
  done
done
libtorch="$(ldd "$program" | sed -n 's,.* => \(.*\)/libtorch_cpu[.]so .*,\1,p')"
if ${CC:-gcc} -fsanitize=thread runs.c -o raced -L"$libtorch" -Wl,-rpath,"$libtorch" \
  -Wl,--no-as-needed -ltorch_cpu -lc10 && [[ "$(./raced)" == runs ]]; then
  "$memledger" run -- ./raced >out 2>err
  check "LibTorch and the thread sanitizer: status" equal $? 6
  check "LibTorch and the thread sanitizer: not watched" equal "$(cat out err)" "runs
memledger: this program is not watched: it is of the thread sanitizer, which would report races that are none"
  "$memledger" run -q -- ./raced >out 2>err
  check "LibTorch and the thread sanitizer, quiet: status" equal $? 6
  check "LibTorch and the thread sanitizer, quiet" equal "$(cat out err)" runs
else
  echo "SKIPPED: no LibTorch program of -fsanitize=thread runs here"
fi
ASAN_OPTIONS=verify_asan_link_order=1 "$memledger" run -- sh -c 'echo $ASAN_OPTIONS' >out 2>err
check "the caller's choice for the sanitizer" equal "$(cat out)" verify_asan_link_order=1
ASAN_OPTIONS=detect_leaks=0 "$memledger" run -- sh -c 'echo $ASAN_OPTIONS' >out 2>err
check "the caller's options for the sanitizer" equal "$(cat out)" detect_leaks=0:verify_asan_link_order=0

# Another C library's linker, as the name shows: ours under that name.
cat >starts.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char** environ;
int main(int argc, char** argv) {
  const char *how = argv[1], *program = argv[2];
  char* words[] = {"p", "a", "b", NULL};
  pid_t child = 0;
  if (argc > 3) return 1;
  if (!strcmp(how, "execl")) execl(program, "p", "a", "b", (char*)NULL);
  if (!strcmp(how, "execle")) execle(program, "p", "a", "b", (char*)NULL, environ);
  if (!strcmp(how, "execlp")) execlp(program + 2, "p", "a", "b", (char*)NULL);
  if (!strcmp(how, "execv")) execv(program, words);
  if (!strcmp(how, "execve")) execve(program, words, environ);
  if (!strcmp(how, "execvp")) execvp(program + 2, words);
  if (!strcmp(how, "execvpe")) execvpe(program + 2, words, environ);
  if (!strcmp(how, "fexecve")) fexecve(open(program, O_RDONLY), words, environ);
  if (!strcmp(how, "vfork") && (child = vfork()) == 0) execv(program, words);
  if (!strcmp(how, "spawn") && posix_spawn(&child, program, NULL, NULL, words, environ) != 0) return 2;
  if (!strcmp(how, "spawnp") && posix_spawnp(&child, program + 2, NULL, NULL, words, environ) != 0) return 3;
  if (!strcmp(how, "system")) return system(program) != 0;
  if (child == 0) return 4;
  wait(NULL);
  return 0;
}
END
cat >foreign.c <<'END'
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  const char* const preloaded = getenv("LD_PRELOAD");
  printf("%d %s %s\n", argc, argv[argc - 1], preloaded == NULL ? "nothing" : preloaded);
  return 0;
}
END
linker="$(${CC:-gcc} -print-file-name=ld-linux-x86-64.so.2)"
if [[ -e "$linker" ]] || linker=/lib64/ld-linux-x86-64.so.2 && [[ -e "$linker" ]]; then
  ln -sf "$linker" ld-musl-x86_64.so.1
  ${CC:-gcc} foreign.c -o foreign "-Wl,--dynamic-linker=$PWD/ld-musl-x86_64.so.1" && ${CC:-gcc} foreign.c -o native && ${CC:-gcc} starts.c -o starts
  for how in execl execle execlp execv execve execvp execvpe fexecve vfork spawn spawnp; do
    PATH="$PWD:$PATH" "$memledger" run -- ./starts $how ./foreign >out 2>err
    check "another C library's program, by $how" equal "$(cat out err)" "3 b nothing"
    PATH="$PWD:$PATH" "$memledger" run -- ./starts $how ./native >out 2>err
    check "a program of this one, by $how" matches out '^3 b /.*libmemledger_preload.so$'
  done
  "$memledger" run -- ./starts system ./foreign >out 2>err
  check "another C library's program, by system" equal "$(cat out err)" "1 ./foreign nothing"
  printf '#!%s/foreign\n' "$PWD" >script
  "$memledger" run -- ./starts execv ./script >out 2>err
  check "a script of such a program" matches out "nothing$"
  LD_PRELOAD="$(ldd native | sed -n 's/.*libc.so.6 => \(.*\) (.*/\1/p')" "$memledger" run -- ./starts execv ./foreign >out 2>err
  check "what others preload stays" matches out '^3 b /.*libc.so.6$'
  "$memledger" run -- ./foreign >out 2>err
  check "such a program itself" equal "$(cat out)" "1 ./foreign nothing"
  check "such a program itself: told" equal "$(cat err)" "memledger run: ./foreign is not a program of glibc, but of another C library. It runs, but neither it nor what it starts is watched"
  "$memledger" run --virtual-gpu=h100 -- ./foreign >out 2>err
  check "such a program cannot have a virtual GPU: status" equal $? 126
  check "such a program cannot have a virtual GPU: told" has err "so it cannot have a virtual GPU"
fi
# Exits with 9, by one system call.
python3 - <<'END'
import os, struct
code = bytes.fromhex("b801000000bb09000000cd80")
entry = 0x08048000 + 52 + 32
header = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, entry, 52, 0, 0, 52, 32, 1, 0, 0, 0)
part = struct.pack("<IIIIIIII", 1, 0, 0x08048000, 0x08048000, 84 + len(code), 84 + len(code), 5, 4096)
open("small32", "wb").write(header + part + code)
os.chmod("small32", 0o755)
END
./small32
if [[ $? == 9 ]]; then
  "$memledger" run -- ./small32 >out 2>err
  check "a 32-bit program: status" equal $? 9
  check "a 32-bit program: told" equal "$(cat err)" "memledger run: ./small32 is not a program for x86-64. It runs, but neither it nor what it starts is watched"
else
  echo "SKIPPED: this machine runs no 32-bit programs"
fi
if ${CC:-gcc} -m32 runs.c -o runs32 2>/dev/null && [[ "$(./runs32)" == runs ]]; then
  for command in ./runs32 "sh -c" "bash -c"; do
    "$memledger" run -q -- ${command/% -c/ -c ./runs32} >out 2>err
    check "a 32-bit program by $command: status" equal $? 6
    check "a 32-bit program by $command: as without us" equal "$(cat out err)" runs
  done
else
  echo "SKIPPED: no 32-bit program can be linked here"
fi
shown_on_failure=()

# What cannot be run.
"$memledger" run -- ./no_such_program >out 2>err
check "no such program: status" equal $? 127
check "no such program: named" has err "cannot run ./no_such_program"
touch plain_file
"$memledger" run -- ./plain_file >out 2>err
check "no program: status" equal $? 126
check "no program: named" has err "cannot run ./plain_file"
"$memledger" run >out 2>err
check "nothing to run: status" equal $? 2
check "nothing to run: said" has err "memledger run: which program"
"$memledger" run --virtual-gpu= ./plain_file >out 2>err
check "no value: status" equal $? 2
check "no value: named" has err "memledger run: --virtual-gpu= needs a value"
"$memledger" run --virtual-gpus=h200 ./plain_file >out 2>err
check "no such option: status" equal $? 2
check "no such option: named" has err 'memledger run: there is no option `--virtual-gpus=h200`'
"$memledger" >out 2>err
check "no command: status" equal $? 2
check "no command: help" has err "memledger run"
"$memledger" walk >out 2>err
check "no such command: status" equal $? 2
check "no such command: named" has err '`walk`; the commands are run, dry-run, fit, validate, log, gpus and help'
"$memledger" help >out 2>err
check "help: status" equal $? 0
check "help" has out "memledger run"
for command in run log; do
  "$memledger" "$command" --help >out 2>err
  check "$command --help: status" equal $? 0
  check "$command --help" has out "Usage: memledger $command"
done
"$memledger" --version >out 2>err
check "versions: status" equal $? 0
check "versions" equal "$(cut -d' ' -f1 out | tr '\n' ' ')" "memledger LibTorch Build: "

if ((failures)); then
  echo "--- standard error of the last run"
  cat err
fi
finish
