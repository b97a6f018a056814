"""The console script `memledger` of the wheel: finds the command that was built for the caller's torch."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import List, NoReturn, Optional, Set

_ASK_TORCH = """
import importlib.metadata, importlib.util, pathlib
try:
    spec = importlib.util.find_spec("torch")
    print(importlib.metadata.version("torch") if spec else "")
except importlib.metadata.PackageNotFoundError:
    print((pathlib.Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else "")
"""
_RUNS_PROGRAM = ("run", "dry-run", "fit", "validate")


def _releases() -> "dict[str, pathlib.Path]":
    """The commands in this wheel, by LibTorch's release, oldest first."""
    folder = pathlib.Path(__file__).resolve().parent / "memledger" / "lib"
    found = [one for one in folder.glob("*/bin/memledger")]
    found.sort(key=lambda path: [int(part) for part in path.parent.parent.name.split(".") if part.isdigit()])
    return {path.parent.parent.name: path for path in found}


def _release(text: str) -> Optional[str]:
    found = re.search(r"(\d+)\.(\d+)", text)
    return f"{found[1]}.{found[2]}" if found else None


def _python_of(words: List[str]) -> Optional[str]:
    """The Python that will run the program: the program itself, or the interpreter that its first line names."""
    program = shutil.which(words[0]) if words else None
    if program is not None:
        if os.path.basename(program).startswith("python"):
            return program
        try:
            with open(program, "rb") as file:
                first = file.readline(4096)
        except OSError:
            first = b""
        if first.startswith(b"#!"):
            interpreter = first[2:].decode("utf-8", "surrogateescape").split()
            if interpreter and os.path.basename(interpreter[0]) == "env":
                interpreter = [word for word in interpreter[1:] if not word.startswith("-")][:1]
            if interpreter and os.path.basename(interpreter[0]).startswith("python"):
                return shutil.which(interpreter[0])
    return None


def _release_of_python(python: Optional[str]) -> Optional[str]:
    if python is None:
        return None
    try:
        answer = subprocess.run([python, "-c", _ASK_TORCH], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _release(answer.stdout.decode("utf-8", "replace")) if answer.returncode == 0 else None


def _leave_own_environment() -> None:
    """`uvx memledger` runs this in an environment of its own, first in PATH and without torch; the program is the
    caller's."""
    if sys.prefix == sys.base_prefix or importlib.util.find_spec("torch") is not None:
        return
    own = os.path.realpath(os.path.join(sys.prefix, "bin"))
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in folders if os.path.realpath(folder or ".") != own)


def _with_values(command: pathlib.Path, subcommand: str) -> Set[str]:
    """The options whose value may be the next word, as the command's help tells: `-f, --function=FUNCTION`."""
    try:
        answer = subprocess.run([str(command), subcommand, "--help"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    names: Set[str] = set()
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        found = re.match(r"  (-[^=\s]+(?:, -[^=\s]+)*)=", line)
        if found:
            names.update(name.strip() for name in found[1].split(",") if not name.endswith("["))
    return names


def _takes_next_word(option: str, with_values: Set[str]) -> bool:
    """Whether it does: `--log`, `-f` and `-qf`, not `--log=x` and `-fx`."""
    if option.startswith("--"):
        return option in with_values
    for i, letter in enumerate(option[1:], 2):
        if "-" + letter in with_values:
            return i == len(option)
    return False


def _program(arguments: List[str], command: pathlib.Path) -> List[str]:
    """The program's words: those behind `--`, or from the first that is neither an option nor an option's value."""
    with_values = _with_values(command, arguments[0])
    words = iter(range(1, len(arguments)))
    for i in words:
        word = arguments[i]
        if word == "--":
            return arguments[i + 1 :]
        if not word.startswith("-"):
            return arguments[i:]
        if _takes_next_word(word, with_values):
            next(words, None)
    return []


def _fail(sentence: str) -> NoReturn:
    print(f"memledger: {sentence}", file=sys.stderr)
    sys.exit(2)


def main() -> NoReturn:
    commands = _releases()
    if not commands:
        _fail("this wheel has no command in it: install memledger again")
    arguments = sys.argv[1:]
    newest = list(commands)[-1]
    release = newest
    if arguments and arguments[0] in _RUNS_PROGRAM:
        _leave_own_environment()
        python = _python_of(_program(arguments, commands[newest]))
        asked = _release_of_python(python)
        if asked is not None and asked not in commands:
            there = ", ".join(commands)
            _fail(f"this wheel was built for torch {there}, and {python} has torch {asked}")
        # A program, or a script that starts Python: the one in PATH shows the likely release.
        if python is None:
            likely = _release_of_python(shutil.which("python3"))
            asked = likely if likely in commands else None
        release = asked or newest
    command = str(commands[release])
    try:
        os.execv(command, [command, *arguments])
    except OSError as error:
        _fail(f"cannot run {command}: {error.strerror}")


if __name__ == "__main__":
    main()
