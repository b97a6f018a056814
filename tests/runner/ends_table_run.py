"""Runs a program once to its end and says what its parent, and whoever reads its output, saw. For ends_table.py."""

import os
import re
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field

# memledger: train.py ended by SIGTERM after 0.2 s (process 998, rank 0); every row: …
TITLE = re.compile(rb"^memledger: \S+?,? (.+?),? after [0-9.]+ s.*[(]process (\d+), rank \d+[)]", re.M)
WHY_NOT = re.compile(rb"^memledger: no report.*$", re.M)
ON_DEMAND = b"on demand"


@dataclass
class Seen:
    """What one run looked like from outside."""

    status: str = ""
    out: str = ""
    err: str = ""
    reports: list = field(default_factory=list)  # of (how it ended, process id)
    demanded: list = field(default_factory=list)  # the same, of reports on demand
    why_not: list = field(default_factory=list)
    ready: int = 0  # the process that was ready, by its own id
    hang: str = ""  # what its processes did when the time was up
    left_behind: str = ""
    files: list = field(default_factory=list)  # in its folder, afterwards
    seconds: float = 0.0  # from the first signal, or the start, to the end of its output

    def result(self):
        return "hang" if self.hang else self.status


def status_text(returncode):
    if returncode >= 0:
        return f"exit {returncode}"
    return f"signal {signal_name(-returncode)}"


def signal_name(number):
    if signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        return {signal.SIGRTMIN: "SIGRTMIN", signal.SIGRTMAX: "SIGRTMAX"}.get(number, f"SIGRTMIN+{number - signal.SIGRTMIN}")
    return "SIGSTKFLT" if number == 16 else signal.Signals(number).name


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def processes_of_session(session):
    """Living processes, zombies left out."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 3 and int(fields[3]) == session and fields[0] not in b"ZX":
                found.append(int(name))
    return found


def describe(process):
    command = read(f"/proc/{process}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[-70:]
    threads = []
    for thread in sorted(os.listdir(f"/proc/{process}/task"), key=int)[:4]:
        folder = f"/proc/{process}/task/{thread}"
        state = read(f"{folder}/stat").rpartition(b")")[2].split()[:1]
        call = read(f"{folder}/syscall").split()[:1]
        threads.append(b" ".join(state + [b"in system call"] + call).decode() if call else "gone")
    return f"process {process} '…{command}': {'; '.join(threads)}"


def describe_all(processes):
    lines = []
    for process in processes:
        try:
            lines.append(describe(process))
        except OSError:
            pass
    return " | ".join(lines)


class Program:
    """A program in a session of its own, whose output is read as it comes."""

    def __init__(self, command, environment, folder):
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True)
        self.began = time.monotonic()
        self.out, self.err = bytearray(), bytearray()
        self.selector = selectors.DefaultSelector()
        for pipe, text in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            self.selector.register(pipe, selectors.EVENT_READ, text)

    def close(self):
        self.selector.close()
        self.process.stdout.close()
        self.process.stderr.close()

    def read_until(self, is_reached, deadline):
        """Returns False at the deadline, and True also if all output has ended."""
        while not is_reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self.selector.get_map():
                return True
            for key, _ in self.selector.select(left):
                data = os.read(key.fd, 65536)
                if data:
                    key.data.extend(data)
                else:
                    self.selector.unregister(key.fileobj)
        return True

    def ended(self):
        return not self.selector.get_map() and self.process.poll() is not None

    def wait(self, deadline):
        """Until it has ended, and nobody can write to its output any more."""
        if not self.read_until(lambda: not self.selector.get_map(), deadline):
            return False
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_all(self):
        for process in processes_of_session(self.process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def child_of(process):
    children = read(f"/proc/{process}/task/{process}/children").split()
    return int(children[0]) if children else process


def play(program, steps, random, watched, is_first_process, deadline):
    """Does what the table says while the program runs. Returns the moment of its first signal, or None."""
    first = None
    if not steps or not program.read_until(lambda: b"ready " in program.out and program.out.endswith(b"\n"), deadline):
        return first
    time.sleep(0.05)  # it may still be within the call that said so, which a traceback would show
    found = re.search(rb"ready (\d+)", program.out)
    if found is None:
        return first
    starter = program.process.pid
    target = child_of(starter) if is_first_process else int(found[1])
    for step in steps:
        kind, *arguments = step.split()
        if kind == "pause":  # LEAST MOST, in milliseconds
            time.sleep(random.uniform(float(arguments[0]), float(arguments[1])) / 1000)
        elif kind in ("demand", "demand_at_once"):
            if not watched:
                continue
            before = len(re.findall(ON_DEMAND, program.err))
            os.kill(target, signal.SIGUSR2)
            if kind == "demand":
                program.read_until(lambda: len(re.findall(ON_DEMAND, program.err)) > before, min(deadline, time.monotonic() + 20))
        else:
            number = int(arguments[0])
            first = first or time.monotonic()
            try:
                if kind == "group":
                    os.killpg(os.getpgid(target), number)
                else:
                    os.kill({"process": target, "starter": starter}[kind], number)
            except ProcessLookupError:
                pass  # it has ended already, or nearly
    return first


def without_ready(text):
    return re.sub(r"ready \d+\n", "", text)


def run_once(command, environment, folder, steps, random, *, watched, is_first_process, hang_limit):
    seen = Seen()
    program = Program(command, {**environment, "TMPDIR": folder}, folder)
    try:
        deadline = program.began + hang_limit
        first_signal = play(program, steps, random, watched, is_first_process, deadline)
        if program.wait(deadline):
            seen.status = status_text(program.process.returncode)
        else:
            seen.hang = describe_all(processes_of_session(program.process.pid)) or "no process of it lives"
            program.kill_all()
            program.read_until(lambda: False, time.monotonic() + 1)
        seen.seconds = time.monotonic() - (first_signal or program.began)
        patience = time.monotonic() + 8
        while (left := processes_of_session(program.process.pid)) and time.monotonic() < patience:
            time.sleep(0.02)
        if left:
            seen.left_behind = describe_all(left)
            program.kill_all()
    finally:
        program.close()
    seen.files = os.listdir(folder)
    if found := re.search(rb"ready (\d+)", program.out):
        seen.ready = int(found[1])
    seen.out = without_ready(program.out.decode(errors="replace"))
    seen.err = program.err.decode(errors="replace")
    for how, process in TITLE.findall(bytes(program.err)):
        (seen.demanded if ON_DEMAND in how else seen.reports).append((how.decode(errors="replace"), int(process)))
    seen.why_not = [line.decode(errors="replace") for line in WHY_NOT.findall(bytes(program.err))]
    return seen
