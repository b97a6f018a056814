"""What a device holds, and a promise about other threads."""

import contextlib
import ctypes
import dataclasses
from typing import Any, Iterator

from . import _library


@dataclasses.dataclass(frozen=True)
class Counters:
    """A device's storages in bytes as requested, and their number."""

    current_bytes: int
    peak_bytes: int
    allocated_bytes: int
    freed_bytes: int
    current_count: int
    peak_count: int
    allocated_count: int
    freed_count: int


def counters(device: Any = None) -> Counters:
    """Returns a device's counters; ``None``: cuda:0 if there is one, else the CPU's."""
    values = _library.CounterValues()
    _library.call("read_counters", _library.device_text(device), ctypes.byref(values))
    return Counters(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Counters)})


def reset_peak(device: Any = None) -> None:
    """Counts memledger's own peaks of a device anew. LibTorch's statistics stay."""
    _library.call("reset_peak", _library.device_text(device))


@contextlib.contextmanager
def training_paused(promised: bool = True) -> Iterator[None]:
    """Promises that no other thread touches gradients or optimizer states meanwhile.

    Inside, this thread's reports read ``.grad`` as it is, beside other threads as well. Without it, where the process
    has other threads, they know the gradients that ``backward()`` made, and list the others as not read. A broken
    promise is a use after free.
    """
    if promised:
        _library.plain("training_paused", 1)
    try:
        yield
    finally:
        if promised:
            _library.plain("training_paused", 0)
