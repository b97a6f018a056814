"""MemoryProfiler: what each iteration of a training loop takes."""

import os
from typing import Any, Optional, TextIO, Union

import torch

from . import _library
from ._modules import Mirror
from .counters import training_paused as promise


class MemoryProfiler(_library.OfThisProcess):
    """Prints what each iteration takes: the cache, feature maps, weights, their gradients.

        profiler = memledger.memory_profiler(model, print_period=5, csv=True)
        for batch in loader:
            train(batch)
            profiler.record_stats()      # before the gradients are dropped
        profiler.epoch_end()

    The CSV is in ``csv_folder``, with exact bytes. ``device``: that of the first parameter. Holds nothing alive.
    ``copy.deepcopy`` gives the same profiler; it cannot be pickled. Thread-safe: methods wait for each
    other.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        print_period: int = 1,
        csv: bool = False,
        *,
        device: Any = None,
        csv_folder: Union[str, "os.PathLike[str]"] = "memory_csv_data",
        file: Optional[TextIO] = None,
    ) -> None:
        self._mirror = Mirror(model)
        self._file = file
        with self._mirror.filled():
            self._handle = _library.Handle(
                "profiler",
                self._mirror.handle,
                _library.integer(print_period, "print_period"),
                bool(csv),
                _library.encode_path(csv_folder, "csv_folder"),
                _library.device_text(device),
            )

    def record_stats(self, *, training_paused: bool = False) -> None:
        """Ends an iteration, and prints it if it is a ``print_period``-th one.

        ``training_paused`` promises what ``memledger.training_paused()`` does.
        """
        with promise(training_paused):
            self._print("profiler_record_stats")

    def epoch_end(self) -> None:
        """Ends an epoch: iterations count from 1 again."""
        self._print("profiler_epoch_end")

    def csv_path(self) -> str:
        """Returns the absolute path of the CSV file; empty without one."""
        return _library.ask("profiler_csv_path", self._handle)

    def _print(self, function: str) -> None:
        with self._handle.lock, self._mirror.filled():
            text = _library.ask(function, self._handle)
        if text:
            _library.write(text, self._file)


memory_profiler = MemoryProfiler
