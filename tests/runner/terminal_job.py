"""Plays a shell with job control on a terminal, and holds a command to what it would do bare.

  terminal_job.py COMMAND… PYTHON: the command runs its last word with arguments
"""

import os
import pty
import select
import signal
import sys
import time

# No shell: bash may keep a signal until the next one that comes while it begins to read.
PROGRAM = """
import os, select, signal

told = {signal.SIGINT: b"interrupted", signal.SIGCONT: b"continued"}
come, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
for number in told:
    signal.signal(number, lambda *_: None)
os.write(1, b"ready\\n")
while True:
    ready = select.select([0, come], [], [])[0]
    if come in ready:
        for number in os.read(come, 100):
            os.write(1, told[number] + b"\\n")
    elif 0 in ready:
        line = os.read(0, 1000).strip()
        if line == b"end":
            raise SystemExit(9)
        size = os.get_terminal_size(os.open("/dev/tty", os.O_RDWR))
        os.write(1, b"%d %d\\n" % (size.lines, size.columns) if line == b"size" else b"read " + line + b"\\n")
"""


class Terminal:
    def __init__(self, command):
        self.text = ""
        self.shell, self.terminal = pty.fork()
        if self.shell == 0:
            self.be_shell(command)

    def be_shell(self, command):
        """The session's leader: starts the job, tells of its changes in lines, and puts it back when it is told to."""
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execvp(command[0], [*command, "-c", PROGRAM])
        while True:
            _, status = os.waitpid(job, os.WUNTRACED)
            os.tcsetpgrp(0, os.getpid())
            if not os.WIFSTOPPED(status):
                print(f"job ended with {os.waitstatus_to_exitcode(status)}", flush=True)
                os._exit(0)
            print(f"job stopped by {os.WSTOPSIG(status)}", flush=True)
            sys.stdin.readline()
            os.tcsetpgrp(0, job)
            os.killpg(job, signal.SIGCONT)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, text, seconds=30):
        end = time.monotonic() + seconds
        while text not in self.text:
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"no {text!r} in {self.text!r}")
            try:
                part = os.read(self.terminal, 4096)
            except OSError:
                part = b""
            if not part:
                sys.exit(f"no {text!r} in {self.text!r}, and the terminal was closed")
            self.text += part.decode(errors="replace")
        before, self.text = self.text.split(text, 1)
        return before


terminal = Terminal(sys.argv[1:])
terminal.wait_for("ready\r\n")
terminal.type("hello\n")
terminal.wait_for("read hello\r\n")
terminal.type("size\n")
terminal.wait_for("0 0\r\n")
for _ in range(3):
    terminal.type("\x03")
    terminal.wait_for("interrupted\r\n")
time.sleep(0.3)
terminal.type("once\n")
if "interrupted" in terminal.wait_for("read once\r\n"):
    sys.exit("one Ctrl-C came twice")
for _ in range(3):
    terminal.type("\x1a")
    terminal.wait_for(f"job stopped by {int(signal.SIGTSTP)}\r\n")
    terminal.type("go on\n")
    terminal.wait_for("continued\r\n")
    terminal.type("again\n")
    terminal.wait_for("read again\r\n")
terminal.type("end\n")
terminal.wait_for("job ended with 9\r\n")
