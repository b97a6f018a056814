#!/usr/bin/env bash
# dry_run_files_test.sh MEMLEDGER PROGRAM STATIC_PROGRAM
#
# What programs do to files in a dry run stays in it, and what they cannot do as outside is
# reported.
source tests/support/shell_test.sh
source tests/support/unchanged_files.sh
memledger="$PWD/$1" program="$PWD/$2" static_program="$PWD/$3"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model TORCH_CUBLAS_WORKSPACE_CACHE=1
cd "$TEST_TMPDIR" || exit 1
export TMPDIR="$TEST_TMPDIR/tmp"
mkdir -p "$TMPDIR" files && cd files || exit 1
shown_on_failure=(../out ../err)

# EXPRESSION of j
figure() { python3 -c "import json; j = json.load(open('$TEST_TMPDIR/out')); print($1)"; }
dry_run() {  # STATUS ARGUMENT…: runs it, and holds it to the status
  local wanted="$1"
  shift
  "${as[@]}" "$memledger" dry-run --gpu=h100,addresses=down --settings=none --json "$@" >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err" </dev/null
  check "$how: dry-run $*: exit status" equal "$?" "$wanted"
}

make_files() {
  rm -rf -- ./* ./.[!.]* && mkdir -p checkpoints/old
  cat >spoil.sh <<'END'
cd "$(dirname "$0")" || exit 1
echo zeros >model.pt
echo more >>log.txt
printf 0000 | dd of=in_place.bin conv=notrunc bs=1 2>dd.log
truncate -s 1 cut.bin
rm removed.txt 2>rm.log
echo zeros >new.pt && mv -f new.pt replaced.pt
rm -r checkpoints/old
ln -sfn model.pt latest
chmod 600 log.txt; touch -d 2001-01-01 log.txt
echo mine >created.txt && rm created.txt
mkdir unpacked && echo mine >unpacked/old.txt && touch -d 2001-01-01 unpacked/old.txt && rm -r unpacked
exec "$@"
END
  for file in model.pt log.txt in_place.bin cut.bin removed.txt replaced.pt checkpoints/step.pt checkpoints/old/step.pt; do
    echo "real $file" >"$file"
  done
  ln -s checkpoints/step.pt latest
  ln model.pt model_again.pt
  chmod 640 model.pt
}

# Root, and root without the right to mount, which takes a namespace of users.
as_root=() without_rights=(setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin)
ways=(root without_rights)
if ! unshare --mount true 2>../err; then
  echo "SKIPPED: as root: $(cat ../err)"
  ways=(without_rights)
fi
if ! "${without_rights[@]}" unshare --user --mount true 2>../err; then
  echo "SKIPPED: in a namespace of users: $(cat ../err)"
  ways=("${ways[@]/without_rights/}")
fi

for how in ${ways[@]+"${ways[@]}"}; do
  [[ "$how" == root ]] && as=() || as=("${without_rights[@]}")
  make_files
  unchanged "a program that spoils them" dry_run 0 -- bash spoil.sh "$program" 2
  check "$how: what held" equal "$(figure "j['writes_held_by']")" namespace
  check "$how: what it wrote" equal "$(figure "[f.rsplit('/', 1)[1] for f in j['written_files'] if 'files' in f]")" \
    "['cut.bin', 'dd.log', 'in_place.bin', 'latest', 'log.txt', 'model.pt', 'replaced.pt', 'rm.log']"
  check "$how: what it removed" equal "$(figure "[f.rsplit('/', 1)[1] for f in j['removed_files']]")" "['old', 'removed.txt']"
  check "$how: a line says so" matches ../err 'outside a dry run the program would have written 8 files, [0-9.]+[BKM]: cut.bin \(1.00B\), '

  # All ways to write, by all kinds of processes.
  unchanged "a child with an environment of its own" dry_run 12 -- env -i /bin/bash -c 'echo zeros >model.pt; echo zeros >born'
  unchanged "a static program" dry_run 12 -- "$static_program" model.pt born
  check "$how: what it wrote is known" equal "$(figure "[f.rsplit('/', 1)[1] for f in j['written_files']]")" "['born', 'model.pt']"
  unchanged "a descriptor" dry_run 12 -- bash -c 'cat <&6; echo more >&5; cat log.txt; exit 7' 5>>log.txt 6<log.txt
  check "$how: that it reads and writes" equal "$(sed -n '/last lines/,$p' ../err | sed -n '2,4p')" "$(printf 'real log.txt\nreal log.txt\nmore')"
  unchanged "a folder's descriptor" dry_run 12 -- bash -c 'echo zeros >/proc/self/fd/5/model.pt; echo zeros >/proc/self/fd/6' 5<. 6<log.txt
  unchanged "another root" dry_run 12 -- bash -c 'for p in /proc/[0-9]*/root; do echo zeros >"$p$PWD/model.pt"; done'
  unchanged "rights" dry_run 12 -- bash -c 'umount -l .. /; mount -t tmpfs none .; echo zeros >model.pt'
  unchanged "shared memory" dry_run 12 -- bash -c "echo zeros >/dev/shm/memledger_files_test.$$"
  check "$how: shared memory is as it was" test ! -e "/dev/shm/memledger_files_test.$$"
  ln log.txt log_again.txt
  exec 7<log_again.txt && rm log_again.txt
  unchanged "a removed file's descriptor" dry_run 126 -- bash -c 'echo zeros >/proc/self/fd/7'
  exec 7<&-
  unchanged "the process that made the mounts" dry_run 12 -- bash -c 'chmod 711 /proc/1/exe; touch /proc/1/exe /proc/1/map_files/*
    for f in /proc/1/fd/*; do (cd -P "$f/../.." && echo zeros >escaped); done; exit 7'
  check "$how: it cannot be looked into" test ! -e "$TMPDIR/escaped" -a ! -e escaped
  unchanged "a process that outlives it" dry_run 12 -- bash -c 'setsid bash -c "sleep 1; echo late >model.pt" & exit 0'

  # Each run finds what the first one found.
  unchanged "a folder of its own" dry_run 0 -- bash -c 'mkdir out || exit 9; echo x >out/a; exec "$@"' bash "$program" 2

  # All ways to end it.
  for signal in INT TERM QUIT USR1 PIPE ALRM KILL; do
    ended() {
      "${as[@]}" env --default-signal=INT,QUIT "$memledger" dry-run --gpu=h100 -- bash spoil.sh sleep 60 >../out 2>../err </dev/null &
      local process=$!
      sleep "0.$((RANDOM % 6))"
      kill -"$signal" "$process"
      wait "$process" 2>/dev/null
    }
    unchanged "ended by SIG$signal" ended
  done
  check "$how: no process is left" equal "$(pgrep -f "$PWD/spoil.sh|spoil.sh sleep 60")" ""

  # What is not as outside is reported.
  dry_run 11 --writes-limit=4MiB -- bash -c 'head -c 8M /dev/zero >large; exec "$@"' bash "$program" 2
  check "$how: a full layer" equal "$(figure "[c['call'] for c in j['refused_calls']]")" "['write: ENOSPC']"
  check "$how: with its path" equal "$(figure "j['refused_calls'][0]['path']")" "$PWD/large"
  check "$how: in the sentence" matches ../out 'not known: a call on files was not answered as it is outside a dry run: write: ENOSPC, [^ ]*/large'
  if [[ "$how" == root ]]; then
    unchanged "a renamed folder" dry_run 0 -- bash -c 'mv checkpoints moved && exec "$@"' bash "$program" 2
  else
    unchanged "a renamed folder" dry_run 11 -- bash -c 'mv checkpoints moved && exec "$@"' bash "$program" 2
    check "$how: which is told" equal "$(figure "j['refused_calls']")" "[{'call': 'rename: EXDEV', 'path': '$PWD/checkpoints'}]"
    # One of another user's, whom this namespace does not know.
    mkdir foreign && echo real >foreign/file && chown -R 12345:12345 foreign && chmod -R a+rwX foreign
    unchanged "another user's file" dry_run 11 -- bash -c 'echo zeros >>foreign/file; exec "$@"' bash "$program" 2
    check "$how: which is told, too" equal "$(figure "[c['call'] for c in j['refused_calls']]")" "['open: EOVERFLOW']"
    chmod 600 foreign/file
    dry_run 11 -- bash -c 'cat foreign/file; chmod 600 foreign/file; chown 12345 log.txt; exec "$@"' bash "$program" 2
    check "$how: whom root is not let to" equal "$(figure "sorted({c['call'] for c in j['refused_calls']})")" "['chmod: EPERM', 'chown: EINVAL', 'open: EACCES']"
  fi

  dry_run 11 --writes-limit=4MiB -- python3 -c 'import mmap
with open("large", "wb+") as file:
    file.truncate(8 << 20)
    mmap.mmap(file.fileno(), 8 << 20).write(bytes(8 << 20))'
  check "$how: a full layer behind a mapping" equal "$(figure "[c['call'] for c in j['refused_calls']]")" "['write: ENOSPC']"

  # What is copied within the kernel is copied.
  dry_run 12 -- python3 -c 'import os
a, b = os.open("model.pt", os.O_RDONLY), os.open("copied.pt", os.O_RDWR | os.O_CREAT)
counts = os.copy_file_range(a, b, 1 << 20), os.copy_file_range(a, b, 4, 5, 14), os.copy_file_range(a, b, 99)
print(counts, os.pread(b, 99, 0), os.lseek(a, 0, 1), os.lseek(b, 0, 1))
raise SystemExit(7)'
  check "$how: copy_file_range" has ../err "(14, 4, 0) b'real model.pt\nmode' 14 14"

  # What fails outside, too, is not.
  mkdir "/dev/shm/memledger_files_test.$$" && ln -s "/dev/shm/memledger_files_test.$$" other_file_system
  unchanged "from one file system to another" dry_run 0 -- bash -c 'echo x >new && mv new other_file_system/ && mv other_file_system/new . && exec "$@"' bash "$program" 2
  unchanged "a link from one file system to another" dry_run 0 -- bash -c 'ln model.pt other_file_system/model.pt; exec "$@"' bash "$program" 2
  rm other_file_system

  # Shared memory, with what is in it.
  (
    cd "/dev/shm/memledger_files_test.$$" && echo staged >data
    dry_run 12 -- bash -c 'cat data; echo zeros >data; exit 7'
    check "$how: what was staged in shared memory" has "$TEST_TMPDIR/err" staged
    check "$how: it is as it was" equal "$(cat data)" staged
    exit "$failures"
  )
  failures=$?
  rm -r "/dev/shm/memledger_files_test.$$"

  # Temporary folders that are none.
  for folder in relative /nowhere "$PWD/model.pt" ""; do
    TMPDIR="$folder" dry_run 12 -- bash -c 'exit 7'
    check "$how: TMPDIR=$folder: what held" equal "$(figure "j['writes_held_by']")" namespace
  done
  ln -s "$TMPDIR" linked_tmp
  TMPDIR="$PWD/linked_tmp" dry_run 12 -- bash -c 'exit 7'
  check "$how: a link to a temporary folder: what held" equal "$(figure "j['writes_held_by']")" namespace
  rm linked_tmp

  # The host's sockets and FIFOs stay its own.
  mkfifo fifo
  python3 -c '
import socket, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket")
listener.listen()
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"from outside\n")
    connection.close()
