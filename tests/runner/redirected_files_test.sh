#!/usr/bin/env bash
# Ordinary programs whose writes are redirected, while the kernel holds them by Landlock: they print
# what they print bare, see the files that they would have written, and no real file changes. As
# root and as another user.
#
# Usage: redirected_files_test.sh LIBMEMLEDGER_MEASURE REDIRECTED_PROGRAM CPP_FILES_PROGRAM
#   RAW_WRITES_PROGRAM RANDOM_FILES_PROGRAM
#
# With MEMLEDGER_FULL=1: a hundred times as many random calls.
source tests/support/shell_test.sh

work="$(mktemp -d /tmp/memledger-redirect-XXXXXX)"
readonly work
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
ln -s . "$work/link"
for file in "$@"; do cp "$file" "$work/"; done
chmod -R a+rX "$work"
readonly measure="$work/${1##*/}" redirected="$work/${2##*/}" cpp="$work/${3##*/}" \
  raw="$work/${4##*/}"

# The interpreter itself: `python3` may be a script that finds it.
python=/usr/bin/python3
[[ -x "$python" ]] || python="$(python3 -c 'import sys; print(sys.executable)')"
readonly python

# Each file's content, times, mode, owner.
state_of() {  # FOLDER
  "$python" - "$1" <<'PYTHON'
import hashlib, os, sys
for folder, folders, files in sorted(os.walk(sys.argv[1])):
    for path in sorted([folder] + [os.path.join(folder, name) for name in files]):
        s = os.lstat(path)
        content = open(path, 'rb').read() if os.path.isfile(path) else b''
        print(path, hashlib.sha256(content).hexdigest(), s.st_mode, s.st_uid, s.st_gid, s.st_nlink,
              s.st_ino, s.st_mtime_ns, s.st_ctime_ns)
PYTHON
}

# What programs find: made as root or as the other user.
make_files() {  # FOLDER
  mkdir -p "$1/d/sub" "$1/empty"
  cd "$1" || return
  echo "old text" >a.txt
  head -c 300000 /dev/zero | tr '\0' 'w' >data.bin
  echo "line 1" >log.txt
  for i in 1 2 3; do echo "$i" >"d/$i"; done
  echo deep >d/sub/file
  ln -s a.txt link
  ln -s d dlink
  ln -s missing dangling
  printf '#!/bin/sh\necho "script says $1"\n' >script.sh
  chmod 755 script.sh
  echo "kept" >readonly
  chmod 444 readonly
  chmod 750 d/sub
  touch -d '2020-02-02 02:02:02.5' a.txt data.bin d
  "$python" - <<'PYTHON'
import sqlite3
db = sqlite3.connect('db.sqlite')
db.execute('create table t (x)')
db.executemany('insert into t values (?)', [(i,) for i in range(100)])
db.commit()
PYTHON
}

# At its end each program sees all files.
readonly look='
find . -type d -printf "d %m %p\n" -o -type l -printf "l %l %p\n" -o -printf "f %m %s %n %p\n" | sort
find . -type f -print0 | sort -z | xargs -0 sha256sum'

readonly seeds=$((${MEMLEDGER_FULL:-0} == 1 ? 200 : 2))

# Signal handlers and children of vfork call these, where nothing may be looked up.
LD_DEBUG=bindings,files LD_DEBUG_OUTPUT="$work/trace" LD_PRELOAD="$measure" "$python" -c 'import os
os.mkdir("'"$work"'/looked_up", 0o700)
os.chmod("'"$work"'/looked_up", 0o755)
os.listdir("'"$work"'/looked_up")
os.rmdir("'"$work"'/looked_up")'
bindings() {  # OF_LINES
  sed -n "$1" "$work"/trace.* |
    grep -E "binding file .*libmemledger_measure.so .* to .*/libc[.].* .(mkdir|chmod|opendir|rmdir)'"
}
check "real functions: looked up at the start" equal "$(bindings '1,/transferring control/p' | wc -l)" 4
check "real functions: none is looked up later" equal "$(bindings '/transferring control/,$p')" ""

as=()  # who runs it
user=""
run_bare() {  # FOLDER PROGRAM
  (cd "$1" && "${as[@]}" env CPP="$cpp" python="$python" bash -c "$2")
}
run_redirected() {  # FOLDER PROGRAM
  rm -rf "$private"
  (cd "$1" && "${as[@]}" "$redirected" "$private" /usr/bin/env LD_PRELOAD="$measure" CPP="$cpp" \
    python="$python" bash -c "$2")
}
refusals() { sed -n 's/^refused //p' "$private/writes"; }

