#!/usr/bin/env python3
"""A storm of dry-runs beside a real job: afterwards its files are what it wrote, and nothing is left behind.

Two or three dry-runs at once, in the folder of a job that goes on appending to its log and renaming checkpoints into
place, are ended at random moments by random signals. Then no byte, mode or time of a file differs from what the job
wrote, and there is no new file in the folder, in /tmp, /var/tmp and /dev/shm, no process and no mount.

  dry_run_storm.py --memledger=FILE --program=FILE --without-namespaces=FILE [OPTION]…
    --runs=N        dry-runs in each mode (200)
    --mode=MODE     only that one, may be repeated:
                      root            as root (only if started by root)
                      user            as user 65534
                      no_namespaces   where the kernel refuses namespaces
                      no_landlock     where it refuses Landlock, too: the dry-run must be refused
    --seed=N        of moments and signals (1)
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NOBODY = 65534
HELD_BY = {"root": "namespace", "user": "namespace", "no_namespaces": "landlock", "no_landlock": None}
REFUSED = 126
ENDS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGPIPE", "SIGALRM", "SIGSEGV", "SIGABRT", "SIGKILL", "SIGKILL", ""]
FIXED = {"old.pt": b"old", "old_too.pt": b"old, too", "history.txt": b"history\n" * 100, "notes.txt": b"notes", "data/inner.bin": b"inner" * 1000}


# ------------------------------------------------------------------------------------------------
# The real job, in a process of its own
# ------------------------------------------------------------------------------------------------


def checkpoint(index):
    return random.Random(index).randbytes(65536)


def state(index):
    return random.Random(-index).randbytes(8192)


def line(index):
    return f"real {index} {index * index}\n"


def work_as_job(folder, lines, checkpoints):
    """Goes on from so many lines and checkpoints until SIGTERM; prints how many there are then."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    os.chdir(folder)
    print("begun", flush=True)
    while not ended:
        with open("train.log", "a") as log:
            log.write(line(lines))
        lines += 1
        if lines % 5 == 0:
            with open("ckpt.tmp", "wb") as file:
                file.write(checkpoint(checkpoints))
            os.replace("ckpt.tmp", "ckpt.pt")
            with open("state.bin", "r+b") as file:
                file.write(state(checkpoints))
            checkpoints += 1
        time.sleep(0.003)
    print(lines, checkpoints)


def difference(found, expected):
    at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
    return f"{len(found)} bytes for {len(expected)}, {found[at : at + 30]!r} for {expected[at : at + 30]!r} from byte {at} on"