' >../server &
  server=$!
  (while true; do cat fifo; done >../from_fifo) &
  reader=$!
  until grep -qs listens ../server; do sleep 0.05; done
  mode="$(stat -c '%a %Y' fifo)"
  dry_run 12 -- bash -c 'chmod 600 fifo; touch -d 2001-01-01 fifo; exit 7'
  check "$how: a FIFO's mode and time" equal "$(stat -c '%a %Y' fifo)" "$mode"
  dry_run 12 -- bash -c 'python3 -c "import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"socket\"); print(s.recv(99).decode())"; echo to outside >fifo; exit 7'
  check "$how: a socket" has ../err "from outside"
  kill "$reader" "$server" 2>/dev/null
  wait "$reader" "$server" 2>/dev/null
  check "$how: a FIFO" has ../from_fifo "to outside"
  check "$how: neither is refused" equal "$(figure "j['refused_calls']")" "[]"
  rm -f socket fifo
done

# While another job goes on: what it does is there afterwards.
how=root as=()
make_files
job() {
  for ((i = 0; i < 2000; i++)); do
    echo "checkpoint $i" >job.tmp && mv job.tmp job.pt
    echo "line $i" >>job.log
  done
}
job &
worker=$!
dry_run 0 -- bash spoil.sh bash -c 'echo zeros >job.pt; echo zeros >>job.log; exec "$@"' bash "$program" 2 &
first=$!
("$memledger" dry-run --gpu=h100,addresses=down --settings=none -- bash spoil.sh bash -c 'rm -f job.pt; exec "$@"' bash "$program" 2 >/dev/null 2>&1)
wait "$first" "$worker"
check "a job's last checkpoint" equal "$(cat job.pt)" "checkpoint 1999"
check "a job's log" cmp job.log <(for ((i = 0; i < 2000; i++)); do echo "line $i"; done)

