"""modelsize(): what parameters and the results of a forward pass take, layer by layer."""

import contextlib
import copy
import ctypes
import dataclasses
import json
import random
import sys
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


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _copied(value: Any) -> Any:
    """The value with copies of its tensors; containers keep their types, as what a class has made of itself."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, tuple):
        parts = [_copied(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, (set, frozenset)):
        return type(value)(_copied(one) for one in value)
    # A defaultdict's constructor, for one, takes something else first.
    made: Any = copy.copy(value) if isinstance(value, (dict, list)) or _is_dataclass(value) else value
    if isinstance(value, dict):
        for key, one in value.items():
            made[key] = _copied(one)
    elif isinstance(value, list):
        made[:] = [_copied(one) for one in value]
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, _copied(getattr(value, field.name)))
    return made


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    """Puts back the state of every generator that a program has without making one: torch's, Python's, NumPy's."""
    numpy = sys.modules.get("numpy.random")
    of_python, of_numpy = random.getstate(), numpy.get_state() if numpy is not None else None
    of_cpu = torch.get_rng_state()
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_cuda = torch.cuda.get_rng_state_all() if has_cuda else []
    try:
        yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.set_state(of_numpy)
        torch.set_rng_state(of_cpu)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)


def _is_lazy(model: torch.nn.Module) -> bool:
    return any(torch.nn.parameter.is_lazy(one) for one in [*model.parameters(), *model.buffers()])


def _make_parameters(model: torch.nn.Module, inputs: Any, keywords: Any) -> None:
    """Runs a pass for the parameters of lazy modules, and puts back what it changed in the other buffers."""
    buffers = [(one, one.clone()) for one in model.buffers() if not torch.nn.parameter.is_lazy(one)]
    with torch.no_grad():
        try:
            with _mode(model, False):
                model(*_copied(inputs), **_copied(keywords))
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


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
    tensor is it, too. Afterwards everything is as before: inputs are copied, buffers, random numbers (torch's, Python's
    and NumPy's) and training mode are put back, nothing of the pass stays alive. Only the parameters of lazy modules are
    made, by a pass before.
    """
    if len(inputs) == 2 and type_size is None and isinstance(inputs[0], torch.Tensor) and type(inputs[-1]) is int:
        inputs, type_size = inputs[:1], inputs[-1]
    if type_size is not None:
        type_size = _library.integer(type_size, "type_size", bits=64)
        if type_size < 1:
            raise _library.Error(f"memledger: type_size is {type_size}; it is the bytes of an element, 1 or more")
    mirror = Mirror(model)
    with _random_numbers():
        if _is_lazy(model):
            _make_parameters(model, inputs, keywords)
        size = _measured(mirror, model, inputs, keywords, type_size, training)
    if show:
        _library.write(str(size))
    return size


def _measured(
    mirror: Mirror, model: torch.nn.Module, inputs: Any, keywords: Any, type_size: Optional[int], training: Optional[bool]
) -> ModelSize:
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
        return ModelSize(*_library.ask_two("size_end", run, addresses, count))
