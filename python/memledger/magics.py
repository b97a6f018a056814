"""%mlrun and %%mlrun for IPython: ``%load_ext memledger``."""

import argparse
import ast
import io
import shlex
from typing import Any, List, Optional

from .lines import LineProfiler, set_target_gpu


_DEFAULT_COLUMNS = ["active_bytes.all.peak", "reserved_bytes.all.peak"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(f"mlrun: {message}")


def _parser() -> _Parser:
    parser = _Parser(prog="mlrun", add_help=False)
    parser.add_argument("-f", "--function", action="append", default=[], help="a function to profile; may be repeated")
    parser.add_argument("-c", "--column", action="append", default=[], help="a column: active_bytes.all.peak")
    parser.add_argument("-D", "--no_default_columns", action="store_true", help="only the columns of -c")
    parser.add_argument("-g", "--gpu", type=int, default=None, help="the GPU to look at; the first by default")
    parser.add_argument("-r", "--return_profiler", action="store_true", help="return the LineProfiler")
    parser.add_argument("-T", "--dump_profile", default=None, help="write the tables to this file as well")
    parser.add_argument("-q", "--quiet", action="store_true", help="show nothing")
    return parser


def _word(rest: str) -> "tuple[str, str]":
    """The first word, without its quotes, and what follows it."""
    stream = io.StringIO(rest)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        word = lexer.get_token()
    except ValueError as error:
        raise ValueError(f"mlrun: {error}: {rest}") from None
    # It has read one character past the word, a blank, or to the end.
    return word or "", rest[stream.tell() :].lstrip()


def _split(line: str) -> "tuple[List[str], str]":
    """What stands before the statement, and the statement as it was written."""
    options, rest = [], line.strip()
    with_value = {"-f", "--function", "-c", "--column", "-g", "--gpu", "-T", "--dump_profile"}
    while rest.startswith("-"):
        word, rest = _word(rest)
        if word == "--":
            break
        options.append(word)
        if word in with_value:
            value, rest = _word(rest)
            options[-1:] = [f"{word}={value}" if word.startswith("--") else word + value] if value else [word]
    return options, rest


def _split_cell(cell: str, functions: List[str]) -> "tuple[str, str]":
    """The cell up to where the last of the functions is made, and the rest of it."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:  # other magics
        return "", cell
    names = {function.partition(".")[0] for function in functions}
    last = max((one.end_lineno or 0 for one in body if getattr(one, "name", None) in names), default=0)
    lines = cell.splitlines(keepends=True)
    return "".join(lines[:last]), "".join(lines[last:])


def mlrun(shell: Any, line: str, cell: Optional[str] = None) -> Any:
    """Runs a statement or a cell under the line profiler.

    -f FUNCTION  profile this function; may be repeated
    -c COLUMN    show this column as well: active_bytes.all.current, line.left
    -D           show only the columns of -c
    -g GPU       look at this GPU
    -r           return the LineProfiler
    -T FILE      write the tables to a file as well
    -q           show nothing
    """
    words, statement = _split(line)
    options = _parser().parse_args(words)
    if options.gpu is not None:
        set_target_gpu(options.gpu)
    columns = options.column if options.no_default_columns else _DEFAULT_COLUMNS + options.column
    profiler = LineProfiler()
    # The profiler follows the functions that it has; the cell may have yet to make them.
    definitions, rest = _split_cell(cell, options.function) if cell is not None else ("", "")
    if definitions:
        shell.run_cell(definitions)  # its functions have lines, and a source
    for name in options.function:
        try:
            profiler.add_function(eval(name, shell.user_ns))
        except (NameError, AttributeError, SyntaxError) as error:
            raise ValueError(f"mlrun: there is no function `{name}`: {error}") from None
    with profiler:
        if cell is None:
            shell.ex(shell.transform_cell(statement))
        else:
            shell.run_cell(rest)
    if options.dump_profile:
        with open(options.dump_profile, "w", encoding="utf-8") as file:
            profiler.print_stats(columns=columns, stream=file)
    if not options.quiet:
        shown = profiler.display(columns=columns)
        if shown is not None:
            from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

            display(shown)
    return profiler if options.return_profiler else None


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext memledger`` calls."""

    def magic(line: str, cell: Optional[str] = None) -> Any:
        return mlrun(shell, line, cell)

    magic.__doc__ = mlrun.__doc__
    shell.register_magic_function(magic, magic_kind="line_cell", magic_name="mlrun")


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext memledger`` calls."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("mlrun", None)
