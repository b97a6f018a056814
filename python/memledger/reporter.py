"""MemReporter: who holds the memory."""

import ctypes
from typing import Any, Optional, TextIO

import torch

from . import _library
from ._modules import Registered
from .counters import training_paused as promise


class MemReporter(_library.OfThisProcess):
    """Lists who holds the memory of each device: parameters, gradients, optimizer state, inputs, what autograd saved,
    and by operator whatever has no name.

        reporter = memledger.MemReporter(model)
        reporter.add_optimizer(optimizer).report(verbose=True)

    Holds nothing alive: names end with their modules and tensors. Methods raise ``memledger.Error``. ``copy.deepcopy``
    of one, or of a model that has one, gives the same reporter; it cannot be pickled. Thread-safe: methods wait for each
    other.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None) -> None:
        self._handle = _library.Handle("reporter")
        self._registered = Registered("reporter", self._handle)
        if model is not None:
            self.add_module("", model)

    def add_module(self, prefix: str, module: torch.nn.Module) -> "MemReporter":
        """Names parameters, buffers and gradients ``prefix.path``, or ``path`` if the prefix is empty."""
        self._registered.add_module(prefix, module)
        return self

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> "MemReporter":
        """Names the optimizer's state ``Adam.weight.exp_avg``. May come before the first step."""
        self._registered.add_optimizer(optimizer)
        return self

    def add_tensor(self, name: str, tensor: torch.Tensor) -> "MemReporter":
        """Names one tensor."""
        _library.call("reporter_add_tensor", self._handle, _library.encode(name), _library.address_of(tensor), 0)
        return self

    def add_input(self, name: str, tensor: torch.Tensor) -> "MemReporter":
        """Names one tensor, with the role of an input."""
        _library.call("reporter_add_tensor", self._handle, _library.encode(name), _library.address_of(tensor), 1)
        return self

    def add_graph(self, loss: torch.Tensor) -> "MemReporter":
        """Finds what the graph of ``loss`` holds for the backward pass, while ``loss`` lives."""
        _library.call("reporter_add_graph", self._handle, _library.address_of(loss, "the loss"))
        return self

    def remove(self, what: Any) -> "MemReporter":
        """Forgets a module's prefix, a tensor's name, or an optimizer."""
        self._registered.remove(what)
        return self

    def report(
        self,
        verbose: bool = False,
        device: Any = None,
        *,
        file: Optional[TextIO] = None,
        max_rows: Optional[int] = None,
        sort: str = "bytes",
        group: Optional[str] = None,
        training_paused: bool = False,
    ) -> None:
        """Prints a table of each device, or of one. ``verbose``: all rows, each storage by itself, and who shares which.
        ``sort``: bytes, size, name or birth. ``group``: alike, the default without ``verbose``, nothing, role, module or
        operator.

        ``training_paused`` promises what ``memledger.training_paused()`` does.
        """
        if group is None:
            group = "nothing" if verbose else "alike"
        with promise(training_paused):
            text = self._text("text", verbose, device, max_rows, sort, group)
        _library.write(text, file)

    def report_peak(self, device: Any = None, verbose: bool = False, *, file: Optional[TextIO] = None) -> None:
        """Prints who was alive when the device's bytes were highest."""
        group = "nothing" if verbose else "alike"
        _library.write(self._text("text", verbose, device, None, "bytes", group, of_peak=True), file)

    def to_json(self, device: Any = None) -> str:
        """Returns the report as docs/formats.md describes it, with every row."""
        return self._text("json", True, device, None, "bytes", "alike")

    def to_csv(self, device: Any = None) -> str:
        return self._text("csv", True, device, None, "bytes", "alike")

    def to_html(self, device: Any = None) -> str:
        """Returns a page with a treemap."""
        return self._text("html", True, device, None, "bytes", "alike")

    def why(self, tensor_or_name: Any) -> str:
        """Says who keeps a tensor's storage alive. A name is one from a report: weight, Tensor7."""
        by_name = isinstance(tensor_or_name, str)
        tensor = None if by_name else _library.address_of(tensor_or_name)
        name = _library.encode(tensor_or_name) if by_name else None
        with self._registered.named():
            return _library.ask("reporter_why", self._handle, tensor, name, b"text")

    def _text(
        self,
        form: str,
        verbose: bool,
        device: Any,
        max_rows: Optional[int],
        sort: str,
        group: str,
        of_peak: bool = False,
    ) -> str:
        options = _library.ReportOptions(
            bool(verbose),
            _library.device_text(device),
            -1 if max_rows is None else _library.integer(max_rows, "max_rows", bits=64, least=0),
            _library.encode(sort, "sort"),
            _library.encode(group, "group"),
            of_peak,
        )
        with self._registered.named():
            return _library.ask("reporter_text", self._handle, form.encode(), ctypes.byref(options))
