"""MemTracker: what changed between two lines."""

import ctypes
import os
import sys
from typing import Any, Optional, Union

import torch

from . import _library
from ._modules import Registered
from .counters import training_paused as promise


class MemTracker(_library.OfThisProcess):
    """Writes a log of the tensors that came and went between two lines of a program.

        tracker = memledger.MemTracker()     # ./30-Apr-21-20:25:29-gpu_mem_track.txt
        tracker.track()
        loss.backward()
        tracker.track("after backward")

    ``detail=False`` writes the ``At`` lines only. ``path`` is the folder of the log. ``device``: a torch.device, its
    text, or a GPU's number; by default cuda:0 if there is one, else the CPU. Holds nothing alive. ``copy.deepcopy`` of one, or of
    a model that has one, gives the same tracker with the same log; it cannot be pickled. Thread-safe: methods wait for
    each other.
    """

    def __init__(
        self,
        detail: bool = True,
        path: Union[str, "os.PathLike[str]"] = "",
        verbose: bool = False,
        device: Any = None,
        *,
        file_name: str = "",
        colons: bool = True,
        echo: bool = False,
    ) -> None:
        options = _library.TrackerOptions(
            bool(detail),
            bool(verbose),
            bool(colons),
            bool(echo),
            _library.encode_path(path),
            _library.encode_path(file_name, "the file's name"),
            _library.device_text(device),
        )
        self._handle = _library.Handle("tracker", ctypes.byref(options))
        self._registered = Registered("tracker", self._handle)

    def add_module(self, prefix: str, module: torch.nn.Module) -> "MemTracker":
        """Names parameters, buffers and gradients ``prefix.path``, or ``path`` if the prefix is empty."""
        self._registered.add_module(prefix, module)
        return self

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> "MemTracker":
        """Names the optimizer's state ``Adam.weight.exp_avg``."""
        self._registered.add_optimizer(optimizer)
        return self

    def add_tensor(self, name: str, tensor: torch.Tensor) -> "MemTracker":
        """Names one tensor."""
        _library.call("tracker_add_tensor", self._handle, _library.encode(name), _library.address_of(tensor))
        return self

    def remove(self, what: Any) -> "MemTracker":
        """Forgets a module's prefix, a tensor's name, or an optimizer."""
        self._registered.remove(what)
        return self

    def track(self, label: str = "", *, training_paused: bool = False) -> str:
        """Writes what changed since the last call to the log, and returns it.

        ``training_paused`` promises what ``memledger.training_paused()`` does.
        """
        caller = sys._getframe(1)
        code = caller.f_code
        with promise(training_paused), self._registered.named():
            return _library.ask_two(
                "tracker_track",
                self._handle,
                _library.encode(label, "a label"),
                _library.encode(code.co_filename),
                _library.encode(code.co_name),
                caller.f_lineno,
            )[0]

    def log_path(self) -> str:
        """Returns the log's absolute path."""
        return _library.ask("tracker_log_path", self._handle)

    def clear_cache(self) -> None:
        """Collects garbage, and gives unused memory back to the driver and to the system."""
        import gc

        gc.collect()
        _library.call("tracker_clear_cache", self._handle)

    def print_all_gpu_tensor(self, file: Optional[Any] = None) -> None:
        """Prints one line per live storage of the device, oldest first; to a stream, or appends them to a file."""
        with self._registered.named():
            text = _library.ask("tracker_tensors", self._handle)
        if isinstance(file, (str, bytes, os.PathLike)):
            with open(file, "a", encoding="utf-8") as opened:
                opened.write(text)
        else:
            _library.write(text, file)

    def get_tensor_usage(self) -> float:
        """Returns MiB of live tensors on the device; NaN: unknown."""
        return self._usage()[0]

    def get_allocate_usage(self) -> float:
        """Returns MiB that LibTorch's allocator has given out; NaN: unknown."""
        return self._usage()[1]

    def _usage(self) -> "tuple[float, float]":
        tensors, allocated = ctypes.c_double(), ctypes.c_double()
        _library.call("tracker_usage", self._handle, ctypes.byref(tensors), ctypes.byref(allocated))
        return tensors.value, allocated.value
