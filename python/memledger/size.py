"""modelsize(): what parameters and the results of a forward pass take, layer by layer."""

import contextlib
import ctypes
import json
from typing import Any, Dict, Iterator, Optional

import torch

from . import _library
from ._modules import Mirror


class ModelSize:
    """The figures of one pass. Bytes; ``to_json()`` has the layers as well."""

    def __init__(self, text: str, as_json: str) -> None:
        self._text, self._json = text, as_json
        self._values: Dict[str, Any] = json.loads(as_json)

    @property
    def parameter_bytes(self) -> int:
        return int(self._values["parameter_bytes"])

    @property
    def intermediate_bytes(self) -> int:
        return int(self._values["intermediate_bytes"])

    @property
    def saved_bytes(self) -> int:
        """What autograd keeps after the pass."""
        return int(self._values["saved_bytes"])

    def to_json(self) -> str:
        return self._json

    def to_dict(self) -> Dict[str, Any]:
        return dict(json.loads(self._json))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"ModelSize(parameter_bytes={self.parameter_bytes}, intermediate_bytes={self.intermediate_bytes}, saved_bytes={self.saved_bytes})"


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return type(value)((key, _copied(one)) for key, one in value.items())
    if isinstance(value, tuple):
        parts = [_copied(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value


@contextlib.contextmanager
def _mode(model: torch.nn.Module, training: Optional[bool]) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    try:
        if training is not None:
            model.train(training)
        yield
    finally:
        for module, was in before:
            module.training = was


def modelsize(
    model: torch.nn.Module,
    *inputs: Any,
    type_size: Optional[int] = None,
    training: Optional[bool] = None,
    show: bool = True,
    **keywords: Any,
) -> ModelSize:
    """Calls ``model(*inputs, **keywords)`` once, gradients on, and prints and returns what it takes.

    ``type_size``: bytes of an element, in place of each tensor's own; as in Pytorch-Memory-Utils an integer behind one
    tensor is it, too. Afterwards everything is as before: inputs are copied, buffers, random numbers and training mode
    are put back, nothing of the pass stays alive.
    """
    if len(inputs) == 2 and type_size is None and isinstance(inputs[0], torch.Tensor) and type(inputs[-1]) is int:
        inputs, type_size = inputs[:1], inputs[-1]
    if type_size is not None and type_size < 1:
        raise _library.Error(f"memledger: type_size is {type_size}; it is the bytes of an element, 1 or more")
    mirror = Mirror(model)
    copies, keyword_copies = _copied(inputs), _copied(keywords)
    given, count = _library.addresses_of(_library.tensors_in([copies, keyword_copies]))
    with _mode(model, training), mirror.filled():
        run = ctypes.c_void_p()
        _library.call("size_begin", mirror.handle, type_size or 0, given, count, ctypes.byref(run))
        try:
            outputs = model(*copies, **keyword_copies)
            found = _library.tensors_in(outputs)
            addresses, count = _library.addresses_of(found)
        except BaseException:
            _library.plain("size_free", run)
            raise
        size = ModelSize(*_library.ask_two("size_end", run, addresses, count))
    if show:
        print(size, end="")
    return size
