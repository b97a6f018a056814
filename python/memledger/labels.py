"""label(): what code makes inside has this label."""

import contextvars
import ctypes
import functools
import inspect
import sys
import threading
from typing import Any, Callable, List, Optional, Tuple

from . import _library


class _Scope:
    """A label that was entered, on one thread."""

    def __init__(self, text: bytes, thread: object) -> None:
        self.text = text
        self.thread = thread
        self.left = False


class _Thread(threading.local):
    """What C++ has of the calling thread's labels."""

    def __init__(self) -> None:
        self.key = object()  # numbers of threads come again
        self.shown: List[Tuple[_Scope, Any]] = []
        self.is_busy = False
        self.is_stale = False


_thread = _Thread()
# Those of a context, outermost first. Tasks inherit them from what started them.
_scopes: "contextvars.ContextVar[Tuple[_Scope, ...]]" = contextvars.ContextVar("memledger.labels", default=())


def _show(scopes: Tuple[_Scope, ...]) -> None:
    """Has C++ know the thread's labels of a context: leaves what it has not, and enters what is new."""
    thread = _thread
    wanted = [scope for scope in scopes if scope.thread is thread.key and not scope.left]
    common = 0
    for (scope, _), other in zip(thread.shown, wanted):
        if scope is not other:
            break
        common += 1
    while len(thread.shown) > common:
        _library.plain("leave_label", thread.shown.pop()[1])
    for scope in wanted[common:]:
        entered = ctypes.c_void_p()
        _library.call("enter_label", scope.text, ctypes.byref(entered))
        thread.shown.append((scope, entered))


def _follow(scopes: Callable[[], Tuple[_Scope, ...]]) -> None:
    """The same; the collector may close a generator meanwhile, and with it a label."""
    thread = _thread
    thread.is_stale = True
    if thread.is_busy:
        return
    thread.is_busy = True
    try:
        while thread.is_stale:
            thread.is_stale = False
            _show(scopes())
    finally:
        thread.is_busy = False


def _running_loop() -> Any:
    asyncio = sys.modules.get("asyncio.events")
    return None if asyncio is None else asyncio._get_running_loop()


@functools.lru_cache(maxsize=None)
def _follow_asyncio() -> None:
    """From now on each step of a task has the labels of its context. Python tells nobody of a switch of contexts."""
    handle = sys.modules["asyncio.events"].Handle
    run = handle._run

    @functools.wraps(run)
    def run_with_labels(self: Any) -> Any:
        context = self._context
        _follow(lambda: context.get(_scopes, ()))
        try:
            return run(self)
        finally:
            _follow(_scopes.get)

    handle._run = run_with_labels


def _check_loop(caller: Any) -> None:
    loop = _running_loop()
    if loop is not None and isinstance(loop, sys.modules["asyncio.base_events"].BaseEventLoop):
        _follow_asyncio()
    elif caller.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        what = "none of them runs here" if loop is None else f"this is one of {type(loop).__module__}"
        raise _library.Error(
            f"memledger: label() in a coroutine follows asyncio's own event loops, and {what}: "
            "put it into a function that the coroutine calls"
        )


class label:
    """Labels what is made inside; labels nest: ``epoch 3/encoder``.

        with memledger.label("epoch 3"):
            train()

    Also decorates a function or an ``async def``. A label is the entering thread's, and its context's: while a task of
    asyncio awaits, other tasks do not have it; tasks started inside inherit it. A generator that yields inside keeps
    its label on the thread until it goes on; if another thread closes it, the label goes with the thread's next label
    or step of asyncio. Each ``label()`` is entered once at a time. Past 65 536 different paths new ones read
    ``(too many names)``.
    """

    def __init__(self, text: str) -> None:
        encoded = _library.encode(text, "a label")
        if encoded is None:
            raise TypeError("memledger: a label is text, not None")
        self._text: bytes = encoded
        self._scope: Optional[_Scope] = None

    def __enter__(self) -> None:
        if self._scope is not None:
            raise RuntimeError("memledger: this label is entered already: call label() for each scope")
        _check_loop(sys._getframe(1))
        self._scope = scope = _Scope(self._text, _thread.key)
        _scopes.set((*_scopes.get(), scope))
        try:
            _follow(_scopes.get)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *exception: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            return
        present = _scopes.get()
        if scope in present:
            _scopes.set(tuple(one for one in present if one is not scope))
        else:  # another context, or another thread
            scope.left = True
        if scope.thread is _thread.key:
            _follow(_scopes.get)

    def __call__(self, function: Any) -> Any:
        text = self._text.decode("utf-8", "surrogateescape")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("memledger: label() decorates no generator: put `with label(...)` around what it makes")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*arguments: Any, **keywords: Any) -> Any:
                with label(text):
                    return await function(*arguments, **keywords)

            return awaited

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            with label(text):
                return function(*arguments, **keywords)

        return called
