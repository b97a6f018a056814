#!/usr/bin/env python3
"""The table of ends: kinds of programs by the ways in which a program ends, bare and watched by memledger.

Each cell runs a program bare and under `memledger run`. The two must have the same standard output and the same status,
no hang that is not there bare, and one report for each process that has something to tell; or a line that says why there
is none, in at most one of a thousand runs.

  ends_table.py --memledger=FILE --programs=FOLDER [OPTION]…
    --runs=N          watched runs of each cell (100; bare ones are fewer where the end is always the same)
    --cells=PATTERN   cells by a shell pattern of KIND/END, may be repeated: --cells='cpp/handler_*'
    --slice           every kind and every end, once: what CI runs
    --seed=N          of the moments at which signals come (1)
    --shard=I/N       each N-th cell from the I-th
    --list            prints the cells
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import ends_table_run

# ------------------------------------------------------------------------------------------------
# The ends
# ------------------------------------------------------------------------------------------------


@dataclass
class End:
    """A way to end.

    argument  what the program is called with; the end's name unless it is given
    steps     what happens once the program has said that it is ready:
                process N, group N, starter N   sends signal N to the program, its process group, or who started it
                pause LEAST MOST                waits for milliseconds in between, at random
                demand, demand_at_once          asks a watched program for a report, and waits for it or does not
    told      what the report calls the end; by the program's status unless it is given
    reports   how many reports there are of the process, those on demand left out
    racy      moments decide: as many bare runs as watched ones
    rarely    a status that bare runs have, too, but too rarely for a few of them to show it
    delay     microseconds after which the program's own timer comes, at random
    options   of `memledger run`
    files     what a watched run leaves in its folder beside what a bare one does
    orderly   whether what it writes on standard error, and what it leaves in its folder, is always the same
    patience  seconds that a watched run may take longer than ten bare ones: far more than a report, far less than a
              report that is given up
    """

    name: str
    argument: str = ""
    steps: tuple = ()
    told: str = ""
    reports: int = 1
    demands: int = 0
    racy: bool = False
    rarely: str = ""
    delay: tuple = ()
    options: tuple = ()
    files: tuple = ()
    orderly: bool = True
    patience: float = 5


# By number, as Python 3.9 does not know them all.
DEADLY = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "USR1": 10, "SEGV": 11,
          "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27,
          "IO": 29, "PWR": 30, "SYS": 31, "RTMIN": 34, "RTMAX": 64}

GAP = "pause 0 40"  # a report of a small program takes about as long

ENDS = [
    # By itself.
    End("return"),
    End("return_beside_work", racy=True),
    End("exit"),
    End("exit_in_thread", racy=True),
    End("main_thread_ends"),
    End("_exit", told=r"ended by _exit\(4\)"),
    End("_exit_in_thread", racy=True, told=r"ended by _exit\(4\)"),
    End("_Exit", told=r"ended by _exit\(5\)"),
    End("quick_exit", told=r"ended by quick_exit\(.*\)"),
    End("exception"),
    End("abort"),
    # By a default action, for a reason of its own.
    End("null"),
    End("overflow"),
    End("bus"),
    End("zero"),
    End("illegal"),
    End("trap"),
    End("file_size"),
    End("processor_time"),
    End("pipe"),
    End("alarm"),
    End("virtual_timer"),
    End("profiling_timer"),
    End("many"),
    End("null_beside_writer"),
    # By each signal: from itself, and from outside.
    *(End(f"raise_SIG{name}", argument=f"raise_{number}") for name, number in DEADLY.items()),
    *(End(f"SIG{name}", argument="wait", steps=(f"process {number}",)) for name, number in DEADLY.items()),
    End("SIGKILL", argument="wait", steps=("process 9",), reports=0),
    # By signals that find it at work.
    End("SIGTERM_in_malloc", argument="malloc", steps=("pause 0 20", "process 15")),
    End("SIGTERM_in_malloc_alone", argument="malloc_alone", steps=("pause 0 20", "process 15")),
    End("SIGTERM_in_tensors", argument="work", steps=("pause 0 20", "process 15")),
    End("SIGTERM_large", argument="large", steps=("process 15",), patience=15),
    End("SIGTERM_huge_saved", argument="huge", steps=("process 15",), options=("--save-report=report.json",), files=("report.json",),
        patience=30),
    # By signals to the whole group, as a terminal's and those of `timeout`.
    End("group_SIGINT", argument="wait", steps=("group 2",)),
    End("group_SIGINT_twice", argument="wait", steps=("group 2", GAP, "group 2")),
    End("group_SIGTERM_twice", argument="wait", steps=("group 15", GAP, "group 15")),
    End("SIGTERM_then_group", argument="wait", steps=("process 15", GAP, "group 15")),
    End("group_SIGINT_SIGTERM", argument="wait", steps=("group 2", GAP, "group 15"), racy=True),
    End("group_SIGHUP_SIGTERM", argument="wait", steps=("group 1", "pause 150 200", "group 15")),
    End("group_SIGTERM_twice_large", argument="large", steps=("group 15", "pause 0 600", "group 15"), patience=15),
    End("group_SIGTERM_twice_at_work", argument="work", steps=("pause 0 20", "group 15", GAP, "group 15")),
    # The second comes to a thread within malloc(), whose lock the report of the first needs.
    End("group_SIGTERM_twice_in_malloc", argument="malloc", steps=("pause 0 20", "group 15", "pause 0 2", "group 15")),
    # By another program.
    End("exec", told="exec"),
    End("exec_itself", reports=2, told=r"exec|ended \(3\)"),
    End("exec_fails"),
    End("exec_in_thread", told="exec", racy=True),
    End("system"),
    End("child"),
    # By its own handlers.
    # exit() within malloc(), which no program may call there: the C library finds its lists broken.
    End("handler_exits", delay=(20_000, 25_000), racy=True, rarely="signal SIGABRT"),
    End("handler_quick_exits", delay=(20_000, 25_000), racy=True, rarely="signal SIGABRT"),
    End("handler__exits", delay=(20_000, 25_000), racy=True, told=r"ended by _exit\(0\)"),
    End("handler_returns", steps=("process 15",)),
    End("handler_jumps", steps=("process 15",)),
    End("handler_passes_on", steps=("process 15",)),
    End("handler_of_fault", told=r"ended by _exit\(7\)"),
    End("ignored"),
    End("blocked"),
    End("sigwait", steps=("process 15",)),
    End("sigsuspend", steps=("process 15",)),
    End("ppoll", steps=("process 15",)),
    End("actions"),
    # After reports on demand, which nobody else notices.
    End("demand_SIGTERM", argument="wait", steps=("demand", "demand", "process 15"), demands=2),
    End("demand_SIGTERM_at_once", argument="wait", steps=("demand_at_once", GAP, "process 15"), demands=1),
    End("demand_at_work", argument="work", steps=("pause 0 20", "demand", "demand", "process 15"), demands=2),
    End("demand_in_malloc", argument="malloc", steps=("pause 0 20", "demand", "demand", "process 15"), demands=2),
    End("demand_in_malloc_alone", argument="malloc_alone", steps=("pause 0 20", "demand", "demand", "process 15"), demands=2),
    End("demand_in_sleep", argument="sleep", steps=("pause 100 300", "demand_at_once"), demands=1),
    End("demand_in_read", argument="sleep_in_read", steps=("pause 100 300", "demand_at_once"), demands=1),
    # Under `timeout` the program gets one, two or three: it passes on what the group got, too.
    End("demand_group_SIGINT", argument="count_interrupts", racy=True,
        steps=("demand_at_once", GAP, "group 2", "pause 300 400", "process 15"), demands=1),
    End("demand_children", argument="observe_children", steps=("demand", "demand", "process 15"), demands=2),
    End("demand_usage", argument="usage_of_children", steps=("demand", "process 15"), demands=1),
    End("children_at_the_end", argument="observe_children_to_the_end", steps=("process 15",)),
]

# `timeout` acts on SIGALRM, which is how it learns that the time is up.
TIMEOUT_ENDS = [End("time_is_up", argument="wait", steps=("starter 14",), told="ended by SIGTERM")]

PYTHON_ENDS = [
    End("return"),
    End("exit"),
    End("_exit", told=r"ended by _exit\(4\)"),
    End("exception"),
    End("abort"),
    End("null"),
    End("null_faulthandler"),
    End("SIGINT", argument="wait", steps=("process 2",)),
    End("SIGTERM", argument="wait", steps=("process 15",)),
    End("SIGHUP", argument="wait", steps=("process 1",)),
    End("SIGTERM_at_work", argument="work", steps=("pause 0 100", "process 15")),
    End("group_SIGTERM_twice", argument="wait", steps=("group 15", "pause 0 150", "group 15")),
    End("group_SIGTERM", argument="wait", steps=("group 15",)),
    End("group_SIGINT", argument="wait", steps=("group 2",)),
    End("handler_exits", steps=("process 15",)),
    End("handler__exits", steps=("process 15",), told=r"ended by _exit\(5\)"),
    End("handler_returns", steps=("process 15",)),
    End("exec", told="exec"),
    End("demand_SIGTERM", argument="wait", steps=("demand", "process 15"), demands=1),
    End("demand_at_work", argument="work", steps=("pause 0 100", "demand", "process 15"), demands=1),
    End("demand_group_SIGINT", argument="observe",
        steps=("demand_at_once", "pause 0 150", "group 2", "pause 700 800", "process 15"), demands=1),
    End("demand_subprocess", argument="subprocess", steps=("demand", "process 15"), demands=1),
    End("in_thread__exit", told=r"ended by _exit\(4\)"),
    End("in_thread_exception"),
    End("in_thread_SIGTERM", argument="in_thread_work", steps=("pause 0 100", "process 15")),
    End("worker_exception", orderly=False),  # the workers and the parent end at the same time
    End("worker_SIGTERM", orderly=False),
    End("worker_SIGSEGV", orderly=False),
]

# ------------------------------------------------------------------------------------------------
# The kinds of programs
# ------------------------------------------------------------------------------------------------

# What each kind ends by, besides what only some can.
MAIN = """return exit _exit quick_exit exception abort null overflow raise_SIGTERM SIGTERM SIGINT SIGUSR1 SIGRTMIN
          SIGTERM_in_malloc SIGTERM_in_tensors group_SIGINT_twice group_SIGTERM_twice exec exec_fails handler_exits
          handler_quick_exits handler__exits handler_returns handler_passes_on ignored demand_SIGTERM demand_at_work
          demand_group_SIGINT children_at_the_end""".split()
PYTHON_MAIN = """return exit _exit exception abort null null_faulthandler SIGINT SIGTERM SIGHUP SIGTERM_at_work
                 group_SIGTERM_twice handler_exits handler__exits handler_returns exec demand_SIGTERM demand_at_work
                 demand_group_SIGINT""".split()
WORKER = "return exit _exit exception abort null SIGTERM SIGINT group_SIGTERM".split()


@dataclass
class Kind:
    """A kind of program.

    command   of the program; WATCHED stands where `memledger run …` is put, PROGRAM, HOST, PLUGIN and BUNDLED for the
              test programs, PYTHON for the interpreter with its program
    ends      which of the ends
    slice     which of them CI runs
    reports   of how many of its processes there are reports
    is_status whether its parent sees the program's own status: then the report's title must say the same
    told      what the report calls the end where another process than the one that ends so is reported
    preload   the library that it needs, which goes to LD_PRELOAD
    maybe_no_report  why there may be none
    """

    name: str
    command: str
    ends: list
    slice: list
    reports: int = 1
    is_status: bool = True
    told: str = ""
    preload: str = ""
    is_python: bool = False
    is_first_process: bool = False
    maybe_no_report: str = ""


SHELL = r""""$@"; status=$?; echo "status $status"; exit $status"""

# Takes longer than all others together.
NOT_IN_SLICE = ["SIGTERM_huge_saved"]

KINDS = [
    Kind("cpp", "WATCHED PROGRAM", [end.name for end in ENDS], slice=[end.name for end in ENDS if end.name not in NOT_IN_SLICE]),
    Kind("plugin", "WATCHED HOST PLUGIN", MAIN, slice=["return", "_exit", "abort", "SIGTERM", "quick_exit", "demand_at_work"]),
    Kind("plugin_with_its_own", "WATCHED HOST BUNDLED", ["return", "exit", "_exit", "abort", "SIGTERM"],
         slice=["return", "SIGTERM"], reports=0),
    Kind("shell", "WATCHED sh -c SHELL sh PROGRAM", MAIN, slice=["return", "abort", "group_SIGTERM_twice"], is_status=False),
    Kind("timeout", "WATCHED timeout 60 PROGRAM", MAIN + ["time_is_up"], slice=["exit", "time_is_up", "group_SIGINT_twice"]),
    Kind("nohup", "nohup WATCHED PROGRAM", MAIN + ["SIGHUP", "group_SIGHUP_SIGTERM"], slice=["_exit", "group_SIGHUP_SIGTERM"]),
    # What asks for a report ends a program that is not watched.
    Kind("env_i", "WATCHED env -i PROGRAM", [end for end in MAIN if not end.startswith("demand")], slice=["return", "SIGTERM"],
         maybe_no_report="the environment that carries memledger is emptied"),
    Kind("jemalloc", "WATCHED PROGRAM", MAIN, preload="jemalloc", slice=["return", "SIGTERM_in_malloc", "handler_exits"]),
    Kind("tcmalloc", "WATCHED PROGRAM", MAIN, preload="tcmalloc", slice=["return", "SIGTERM_in_malloc", "handler_exits"]),
    Kind("first_process", "UNSHARE WATCHED PROGRAM", is_first_process=True,
         ends="""return exit _exit quick_exit exception abort null raise_SIGTERM raise_SIGHUP raise_SIGRTMIN SIGKILL exec
                 handler_exits handler_returns demand_children""".split(),
         slice=["return", "abort", "raise_SIGTERM"]),
    Kind("python", "WATCHED PYTHON main", PYTHON_MAIN, is_python=True,
         slice=["return", "exception", "_exit", "SIGTERM_at_work", "group_SIGTERM_twice", "handler_exits", "handler__exits",
                "handler_returns", "null_faulthandler", "abort", "exec", "SIGHUP", "demand_SIGTERM"]),
    Kind("python_thread", "WATCHED PYTHON thread", is_python=True,
         ends=PYTHON_MAIN + ["in_thread__exit", "in_thread_exception", "in_thread_SIGTERM"],
         slice=["exit", "in_thread__exit", "in_thread_exception", "in_thread_SIGTERM", "null"]),
    Kind("asyncio", "WATCHED PYTHON asyncio", is_python=True,
         ends=[end for end in PYTHON_MAIN if end not in ("handler_exits", "handler_returns")] + ["demand_subprocess"],
         slice=["return", "SIGINT", "demand_group_SIGINT", "demand_subprocess"]),
    Kind("fork", "WATCHED PYTHON fork", WORKER, slice=["return", "SIGTERM"], is_python=True, is_status=False, told=r"ended \(0\)"),
    Kind("spawn", "WATCHED PYTHON spawn", WORKER, slice=["return", "group_SIGTERM"], is_python=True, is_status=False),
    Kind("forkserver", "WATCHED PYTHON forkserver", WORKER, slice=["return", "exception"], is_python=True, is_status=False),
    Kind("dataloader", "WATCHED PYTHON dataloader", is_python=True,
         ends="""return exit _exit exception abort null SIGTERM SIGINT group_SIGINT demand_SIGTERM worker_exception
                 worker_SIGTERM worker_SIGSEGV""".split(),
         slice=["return", "worker_exception", "worker_SIGTERM", "worker_SIGSEGV", "group_SIGINT", "demand_SIGTERM"]),
]

# Cells that are known to fail, with the reason. Each run lists them.
KNOWN = {}

# ------------------------------------------------------------------------------------------------
# Runs
# ------------------------------------------------------------------------------------------------

# How often a cell of the slice is run again that has once shown what only one run in many may.
RUNS_OF_DOUBT = 100


@dataclass
class Cell:
    kind: Kind
    end: End

    def name(self):
        return f"{self.kind.name}/{self.end.name}"


def all_cells():
    ends = {True: {end.name: end for end in PYTHON_ENDS}, False: {end.name: end for end in ENDS + TIMEOUT_ENDS}}
    return [Cell(kind, ends[kind.is_python][name]) for kind in KINDS for name in kind.ends]


class Machine:
    """Where the programs are, and what this machine lacks."""

    def __init__(self, options):
        self.memledger = os.path.abspath(options.memledger)
        self.programs = os.path.abspath(options.programs)
        self.python = options.python
        self.virtual_gpu = f"--virtual-gpu={options.virtual_gpu}" if options.virtual_gpu else ""
        self.here = os.path.dirname(os.path.abspath(__file__))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("MEMLEDGER", "LD_PRELOAD"))}
        self.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self.libraries = {"jemalloc": options.jemalloc or find_library("libjemalloc.so"),
                          "tcmalloc": options.tcmalloc or find_library("libtcmalloc_minimal.so", "libtcmalloc.so")}
        self.unshare = self.find_unshare()
        self.bare_python = self.environment_of_bare_python() if self.python and self.virtual_gpu else {}

    def find_unshare(self):
        """Returns the command that makes its program process 1, as in a container; empty where that is refused."""
        for command in (["unshare", "--pid", "--fork", "--mount-proc"],
                        ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]):
            try:
                if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                    return command
            except OSError:
                pass
        return []

    def environment_of_bare_python(self):
        """A torch with CUDA does not start without NVIDIA's libraries: bare, it has the virtual GPU's and no more."""
        output = subprocess.run([self.memledger, "run", "--quiet", self.virtual_gpu, "--", "env", "-0"], check=True,
                                env=self.environment, capture_output=True).stdout.decode()
        variables = dict(line.split("=", 1) for line in output.split("\0") if "=" in line)
        variables["LD_PRELOAD"] = ":".join(
            library for library in variables["LD_PRELOAD"].split(":") if "libmemledger_preload" not in library)
        return {name: variables[name] for name in variables
                if name in ("LD_PRELOAD", "MEMLEDGER_VIRTUAL_GPU", "TRITON_LIBCUDA_PATH")}

    def lacks(self, kind):
        if kind.is_python and not self.python:
            return "no Python with this torch"
        if kind.preload and not self.libraries[kind.preload]:
            return f"lib{kind.preload} is not installed"
        if kind.is_first_process and not self.unshare:
            return "no process namespaces here"
        return ""

    def command(self, cell, watched, delay):
        run = [self.memledger, "run", *([self.virtual_gpu] if cell.kind.is_python and self.virtual_gpu else []),
               *(["--report-on=SIGUSR2"] if cell.end.demands else []), *cell.end.options, "--"]
        program = lambda name: [os.path.join(self.programs, name)]
        words = {"WATCHED": run if watched else [], "UNSHARE": self.unshare, "SHELL": [SHELL],
                 "PROGRAM": program("ends_table_program"), "HOST": program("ends_table_host"),
                 "PLUGIN": program("ends_table_plugin.so"), "BUNDLED": program("ends_table_bundled.so"),
                 "PYTHON": [self.python, os.path.join(self.here, "ends_table_program.py")]}
        command = [part for word in cell.kind.command.split() for part in words.get(word, [word])]
        return [*command, cell.end.argument or cell.end.name, *([str(delay)] if delay else [])]

    def environment_for(self, cell, watched):
        environment = dict(self.environment)
        if cell.kind.is_python and not watched:
            environment |= self.bare_python
        if cell.kind.preload:
            environment["LD_PRELOAD"] = self.libraries[cell.kind.preload]
        return environment


def find_library(*stems):
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for stem in stems:
        if found := re.search(rf"{re.escape(stem)}\S* .*=> (\S+)", listed):
            return found[1]
    return ""


def comparable(cell, text):
    if cell.end.name == "null_beside_writer":  # ends within 100 ms of the fault
        return "goes on" if text.partition("fault\n")[2].count("alive") > 20 else "ends"
    return text


def lines_of_errors(seen):
    """What the program itself wrote on standard error, without what differs from run to run, or tells of the machine."""
    return {re.sub(r"0x[0-9a-f]+|\d+", "#", line) for line in seen.err.splitlines() if not line.startswith("Extension modules:")}


def names_of_files(seen):
    """Of what was left in its working folder, which is its temporary folder, too."""
    return tuple(sorted(re.sub(r"-\w{8}$|\d+", "#", name) for name in seen.files))


def is_told_as_left_out(seen, file):
    return re.search(rf"^memledger: no \S*{re.escape(file)}", seen.err, re.M) is not None


def title_is_wrong(cell, seen):
    # What goes to the group ends that other process, too.
    is_of_all = any(step.startswith("group") for step in cell.end.steps)
    told = cell.end.told if is_of_all else cell.kind.told or cell.end.told
    if not cell.kind.is_status and not told:
        return False
    if not told:
        kind, value = seen.status.split()
        told = rf"ended by {re.escape(value)}" if kind == "signal" else rf"ended (\({value}\)|by _exit\({value}\)|by quick_exit\(.*\))"
    return not all(re.fullmatch(rf".*({told}).*", how) for how, _ in seen.reports)


def expected_reports(cell):
    return cell.end.reports * cell.kind.reports, cell.end.demands * cell.kind.reports


def is_too_often(cell, bare, watched):
    before, after = (sum(seen.status == cell.end.rarely for seen in runs) for runs in (bare, watched))
    return after > 3 * before + len(watched) // 25


def is_rare(cell, seen):
    """Whether a run shows what only one in many may: a few runs cannot tell."""
    return bool(seen.why_not) or (cell.end.rarely != "" and seen.status == cell.end.rarely)


def lines_too_many(watched):
    """How many lines of a cell of the slice say why there is no report. A single one, for which the cell was run again, does not
    count."""
    lines = sum(len(seen.why_not) for seen in watched)
    was_run_again = len(watched) > RUNS_OF_DOUBT
    return lines - 1 if lines == 1 and was_run_again else lines


def faults_of(cell, seen, bare, watched):
    """What is wrong with a watched run, beside the bare ones; without an end, why there is no report is counted apart."""
    faults = []
    if seen.hang and not any(one.hang for one in bare):
        return [f"hangs: {seen.hang}"]
    if seen.status == cell.end.rarely and not is_too_often(cell, bare, watched):
        return faults
    if seen.result() not in {one.result() for one in bare}:
        faults.append(f"status: {seen.result()}, bare: {' or '.join(sorted({one.result() for one in bare}))}")
    if comparable(cell, seen.out) not in {comparable(cell, one.out) for one in bare}:
        faults.append(f"output: {comparable(cell, seen.out)[:300]!r}, bare: {comparable(cell, bare[0].out)[:300]!r}")
    if cell.end.orderly and not cell.end.racy:
        lost = set.intersection(*(lines_of_errors(one) for one in bare)) - lines_of_errors(seen)
        if lost:
            faults.append(f"standard error lacks {sorted(lost)[:3]}")
    if seen.left_behind and not any(one.left_behind for one in bare):
        faults.append(f"left behind: {seen.left_behind}")
    if seen.hang:
        return faults
    longest = max(one.seconds for one in bare)
    if seen.seconds > cell.end.patience + 10 * longest:
        faults.append(f"late: {seen.seconds:.1f} s to the end, bare at most {longest:.2f} s")
    files = {names_of_files(one) for one in bare}
    written = tuple(name for name in cell.end.files if not is_told_as_left_out(seen, name))
    if cell.end.orderly and names_of_files(seen) not in {tuple(sorted(one + written)) for one in files}:
        faults.append(f"files: {names_of_files(seen)}, bare: {sorted(files)}")
    reports, demanded = expected_reports(cell)
    may_lack = cell.kind.maybe_no_report and not seen.reports
    if len(seen.reports) + len(seen.demanded) + len(seen.why_not) != reports + demanded and not may_lack:
        faults.append(f"{len(seen.reports)} reports and {len(seen.demanded)} on demand, of {reports} and {demanded}"
                      + (f"; {seen.why_not}" if seen.why_not else ""))
    elif title_is_wrong(cell, seen):
        faults.append(f"{seen.status} is reported as {[how for how, _ in seen.reports]}")
    elif cell.kind.is_status and seen.ready and any(process != seen.ready for _, process in seen.reports + seen.demanded):
        faults.append(f"the report of {seen.ready} bears {[process for _, process in seen.reports + seen.demanded]}")
    return faults


class Table:
    def __init__(self, machine, options):
        self.machine, self.options = machine, options
        # Not Bazel's own, whose path is too long for the sockets of a forkserver.
        self.folder = tempfile.mkdtemp(prefix="ends-", dir="/tmp")

    def run(self, cell, watched, index):
        # The same moments, bare and watched.
        moment = random.Random(f"{self.options.seed} {cell.name()} {index}")
        delay = moment.randint(*cell.end.delay) if cell.end.delay else 0
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return ends_table_run.run_once(
                self.machine.command(cell, watched, delay), self.machine.environment_for(cell, watched), folder,
                cell.end.steps, moment, watched=watched, is_first_process=cell.kind.is_first_process,
                hang_limit=self.options.hang_limit)

    def run_cell(self, cell):
        """Returns the bare and the watched runs; the end of a cell that hangs again and again is not waited for."""
        runs = 5 * self.options.runs if cell.end.racy and self.options.slice else self.options.runs
        bare, watched = [], []
        self.run_more(cell, bare, watched, runs)
        if self.options.slice and any(is_rare(cell, seen) for seen in watched):
            self.run_more(cell, bare, watched, RUNS_OF_DOUBT)
        return cell, bare, watched

    def run_more(self, cell, bare, watched, runs):
        for index in range(len(bare), len(bare) + (runs if cell.end.racy else min(runs, 3))):
            bare.append(self.run(cell, False, index))
        for index in range(len(watched), len(watched) + runs):
            watched.append(self.run(cell, True, index))
            if sum(bool(seen.hang) for seen in watched) >= self.options.max_hangs:
                break


def summary(cell, bare, watched):
    results = collections.Counter(seen.result() for seen in watched)
    before, after = (statistics.median(seen.seconds for seen in runs) for runs in (bare, watched))
    return (f"bare {collections.Counter(seen.result() for seen in bare).most_common()}, watched {results.most_common()}, "
            f"{before:.2f} s to the end, watched {after:.2f} s ({after / before:.1f} times)")


def tell(cell, bare, watched, verbose):
    """Prints what is wrong with a cell, each thing once, and returns how many runs were."""
    faults = collections.defaultdict(list)
    wrong = 0
    for index, seen in enumerate(watched):
        found = faults_of(cell, seen, bare, watched)
        wrong += bool(found)
        for fault in found:
            faults[re.sub(r"\d+", "#", fault)[:80]].append((index, fault))
    if wrong:
        print(f"FAILED: {cell.name()}: {wrong} of {len(watched)}; {summary(cell, bare, watched)}")
        for all_alike in faults.values():
            print(f"    {len(all_alike)} times, first in run {all_alike[0][0]}: {all_alike[0][1]}")
    elif verbose:
        print(f"ok: {cell.name()}: {summary(cell, bare, watched)}")
    sys.stdout.flush()
    return wrong


def choose(options):
    cells = all_cells()
    if options.slice:
        cells = [cell for cell in cells if cell.end.name in cell.kind.slice]
    if options.cells:
        cells = [cell for cell in cells if any(fnmatch.fnmatch(cell.name(), pattern) for pattern in options.cells)]
    index, count = map(int, options.shard.split("/"))
    return cells[index::count]


def parse_options():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--memledger", required=True)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--python", default="")
    parser.add_argument("--virtual-gpu", default="", help="of Python programs, whose torch has CUDA")
    parser.add_argument("--jemalloc", default="", help="the library, if ldconfig does not know it")
    parser.add_argument("--tcmalloc", default="")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--cells", action="append", default=[])
    parser.add_argument("--slice", action="store_true")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--hang-limit", type=float, default=40, help="seconds")
    parser.add_argument("--max-hangs", type=int, default=10, help="of a cell")
    parser.add_argument("--verbose", action="store_true", help="also tells of cells without a fault")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.slice:
        options.runs = 1
    return options


def main():
    options = parse_options()
    if options.list:
        print("\n".join(cell.name() for cell in choose(options)))
        return 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A shell's background process ignores it, and programs would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    machine = Machine(options)
    skipped = {kind.name: machine.lacks(kind) for kind in KINDS if machine.lacks(kind)}
    cells = []
    for cell in choose(options):
        if cell.name() in KNOWN:
            print(f"NOT CHECKED: {cell.name()}: {KNOWN[cell.name()]}")
        elif cell.kind.name not in skipped:
            cells.append(cell)
    for kind, reason in skipped.items() if options.shard.startswith("0/") else []:
        print(f"SKIPPED: {kind}: {reason}")
    table = Table(machine, options)
    wrong_cells, runs, why_not, ratios = [], 0, 0, collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(table.run_cell, cell) for cell in cells]
        try:
            for future in concurrent.futures.as_completed(futures):
                cell, bare, watched = future.result()
                if tell(cell, bare, watched, options.verbose):
                    wrong_cells.append(cell.name())
                runs += len(watched)
                why_not += lines_too_many(watched) if options.slice else sum(len(seen.why_not) for seen in watched)
                before, after = (statistics.median(seen.seconds for seen in all_runs) for all_runs in (bare, watched))
                ratios[cell.kind.name].append(after / before)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    shutil.rmtree(table.folder)
    for kind, values in ratios.items():
        print(f"{kind}: {len(values)} cells; to the end {statistics.median(values):.1f} times as long as bare (median)")
    max_why_not = runs // 1000
    print(f"{len(cells)} cells, {runs} watched runs, {len(wrong_cells)} cells failed; {why_not} lines that say why there is "
          f"no report, of at most {max_why_not}")
    return 1 if wrong_cells or why_not > max_why_not or not cells else 0


if __name__ == "__main__":
    sys.exit(main())
