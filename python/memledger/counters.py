"""What a device holds."""

import ctypes
import dataclasses
from typing import Any

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
