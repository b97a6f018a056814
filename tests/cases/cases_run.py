"""Runs programs of the table of cases under `memledger run`, and looks for what their screens must say."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def on_one_line(screen):
    """Sentences of a screen wrap after commas; here each is one line again."""
    return screen.replace(",\n    ", ", ")


def line_of(source, text):
    """FILE:LINE of the only line that has the text."""
    with open(source, encoding="utf-8") as file:
        numbers = [number for number, line in enumerate(file, 1) if text in line]
    if len(numbers) != 1:
        sys.exit(f"{source}: {len(numbers)} lines have '{text}'")
    return f"{os.path.basename(source)}:{numbers[0]}"


def filled_in(pattern, source):
    """Puts the place of `text` for @text@."""
    return re.sub("@(.+?)@", lambda found: re.escape(line_of(source, found[1])), pattern)


class Runner:
    def __init__(self, options):
        self.memledger, self.folder, self.python = options.memledger, options.programs, options.python
        self.is_full = options.full

    def source(self, case):
        return os.path.join(self.folder, case.name + (".py" if case.is_python else ".cc"))

    def command(self, case, arguments):
        gpu = [f"--virtual-gpu={case.card}"]
        program = [self.python, self.source(case)] if case.is_python else [os.path.join(self.folder, case.name)]
        return [self.memledger, "run", *gpu, "--", *program, *arguments]

    def screen(self, case, arguments):
        """Returns what memledger printed, and the seconds that it took."""
        environment = {**os.environ, "MEMLEDGER_VIRTUAL_GPU_CUDNN": "model", "PYTHONDONTWRITEBYTECODE": "1",
                       "MASTER_PORT": free_port()}
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            environment["TMPDIR"] = scratch
            ended = subprocess.run(self.command(case, arguments), cwd=scratch, env=environment, text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, check=False)
        seconds = time.monotonic() - begun
        wrong = [] if ended.returncode == 0 else [f"exit status {ended.returncode}"]
        return on_one_line(ended.stderr), wrong, seconds

    def run(self, case, is_fixed):
        """Returns what is wrong, the screen, and the seconds."""
        arguments = (case.fixed if is_fixed else case.arguments) + (() if self.is_full else case.quick)
        screen, wrong, seconds = self.screen(case, arguments)
        source = self.source(case)
        # Where nothing is printed, nothing wrong is.
        if not re.search(r"^(cpu|cuda:0).* peak ", screen, re.M):
            wrong.append("there is no report")
        for pattern in () if is_fixed else case.says:
            if not re.search(filled_in(pattern, source), screen, re.M):
                wrong.append(f"no line is /{filled_in(pattern, source)}/")
        for pattern in case.fixed_says if is_fixed else ():
            if not re.search(filled_in(pattern, source), screen, re.M):
                wrong.append(f"fixed: no line is /{filled_in(pattern, source)}/")
        for pattern in case.never if is_fixed else case.silent:
            if re.search(filled_in(pattern, source), screen, re.M):
                wrong.append(f"{'fixed: ' if is_fixed else ''}a line is /{filled_in(pattern, source)}/")
        return wrong, screen, seconds