# Runs one program bare in a copy, and redirected in the real folder.
compare() {  # NAME PROGRAM
  local name="$user: $1" before
  rm -rf "$home/bare" "$home/real"
  "${as[@]}" env python="$python" bash -c "$(declare -f make_files); make_files '$home/real'"
  "${as[@]}" cp -a "$home/real" "$home/bare"
  before="$(state_of "$home/real")"
  run_bare "$home/bare" "$2$look" >"$home/bare.out" 2>&1
  run_redirected "$home/real" "$2$look" >"$home/redirected.out" 2>&1
  same "$name: what it prints" "$(sed "s,$home/real,HERE,g" "$home/redirected.out")" \
    "$(sed "s,$home/bare,HERE,g" "$home/bare.out")"
  same "$name: what it was refused" "$(refusals)" ""
  same "$name: real files" "$(state_of "$home/real")" "$before"
}

all_programs() {
  compare "redirections of bash" '
    echo new >a.txt; cat a.txt; echo more >>log.txt; cat log.txt; : >data.bin
    echo "through a link" >link; cat a.txt; echo made >dangling; cat missing
    cat <<<"here" >d/sub/file; (cd d && echo x >../empty/x); set -C; echo no >a.txt; echo $?
    echo one 1>both 2>&1; exec 5>>log.txt; echo fifth >&5; exec 5>&-; tail -1 log.txt
    [[ -w a.txt && -e both && ! -e nothing && -s both ]] && echo "tests hold"'
  compare "cp, mv, rm, mkdir" '
    mkdir -p x/y/z d/sub; cp a.txt x/; cp -p data.bin x/y/; cp -a d x/d; cp -r d/. empty/
    stat -c "%y %a" x/y/data.bin x/d; mv x/a.txt x/b.txt; mv data.bin renamed; mv d moved
    ls moved moved/sub; mv moved/sub empty/; rm a.txt; rm -r x/d; rmdir empty/sub 2>/dev/null; echo $?
    rm -rf moved; mkdir moved; ls moved; touch moved/1; ls -l moved | wc -l; mv -T x moved 2>&1; echo $?
    cp readonly copy; stat -c %a copy; rm -f readonly; ln copy hard; stat -c %h hard; ln -sf hard link
    readlink link; install -m 700 log.txt installed; touch -d 2001-01-01 copy; stat -c %y hard'
  compare "removing and making again" '
    rm -r d; mkdir d; ls -A d; echo 9 >d/9; ls d; rm -r d; [[ -e d ]] || echo gone; ls d dlink 2>&1
    mkdir -p d/sub/sub; find d; rm log.txt; echo again >log.txt; cat log.txt; rm log.txt; cat log.txt 2>&1
    mv a.txt b.txt; mv b.txt a.txt; cat a.txt; mv empty full; mkdir empty; rmdir full empty; ls -d full empty 2>&1'
  compare "tar, sed -i, sort -o, tee, dd, truncate" '
    tar cf all.tar a.txt d; mkdir u; tar xf all.tar -C u; find u | sort; stat -c "%y %a" u/d u/a.txt
    sed -i s/old/new/ a.txt; cat a.txt; sort -r -o log.txt d/1 d/2; cat log.txt; echo t | tee -a log.txt
    dd if=/dev/zero of=data.bin bs=1 count=5 seek=10 conv=notrunc 2>/dev/null; head -c 20 data.bin | od -c
    truncate -s 100 data.bin; truncate -s 7 fresh; gzip a.txt; gunzip a.txt.gz; chmod 600 a.txt
    chmod +x log.txt; stat -c %a a.txt log.txt; chmod 755 script.sh; diff -r d u/d && echo alike
    split -n 2 data.bin part.; cat part.*| cmp - data.bin && echo equal; mkfifo p; (echo f >p &); cat p; rm p'
  compare "rename into place, as git does" '
    umask 027; t=$(mktemp ./XXXXXX); echo blob >"$t"; chmod 444 "$t"; mv "$t" blob; cat blob; stat -c %a blob
    d=$(mktemp -d ./XXXXXX); echo y >"$d/y"; mv "$d" final; ls final; ln -s final current; ls current/
    echo z >current/z; ls final; ln -sfn d current; ls current; mkdir -m 711 m; stat -c %a m'
  command -v git >/dev/null && compare "git" '
    export HOME="$PWD" GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
    git init -q . && git config user.name a && git config user.email a@b && git config gc.auto 0
    git config index.version 2; git add a.txt d && git commit -qm one && echo 2 >>a.txt && git commit -qam two
    git log --oneline; git checkout -q HEAD~1; cat a.txt; git status --short | sort; git stash list; rm -rf .git'
  compare "programs that were just made" '
    printf "#!/bin/sh\necho made \$1\n" >tool; chmod +x tool; ./tool 1; ./script.sh 2; cp script.sh s2; ./s2 3
    printf "#!/bin/bash\ncat \"\${0%%/*}/a.txt\"; cd \"\${0%%/*}\"; ls" >where; chmod +x where; ./where
    mkdir bin; cp /bin/true bin/t; bin/t && echo ran; cd bin && ./t && pwd; cd ..; rm bin/t; bin/t 2>/dev/null; echo $?'
  compare "folders that are new" '
    mkdir -p n/m; cd n/m; pwd; echo f >f; ls; cd ..; pwd; ls; cat m/f ../a.txt; echo up >../up; cd m/..; pwd
    realpath m/f ../link; readlink -f m/../../dlink/1; cd ../dlink; pwd -P; ls; echo n >n; ls ../d'
  compare "Python" '"$python" - <<PYTHON
import glob, json, os, pathlib, pickle, shutil, sqlite3, tempfile
os.makedirs("out/a/b"); os.makedirs("out/a/b", exist_ok=True)
with open("out/m.tmp", "wb") as f: pickle.dump([1, 2], f)
os.replace("out/m.tmp", "data.bin"); print(pickle.load(open("data.bin", "rb")))
with open("log.txt", "a") as f: f.write("line 2\n")
print(open("log.txt").read())
with open("a.txt", "r+") as f: f.seek(4); f.write("TEXT")
print(open("link").read(), os.stat("link").st_size, os.lstat("link").st_size > 0)
shutil.copytree("d", "out/d"); shutil.copy2("a.txt", "out/"); print(os.stat("out/a.txt").st_mtime == os.stat("a.txt").st_mtime)
print(sorted(os.listdir("out")), sorted(e.name for e in os.scandir("out") if e.is_dir()))
shutil.rmtree("d"); print(os.path.exists("d"), os.path.islink("dlink"), os.path.exists("dlink"))
shutil.move("out/d", "d"); print(sorted(os.listdir("dlink")))
with tempfile.TemporaryDirectory(dir=".") as t:
    pathlib.Path(t, "x").write_text("y"); print(len(os.listdir(t)))
with tempfile.NamedTemporaryFile(dir=".") as t: t.write(b"1"); t.flush(); print(os.path.getsize(t.name))
with tempfile.TemporaryFile() as t: t.write(b"12"); t.seek(0); print(t.read())
p = pathlib.Path("out/p"); p.touch(); p.write_text("text"); p.chmod(0o640); print(oct(p.stat().st_mode))
p.rename("out/q"); print(p.exists(), sorted(str(x) for x in pathlib.Path(".").glob("out/*")), sorted(glob.glob("out/**", recursive=True)))
pathlib.Path("out/q").unlink(); p.symlink_to("q"); print(os.readlink("out/p"), p.exists(), p.resolve().name)
fd = os.open("d", os.O_RDONLY); os.mkdir("made", dir_fd=fd); print(sorted(os.listdir(fd))); os.rmdir("made", dir_fd=fd); os.close(fd)
os.chdir("out/a"); print(os.path.basename(os.getcwd())); open("here", "x").close(); os.chdir("../..")
try: open("out/a/here", "x")
except FileExistsError as e: print(e.strerror)
for wrong in [lambda: os.rmdir("out"), lambda: os.unlink("out"), lambda: os.mkdir("d"), lambda: open("none/x", "w"), lambda: open("a.txt/x", "w"), lambda: os.rename("none", "x"), lambda: os.rename("a.txt", "d"), lambda: os.rename("d", "a.txt"), lambda: os.rename("out", "out/a/o"), lambda: open("d", "w"), lambda: os.link("a.txt", "log.txt"), lambda: os.rmdir("a.txt")]:
    try: wrong(); print("went well")
    except OSError as e: print(e.strerror)
print(os.access("a.txt", os.W_OK), os.access("out/a/here", os.R_OK), os.access("none", os.F_OK))
os.truncate("log.txt", 3); os.utime("log.txt", (5, 6)); print(os.stat("log.txt").st_mtime, os.path.getsize("log.txt"))
db = sqlite3.connect("db.sqlite"); db.execute("insert into t values (7)"); db.commit()
print(db.execute("select count(*), sum(x) from t").fetchone()); db.execute("pragma journal_mode=wal"); db.execute("delete from t where x < 50"); db.commit(); db.close()
json.dump({"a": 1}, open("out/j", "w")); print(json.load(open("out/j")))
PYTHON
'
  compare "Python: processes and sockets" 'cat >prog.py <<PYTHON
import multiprocessing, os, socket, subprocess, sys
def work(name):
    open(name, "w").write(name)
    return os.path.exists("prog.py"), open("prog.py").read(6)
if __name__ == "__main__":
    for method in ["fork", "forkserver", "spawn"]:
        with multiprocessing.get_context(method).Pool(2) as pool: print(pool.map(work, [f"{method}{i}" for i in range(4)]))
    print(subprocess.run(["bash", "-c", "echo sub >sub.txt; cat spawn1"], capture_output=True).stdout)
    print(subprocess.check_output(["cat", "sub.txt"]))
    s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("sock")
    print(s.getsockname(), c.getpeername(), os.path.exists("sock")); c.send(b"1"); print(s.accept()[0].recv(1)); os.unlink("sock")
    try: socket.socket(socket.AF_UNIX).bind("a.txt")
    except OSError as e: print(e.strerror)
    from multiprocessing import shared_memory
    m = shared_memory.SharedMemory(create=True, size=100); m.buf[0] = 1; m.close(); m.unlink()
    q = multiprocessing.Queue(); q.put(1); print(q.get()); print(multiprocessing.Lock().acquire())
PYTHON
    "$python" prog.py; rm -rf __pycache__'
  compare "compiling" '
    printf "#include <stdio.h>\nint main(void){puts(\"compiled\");}" >p.c; printf "int f(void){return 7;}" >f.c
    gcc -o p p.c && ./p && gcc -c p.c && gcc -shared -fPIC -o libf.so f.c && ar rc p.a p.o && ar t p.a
    "$python" -c "import ctypes; print(ctypes.CDLL(\"./libf.so\").f())"
    printf "x: a.txt\n\tcp a.txt x\n" >Makefile; make -s && make -q && echo up to date; rm -f p p.o p.a libf.so'
  compare "children with environments of their own" '
    env -i bash -c "echo clean >clean; cat clean a.txt"; cat clean; LD_PRELOAD= bash -c "echo x >a.txt"; cat a.txt
    "$python" -c "import subprocess; subprocess.run([\"/bin/sh\", \"-c\", \"echo y >>a.txt\"], env={\"A\": \"1\"})
import os; os.posix_spawn(\"/bin/mkdir\", [\"mkdir\", \"spawned\"], {}); os.wait(); os.system(\"rm log.txt\")"; cat a.txt'
  compare "what is not ours" '
    [[ $EUID != 0 ]] || exit 0; echo x >/etc/x; echo x >>/etc/passwd; rm /etc/passwd; mkdir /usr/x; mv /etc/passwd .
    ln -s x /etc/x; rmdir /usr/lib; truncate -s 0 /etc/passwd; chmod 600 /etc/passwd; touch /etc/passwd'
  compare "C++" '"$CPP"'
}

# Calls at random; the same files lie in a folder of their own, as links lead out of theirs.
compare_random() {  # SEED
  rm -rf "$home/bare" "$home/real"
  "${as[@]}" env python="$python" bash -c "$(declare -f make_files); make_files '$home/real/w'"
  "${as[@]}" cp -a "$home/real" "$home/bare"
  local before
  before="$(state_of "$home/real")"
  run_bare "$home/bare/w" "$python '$work/random_files_program.py' $1 500" >"$home/bare.out" 2>&1
  run_redirected "$home/real/w" "$python '$work/random_files_program.py' $1 500" \
    >"$home/redirected.out" 2>&1
  check "$user: random calls of seed $1" cmp "$home/bare.out" "$home/redirected.out"
  check "$user: as many calls of seed $1" equal "$(grep -c '^[0-9]' "$home/bare.out")" 500
  same "$user: real files after seed $1" "$(state_of "$home/real")" "$before"
}

# What the kernel refuses, and what is reported of it.
refused_programs() {
  rm -rf "$home/real"
  "${as[@]}" env python="$python" bash -c "$(declare -f make_files); make_files '$home/real'; mkfifo fifo other.fifo; ln -s other.fifo link.fifo"
  "${as[@]}" "$raw" prepare "$home/real"
  local before
  before="$(state_of "$home/real")"
  run_redirected "$home/real" "'$raw' try '$home/real' '$private' $$ | grep -v ': [0-9]'" >"$home/out"
  same "$user: a static program changes something" "$(<"$home/out")" ""
  run_redirected "$home/real" "dd if=fifo iflag=nonblock count=1 status=none; chmod 700 d; echo x >new
    dd if=link.fifo iflag=nonblock count=1 status=none" >/dev/null
  same "$user: what is told" "$(refusals)" "open: FIFO $home/real/fifo
chmod: EPERM $home/real/d
open: FIFO $home/real/link.fifo"
  same "$user: real files" "$(state_of "$home/real")" "$before"
}

# A working folder to which no path leads is not redirected: what fails there is reported.
closed_folder() {
  mkdir -p "$work/closed/open" && chmod 777 "$work/closed/open" && chmod 700 "$work/closed"
  echo text >"$work/closed/open/there" && chmod 666 "$work/closed/open/there"
  run_redirected "$work/closed/open" 'cat there; echo x >there; rm there; mkdir new; mv there x' >"$home/out" 2>&1
  check "what fails in a closed folder" equal "$(grep -c 'Permission denied' "$home/out")" 4
  same "what is told of a closed folder" "$(refusals)" "open: EACCES $work/closed/open/there
unlink: EACCES $work/closed/open/there
mkdir: EACCES $work/closed/open/new
rename: EACCES $work/closed/open/there"
  same "a file in a closed folder" "$(cat "$work/closed/open/there")" text
}

limited_files() {
  rm -rf "$home/real"
  "${as[@]}" env python="$python" bash -c "$(declare -f make_files); make_files '$home/real'"
  MAX_FILE_BYTES=100000 run_redirected "$home/real" 'echo small >small; head -c 200000 /dev/zero >large; echo "it ends with $?"
    stat -c %s large; truncate -s 200000 small; echo x >>data.bin; cat small' >"$home/out" 2>&1
  check "$user: a large file" has "$home/out" "it ends with 1"
  check "$user: what of it was written" has "$home/out" 100000
  check "$user: after it" has "$home/out" small
  same "$user: what is told of large files" "$(refusals)" "write: EFBIG $home/real/large
ftruncate: EFBIG $home/real/small
open: EFBIG $home/real/data.bin"
}

would_be_files() {
  rm -rf "$home/real"
  "${as[@]}" env python="$python" bash -c "$(declare -f make_files); make_files '$home/real'"
  run_redirected "$home/real" 'echo for real >'"$private"'/allowed/file; echo 12345 >new; echo x >>a.txt; rm log.txt; rm -r d; mkdir d; echo y >d/1; mkdir e
    echo t >temporary; rm temporary; mv readonly moved'
  same "$user: what would be there" "$(sed "s,$home/real/,," "$private/writes")" \
    "a.txt 11
d/1 2
d/2 removed
d/3 removed
d/sub removed
log.txt removed
moved 5
new 6
readonly removed
4 written, 5 removed, 24 bytes"
  same "$user: an allowed folder" "$(cat "$private/allowed/file")" "for real"
}

test_as() {  # USER COMMAND-PREFIX…
  # Our own folders may be reached through links.
  user="$1" home="$work/$1" private="$work/link/$1/private"
  shift
  as=("$@")
  mkdir "$home" && chmod 777 "$home"
  all_programs
  for ((seed = 1; seed <= seeds; ++seed)); do compare_random "$seed"; done
  refused_programs
  limited_files
  would_be_files
}

if ((EUID == 0)); then
  test_as root env
  test_as nobody setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$work/nobody"
  closed_folder
else
  test_as user env
fi
finish