class Job:
    """Its files, and what must be in them."""

    def __init__(self, folder, as_user):
        self.folder, self.as_user = folder, as_user
        self.lines, self.checkpoints = 0, 0
        for name, content in {**FIXED, "state.bin": state(0), "ckpt.pt": checkpoint(0), "train.log": b""}.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            if as_user:
                os.chown(path, NOBODY, NOBODY)
                os.chown(os.path.dirname(path), NOBODY, NOBODY)
        self.fixed = {name: self.look_at(name) for name in [*FIXED, "data", "."]}

    def look_at(self, name):
        found = os.lstat(os.path.join(self.folder, name))
        times = () if name == "." else (found.st_mtime_ns,)
        return (found.st_ino, found.st_mode, found.st_uid, found.st_gid, *times)

    def start(self):
        self.process = subprocess.Popen(
            [*(as_nobody() if self.as_user else []), sys.executable, os.path.abspath(__file__), "--job", self.folder, str(self.lines), str(self.checkpoints)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def stop(self):
        """Returns what kept the job from going on, or nothing."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=60)
        if self.process.returncode != 0:
            return f"the job failed: {err.strip().splitlines()[-1:]}"
        self.lines, self.checkpoints = map(int, out.split())
        return ""

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except OSError as error:
            return repr(error).encode()

    def faults(self):
        last = max(self.checkpoints - 1, 0)
        expected = dict(FIXED, **{"train.log": "".join(map(line, range(self.lines))).encode(), "ckpt.pt": checkpoint(last), "state.bin": state(last)})
        found = [f"{name} is not what the job wrote: {difference(self.read(name), content)}" for name, content in expected.items()
                 if self.read(name) != content]
        for name, before in self.fixed.items():
            try:
                now = self.look_at(name)
            except OSError as error:
                now = error
            if now != before:
                found.append(f"{name}: inode, mode, owner or time was {before}, is {now}")
        names = {os.path.relpath(os.path.join(at, name), self.folder) for at, folders, files in os.walk(self.folder) for name in folders + files}
        if strange := names - {*expected, "data"}:
            found.append(f"new in the folder: {sorted(strange)[:10]}")
        return found


# ------------------------------------------------------------------------------------------------
# What is left behind
# ------------------------------------------------------------------------------------------------

MARK = "MEMLEDGER_STORM"


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def processes_of(mark, sessions):
    """Whoever has the mark in its environment, or is in the session of a dry-run; zombies left out."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        is_of_it = mark in read(f"/proc/{name}/environ") or len(fields) > 3 and int(fields[3]) in sessions
        if is_of_it and fields and fields[0] not in b"ZX":
            found.append((int(name), read(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode()[-80:]))
    return found


def is_private(place):
    return any(fields[4].decode() == place for fields in map(bytes.split, read("/proc/self/mountinfo").splitlines()))


def traces():
    """Mounts, and what lies in folders that all share; only memledger's where others write there, too. The folders of storms that run
    beside this one are not."""
    found = {f"mount {line.split()[4].decode()}" for line in read("/proc/self/mountinfo").splitlines()}
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        for name in os.listdir(place) if os.access(place, os.R_OK) else []:
            if is_private(place) or "memledger" in name or ("storm" in name and not name.startswith("storm-")):
                found.add(f"{place}/{name}")
    return found


# ------------------------------------------------------------------------------------------------
# The storm
# ------------------------------------------------------------------------------------------------


def as_nobody():
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


class Storm:
    def __init__(self, options, mode):
        self.options, self.mode = options, mode
        self.random = random.Random(f"{options.seed} {mode}")
        self.failures = 0
        self.as_user = as_user = mode == "user"
        self.base = tempfile.mkdtemp(prefix="storm-", dir="/var/tmp")
        os.chmod(self.base, 0o755)
        self.results = self.make_folder("results")
        self.begin_anew()
        refuse = {"no_namespaces": [options.without_namespaces], "no_landlock": [options.without_namespaces, "--landlock"]}
        self.command = [*(as_nobody() if as_user else []), *refuse.get(mode, []), options.memledger, "dry-run", "--gpu=h100,addresses=down",
                        "--settings=none"]
        self.environment = {**os.environ, "HOME": self.base, MARK: str(os.getpid()), "MEMLEDGER_VIRTUAL_GPU_CUDNN": "model"}
        self.mark = f"{MARK}={os.getpid()}".encode()

    def make_folder(self, name):
        folder = os.path.join(self.base, name)
        os.mkdir(folder)
        if self.as_user:
            os.chown(folder, NOBODY, NOBODY)
        return folder

    def begin_anew(self):
        """Another job, in a folder that no dry-run has seen."""
        self.jobs = getattr(self, "jobs", 0) + 1
        self.folder = self.make_folder(f"job{self.jobs}")
        self.job = Job(self.folder, self.as_user)

    def start(self, name):
        with open(os.path.join(self.results, name + ".err"), "wb") as err, open(os.path.join(self.results, name + ".out"), "wb") as out:
            return subprocess.Popen([*self.command, "--json", "--", self.options.program, "4"], cwd=self.folder, env=self.environment,
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def fail(self, what):
        self.failures += 1
        print(f"FAILED: {self.mode}: {what}", flush=True)

    def text(self, name):
        return read(os.path.join(self.results, name)).decode(errors="replace")

    def undisturbed(self):
        """Returns the seconds of a dry-run that nothing ends, and checks what it says of itself."""
        self.job.start()
        began = time.monotonic()
        process = self.start("whole")
        status = process.wait(300)
        seconds = time.monotonic() - began
        for fault in [self.job.stop()] + self.job.faults():
            if fault:
                self.fail(f"undisturbed: {fault}")
        wanted = HELD_BY[self.mode]
        if wanted is None:
            if status != REFUSED or "writes" not in self.text("whole.err"):
                self.fail(f"not refused: status {status}, {self.text('whole.err')[-400:]}")
        else:
            try:
                held_by = json.loads(self.text("whole.out")).get("writes_held_by")
            except ValueError:
                held_by = f"no JSON: status {status}, {self.text('whole.err')[-400:]}"
            if held_by != wanted:
                self.fail(f"writes_held_by: {held_by}, not {wanted}")
        print(f"{self.mode}: undisturbed: status {status}, {seconds:.1f} s", flush=True)
        if self.failures:
            self.begin_anew()
        return seconds

    def end_one(self, process, name):
        if not name or process.poll() is not None:
            return "by itself"
        number = getattr(signal, name)
        to_group = self.random.random() < 0.4
        try:
            (os.killpg if to_group else os.kill)(process.pid, number)
        except ProcessLookupError:
            return "by itself"
        return name + (" to its group" if to_group else "")

    def batch(self, index, count, seconds):
        """So many dry-runs at once, each ended at a moment of its own."""
        before = traces()
        self.job.start()
        began = time.monotonic()
        running = []
        for i in range(count):
            running.append((self.start(str(i)), self.random.uniform(0, seconds), self.random.choice(ENDS)))
            time.sleep(self.random.uniform(0, 0.2))
        how = []
        for process, moment, name in sorted(running, key=lambda one: one[1]):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            how.append(f"{self.end_one(process, name)} after {time.monotonic() - began:.2f} s")
        sessions = {process.pid for process, _, _ in running}
        for process, _, name in running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                self.fail(f"batch {index}: does not end within a minute of {name}")
                process.kill()
                process.wait()
        patience = time.monotonic() + 10
        while (left := processes_of(self.mark, sessions)) and time.monotonic() < patience:
            time.sleep(0.05)
        failures = self.failures
        context = f"batch {index}: {', '.join(how)}"
        for process, command in left:
            self.fail(f"{context}: process {process} is left: {command}")
            os.kill(process, signal.SIGKILL)
        for fault in [self.job.stop()] + self.job.faults():
            if fault:
                self.fail(f"{context}: {fault}")
        for trace in sorted(traces() - before):
            self.fail(f"{context}: left behind: {trace}")
        if self.failures > failures:
            self.begin_anew()
        return how

    def run(self):
        ends = collections.Counter()
        seconds = self.undisturbed()
        done = 0
        for index in range(self.options.runs):
            count = min(self.random.choice([2, 2, 3]), self.options.runs - done)
            if count == 0 or self.failures > 20:
                break
            ends.update(one.partition(" after")[0] for one in self.batch(index, count, seconds))
            done += count
        print(f"{self.mode}: {done} dry-runs, ended {dict(ends)}; {self.failures} failures", flush=True)
        return self.failures


# ------------------------------------------------------------------------------------------------
# Where it runs
# ------------------------------------------------------------------------------------------------


def make_reachable(path):
    """Lets other users reach what lies in a folder of root's, in this process's own mount namespace."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        folder = "/" + "/".join(parts[:depth])
        if os.stat(folder).st_mode & 0o001:
            continue
        kept = tempfile.mkdtemp(dir="/tmp")
        subprocess.run(["mount", "--bind", folder, kept], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
        for entry in os.scandir(kept):
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(os.path.join(folder, entry.name))
                subprocess.run(["mount", "--bind", entry.path, os.path.join(folder, entry.name)], check=True)
        subprocess.run(["umount", "--lazy", kept], check=True)
        os.rmdir(kept)


def run_inside(options, mode):
    """Where /tmp and /dev/shm are private, if they can be, so that whatever is new there is a dry-run's."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell's background process ignores them
        signal.signal(number, signal.SIG_DFL)
    if options.private:
        for place in ("/tmp", "/dev/shm"):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", place], check=True)
        if mode == "user":
            make_reachable(os.path.realpath(options.memledger))
            make_reachable(os.path.realpath(options.program))
            make_reachable(os.path.realpath(sys.executable))
    storm = Storm(options, mode)
    try:
        return storm.run()
    finally:
        shutil.rmtree(storm.base)


def can(command):
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


def main():
    if sys.argv[1:2] == ["--job"]:
        work_as_job(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--memledger", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--without-namespaces", required=True)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--mode", action="append", choices=HELD_BY, default=[])
    parser.add_argument("--seed", default="1")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("memledger", "program", "without_namespaces"):
        setattr(options, name, os.path.realpath(getattr(options, name)))
    if options.inside:
        return 1 if run_inside(options, options.mode[0]) else 0
    namespace = ["unshare", "--mount", "--propagation=private"]
    is_private = can(namespace)
    failed = []
    for mode in options.mode or HELD_BY:
        if mode in ("root", "user") and os.geteuid() != 0:
            print(f"SKIPPED: dry-runs as {mode}: not started by root")
            continue
        if mode == "user" and not (is_private and can(as_nobody())):
            print("SKIPPED: dry-runs as another user: mount namespaces or setpriv are missing")
            continue
        command = [sys.executable, os.path.abspath(__file__), "--inside", f"--memledger={options.memledger}", f"--program={options.program}",
                   f"--without-namespaces={options.without_namespaces}", f"--runs={options.runs}", f"--seed={options.seed}", f"--mode={mode}"]
        if subprocess.run([*namespace, *command, "--private"] if is_private else command, check=False).returncode != 0:
            failed.append(mode)
    print(f"the storm failed: {', '.join(failed)}" if failed else "the storm did no harm")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
