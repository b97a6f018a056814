"""LineProfiler, profile and profile_every: which line of a function makes the memory grow."""

import atexit
import contextlib
import functools
import html
import inspect
import itertools
import sys
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, TextIO, TypeVar, Union, overload

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


def _code(function: Any) -> Any:
    code = getattr(_plain(function), "__code__", None)
    if code is None:
        raise TypeError(f"memledger: {function!r} is no Python function: its lines cannot be profiled")
    return code


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
        code = _code(function)
        if code in self._functions:
            return self
        try:
            source, first = inspect.getsourcelines(plain)
        except (OSError, TypeError):
            last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
            source, first = [""] * (last - code.co_firstlineno + 1), code.co_firstlineno
        with self._handle.lock:
            if code in self._functions:
                return self
            _library.call(
                "lines_add_function",
                self._handle,
                _library.encode(_name(plain)),
                _library.encode(code.co_name),
                _library.encode(code.co_filename),
                max(first, 1),
                _library.encode("".join(source).rstrip("\n"), "the source"),
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
        _library.write(self._text("text", func, columns), stream)

    def to_json(self, columns: Iterable[str] = ()) -> str:
        return self._text("json", None, columns)

    def to_html(self, func: _Which = None, columns: Iterable[str] = ()) -> str:
        """Returns one page with the tables of all functions, or of those that are named."""
        return self._text("html", func, columns)

    def _text(self, form: str, func: _Which, columns: Iterable[str]) -> str:
        wanted = [func] if func is None or isinstance(func, str) or callable(func) else list(func)
        names = ["" if one is None else one if isinstance(one, str) else _name(one) for one in wanted]
        if form == "html":
            names = ["\n".join(names)]  # one page
        chosen = _columns(columns)
        return "".join(
            _library.ask("lines_text", self._handle, form.encode(), _library.encode(name), chosen) for name in names
        )


def _columns(columns: Iterable[str]) -> Optional[bytes]:
    return _library.encode("\n".join([columns] if isinstance(columns, str) else columns), "a column")


_global_profiler: Optional[LineProfiler] = None
_global_columns: Sequence[str] = ()


def _print_at_ease(profiler: LineProfiler, columns: Iterable[str]) -> None:
    """Prints the tables; if that fails, says so. The program's own result must not be lost by it."""
    try:
        profiler.print_stats(columns=columns)
    except Exception as error:
        with contextlib.suppress(Exception):
            _library.write(f"memledger: the line profile could not be printed: {error}\n", sys.stderr)


def _print_global() -> None:
    if _global_profiler is not None and _global_profiler._functions:
        _print_at_ease(_global_profiler, _global_columns)


@contextlib.contextmanager
def _recording(function: Any, profiler: Callable[[], LineProfiler], after: Callable[[], None]) -> Iterator[None]:
    now = profiler()
    now.add_function(function)
    now.enable()
    try:
        yield
    finally:
        now.disable()
        after()


_Recording = Callable[[], "contextlib.AbstractContextManager[None]"]


def _as_function(inner: Any, recording: _Recording) -> Any:
    def run(*arguments: Any, **keywords: Any) -> Any:
        with recording():
            return inner(*arguments, **keywords)

    return run


def _as_generator(inner: Any, recording: _Recording) -> Any:
    def run(*arguments: Any, **keywords: Any) -> Any:
        with recording():
            return (yield from inner(*arguments, **keywords))

    return run


def _as_coroutine(inner: Any, recording: _Recording) -> Any:
    async def run(*arguments: Any, **keywords: Any) -> Any:
        with recording():
            return await inner(*arguments, **keywords)

    return run


def _as_asynchronous_generator(inner: Any, recording: _Recording) -> Any:
    async def run(*arguments: Any, **keywords: Any) -> Any:
        with recording():
            made = inner(*arguments, **keywords)
            try:
                value = await made.__anext__()
                while True:
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await made.aclose()
                        raise
                    except BaseException as error:
                        value = await made.athrow(error)
                    else:
                        value = await made.asend(sent)
            except StopAsyncIteration:
                pass

    return run


def _profiled(function: _Function, profiler: Callable[[], LineProfiler], after: Callable[[], None]) -> _Function:
    """The function as one of the same kind. What is suspended records on, for other code runs in no line of it."""
    _code(function)
    make = _as_function
    if inspect.iscoroutinefunction(function):
        make = _as_coroutine
    elif inspect.isasyncgenfunction(function):
        make = _as_asynchronous_generator
    elif inspect.isgeneratorfunction(function):
        make = _as_generator
    run: Any = make(function, lambda: _recording(function, profiler, after))
    return functools.wraps(function)(run)  # type: ignore


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
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        LineProfiler()._text("text", None, columns)  # wrong columns are refused now
        _global_columns = columns

    def profiler() -> LineProfiler:
        global _global_profiler
        if _global_profiler is None:
            _global_profiler = LineProfiler()
            atexit.register(_print_global)
        return _global_profiler

    return _profiled(func, profiler, lambda: None)


def profile_every(output_interval: int = 1, enable: bool = True, columns: Sequence[str] = ()) -> Callable[[_Function], _Function]:
    """A decorator: profiles the function, and prints its table every so many runs."""
    interval = _library.integer(output_interval, "the interval of profile_every()", bits=64)
    if interval < 1:
        raise ValueError(f"memledger: profile_every({interval}): the interval is a number of runs, 1 or more")
    columns = [columns] if isinstance(columns, str) else list(columns)
    LineProfiler()._text("text", None, columns)  # wrong columns are refused now

    def decorate(function: _Function) -> _Function:
        if not enable:
            return function
        profiler = LineProfiler()
        runs = itertools.count(1)

        def after() -> None:
            if next(runs) % interval == 0:
                _print_at_ease(profiler, columns)

        return _profiled(function, lambda: profiler, after)

    return decorate


def clear_global_line_profiler() -> None:
    """Makes ``profile`` forget what it recorded, and its functions until they run again."""
    global _global_profiler
    if _global_profiler is not None:
        atexit.unregister(_print_global)
        _global_profiler = None