# A closed descriptor's file cannot be held: it is refused by number and path.
exec 5>gone.txt
rm gone.txt
"$memledger" dry-run --gpu=h100 -- /bin/true >../out 2>../err </dev/null
check "a removed file's descriptor: status" equal "$?" 126
exec 5>&-
check "a removed file's descriptor: why" has ../err "descriptor 5 is open for writing on $PWD/gone.txt (deleted)"

# Signals that are ignored stay so.
(trap '' HUP; "$memledger" dry-run --gpu=h100,addresses=down --settings=none -- "$program" 1 slow >../out 2>../err </dev/null) &
process=$!
sleep 1
pkill -HUP -P "$process" -f dry-run
wait "$process"
check "nohup" equal "$?" 0

# For real, where that is asked for.
how=allowed as=()
dry_run 0 --writes=allow -- bash -c 'echo zeros >model.pt; exec "$@"' bash "$program" 2
check "allowed: it is written" equal "$(cat model.pt)" zeros
check "allowed: nothing held" equal "$(figure "j['writes_held_by']")" nothing
check "allowed: a line warns" has ../err "warning: the program wrote a file, and values from the GPU are zeros in it: model.pt (6.00B)"
dry_run 2 --writes=never -- /bin/true
dry_run 2 --writes-limit=much -- /bin/true
finish
