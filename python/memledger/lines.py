"""LineProfiler, profile and profile_every: which line of a function makes the memory grow."""

import atexit
import functools
import html
import inspect
import sys
from typing import Any, Callable, Iterable, List, Optional, Sequence, TextIO, TypeVar, Union, overload

from . import _library

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Which = Union[None, str, Callable[..., Any], Sequence[Callable[..., Any]]]


def set_target_gpu(gpu: Any) -> None:
    """Chooses the device that all line profilers look at from now on: a GPU's number, a torch.device or its text. May be
    called within a profiled function."""
    _library.call("set_target", _library.device_text(gpu))


def _plain(function: Any) -> Any:
    while True:
        if inspect.ismethod(function):
            function = function.__func__
        elif isinstance(function, (staticmethod, classmethod, functools.partial)):
            function = function.func if isinstance(function, functools.partial) else function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def _name(function: Any) -> str:
    return str(_plain(function).__qualname__).replace("<locals>.", "")


class LineProfiler(_library.OfThisProcess):
    """Profiles Python functions line by line: the highest figures of the device while each line ran.

        with memledger.LineProfiler(outer, inner) as profiler:
            outer()
        profiler.display()

    Without an explicit target it looks at cuda:0 once that is used, until then at the CPU. Takes Python's stack at each
    allocation and free while enabled, some 10 µs each. Resets none of LibTorch's statistics. ``copy.deepcopy`` gives the same
    profiler; to pickle what it recorded, take ``to_json()``.
    """

    _instead = "pickle its to_json()"

    def __init__(self, *functions: Callable[..., Any], target_gpu: Any = None) -> None:
        self._handle = _library.Handle("lines")
        self._functions: List[Any] = []
        if target_gpu is not None:
            set_target_gpu(target_gpu)
        for function in functions:
            self.add_function(function)

    def add_function(self, function: Callable[..., Any]) -> "LineProfiler":
        """Adds a function, method or decorated function."""
        plain = _plain(function)
        code = getattr(plain, "__code__", None)
        if code is None:
            raise TypeError(f"memledger: {function!r} is no Python function: its lines cannot be profiled")
        if code in self._functions:
            return self
        try:
            source, first = inspect.getsourcelines(plain)
        except (OSError, TypeError):
            last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
            source, first = [""] * (last - code.co_firstlineno + 1), code.co_firstlineno
        _library.call(
            "lines_add_function",
            self._handle,
            _library.encode(_name(plain)),
            _library.encode(code.co_name),
            _library.encode(code.co_filename),
            max(first, 1),
            _library.encode("".join(source).rstrip("\n")),
        )
        self._functions.append(code)
        return self

    def enable(self) -> None:
        """Records until disable(); calls are counted."""
        _library.call("lines_enable", self._handle)

    def disable(self) -> None:
        _library.call("lines_disable", self._handle)

    def clear(self) -> None:
        """Forgets what was recorded."""
        _library.call("lines_clear", self._handle)

    def __enter__(self) -> "LineProfiler":
        self.enable()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.disable()

    def display(self, func: _Which = None, columns: Iterable[str] = ()) -> Any:
        """Shows the tables: in a notebook as HTML, else on standard output. ``columns`` are names of
        ``torch.cuda.memory_stats()``, and line.allocated, line.freed, line.left."""
        shown = sys.modules.get("IPython.display")
        shell = sys.modules["IPython"].get_ipython() if shown is not None and "IPython" in sys.modules else None
        if shell is not None and hasattr(shell, "kernel"):
            page = self.to_html(func, columns)
            return shown.HTML(f'<iframe width="100%" height="480" srcdoc="{html.escape(page)}"></iframe>')  # type: ignore
        self.print_stats(func, columns)
        return None

    def print_stats(self, func: _Which = None, columns: Iterable[str] = (), stream: Optional[TextIO] = None) -> None:
        """Writes the tables to a stream."""
        print(self._text("text", func, columns), end="", file=stream or sys.stdout)

    def to_json(self, columns: Iterable[str] = ()) -> str:
        return self._text("json", None, columns)

    def to_html(self, func: _Which = None, columns: Iterable[str] = ()) -> str:
        return self._text("html", func, columns)

    def _text(self, form: str, func: _Which, columns: Iterable[str]) -> str:
        wanted = [func] if func is None or isinstance(func, str) or callable(func) else list(func)
        names = ["" if one is None else one if isinstance(one, str) else _name(one) for one in wanted]
        if isinstance(columns, str):
            columns = [columns]
        chosen = _library.encode("\n".join(columns))
        return "".join(
            _library.ask("lines_text", self._handle, form.encode(), _library.encode(name), chosen) for name in names
        )


_global_profiler: Optional[LineProfiler] = None
_global_columns: Sequence[str] = ()


def _print_global() -> None:
    if _global_profiler is not None and _global_profiler._functions:
        _global_profiler.print_stats(columns=_global_columns)


def _profiled(function: _Function, profiler: Callable[[], LineProfiler], after: Callable[[], None]) -> _Function:
    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        now = profiler()
        now.add_function(function)
        now.enable()
        try:
            return function(*arguments, **keywords)
        finally:
            now.disable()
            after()

    return run  # type: ignore


@overload
def profile(func: _Function, columns: Sequence[str] = ()) -> _Function: ...


@overload
def profile(func: None = None, columns: Sequence[str] = ()) -> Callable[[_Function], _Function]: ...


def profile(func: Optional[_Function] = None, columns: Sequence[str] = ()) -> Any:
    """A decorator: profiles the function. The tables of all such functions are printed at the program's end, and on
    Ctrl-C."""
    if func is None:
        return functools.partial(profile, columns=columns)
    global _global_columns
    if columns:
        _global_columns = tuple(columns)

    def profiler() -> LineProfiler:
        global _global_profiler
        if _global_profiler is None:
            _global_profiler = LineProfiler()
            atexit.register(_print_global)
        return _global_profiler

    return _profiled(func, profiler, lambda: None)


def profile_every(output_interval: int = 1, enable: bool = True, columns: Sequence[str] = ()) -> Callable[[_Function], _Function]:
    """A decorator: profiles the function, and prints its table every so many runs."""
    if output_interval < 1:
        raise ValueError(f"memledger: profile_every({output_interval}): the interval is a number of runs, 1 or more")

    def decorate(function: _Function) -> _Function:
        if not enable:
            return function
        profiler = LineProfiler()
        runs = 0

        def after() -> None:
            nonlocal runs
            runs += 1
            if runs % output_interval == 0:
                profiler.print_stats(columns=columns)

        return _profiled(function, lambda: profiler, after)

    return decorate


def clear_global_line_profiler() -> None:
    """Makes ``profile`` forget what it recorded, and its functions until they run again."""
    global _global_profiler
    if _global_profiler is not None:
        atexit.unregister(_print_global)
        _global_profiler = None
