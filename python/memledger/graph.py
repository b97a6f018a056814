"""What the autograd graph holds for the backward pass."""

import ctypes
import json
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from . import _library
from ._modules import Mirror


class SavedTensor:
    """One saved tensor as a value: memledger holds no tensor. ``node`` is what saved it, ``slot`` its name there."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self._values = values
        self.node: str = values["node"]
        self.slot: str = values["slot"]
        shape = values.get("shape")
        self.shape: Optional[Tuple[int, ...]] = None if shape is None else torch.Size(shape)
        self.storage_bytes: Optional[int] = values.get("storage_bytes")
        self.role: str = values["role"]

    @property
    def dtype(self) -> Optional[torch.dtype]:
        name = self._values.get("dtype")
        return None if name is None else getattr(torch, str(name).rpartition(".")[2], None)

    @property
    def device(self) -> Optional[torch.device]:
        name = self._values.get("device")
        return None if name is None else torch.device(name)

    def size(self) -> Optional[Tuple[int, ...]]:
        return self.shape

    def numel(self) -> int:
        """The number of elements; 0: unknown."""
        count = 1 if self.shape is not None else 0
        for extent in self.shape or ():
            count *= extent
        return count

    def element_size(self) -> int:
        """Bytes of an element; 0: unknown."""
        return 0 if self.dtype is None else self.dtype.itemsize

    def to_dict(self) -> Dict[str, Any]:
        return dict(self._values)

    def __repr__(self) -> str:
        return f"SavedTensor({self.node}.{self.slot}, {self.shape}, {self.dtype}, {self.storage_bytes} bytes)"


class SavedTensors(_library.OfThisProcess):
    """The account of a graph. It does not change: ``copy.deepcopy`` gives the same object. To pickle it, take
    ``to_dict()``."""

    _instead = "pickle its to_dict() or to_json()"

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @property
    def total_bytes(self) -> int:
        """The bytes of the activations, each storage once."""
        return int(_library.plain("saved_total_bytes", self._handle))

    @property
    def complete(self) -> bool:
        """False: nodes could not be read, so ``total_bytes`` is a lower bound."""
        return bool(_library.plain("saved_is_complete", self._handle))

    def rows(self) -> List[SavedTensor]:
        """Returns every saved tensor, in the order of the walk from the roots."""
        return [SavedTensor(row) for row in self.to_dict()["rows"]]

    def to_json(self) -> str:
        return self._text("json")

    def to_dict(self) -> Dict[str, Any]:
        return dict(json.loads(self.to_json()))

    def to_csv(self) -> str:
        return self._text("csv")

    def to_dot(self) -> str:
        """Returns a drawing for Graphviz."""
        return self._text("dot")

    def __str__(self) -> str:
        return self._text("text")

    def _text(self, form: str) -> str:
        return _library.ask("saved_text", self._handle, form.encode())


class _SavedHandle(_library.Handle):
    def __init__(self, function: str, *arguments: Any) -> None:
        self._make("saved", function, *arguments)


def saved_for_backward(
    roots: Union[torch.Tensor, Sequence[torch.Tensor]],
    net: Optional[torch.nn.Module] = None,
    *,
    exclude: Sequence[torch.Tensor] = (),
    inputs: Sequence[torch.Tensor] = (),
    device: Any = None,
    cuda_blocks: bool = False,
) -> SavedTensors:
    """Returns everything that the graphs of the roots hold. The net's parameters and buffers, ``inputs`` and ``exclude``
    are no activations. ``cuda_blocks`` counts blocks of 512 bytes. Runs no hook, computes nothing, keeps no tensor."""
    many = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    addresses, count = _library.addresses_of(many, "a root")
    excluded, excluded_count = _library.addresses_of(exclude)
    given, given_count = _library.addresses_of(inputs)
    options = _library.SavedOptions(
        excluded, excluded_count, given, given_count, _library.device_text(device), bool(cuda_blocks)
    )
    if net is None:
        return SavedTensors(_SavedHandle("saved_new", addresses, count, None, ctypes.byref(options)))
    mirror = Mirror(net)
    with mirror.filled():
        return SavedTensors(_SavedHandle("saved_new", addresses, count, mirror.handle, ctypes.byref(options)))


def memory_for_backward(
    net: torch.nn.Module,
    loss: torch.Tensor,
    *,
    exclude: Sequence[torch.Tensor] = (),
    inputs: Sequence[torch.Tensor] = (),
    device: Any = None,
    cuda_blocks: bool = False,
) -> int:
    """Returns the bytes that the graph holds for the backward pass, each storage once, without the net's parameters and
    buffers. The input counts unless ``inputs`` names it."""
    return saved_for_backward(
        loss, net, exclude=exclude, inputs=inputs, device=device, cuda_blocks=cuda_blocks
    ).total_bytes


def get_tensors_saved_for_backward(net: torch.nn.Module, output: torch.Tensor, duplicate: bool = True) -> Dict[Any, Any]:
    """Returns what the function of that name does, with a SavedTensor where that has a tensor: ``{storage: [saved,
    operator]}``, one per storage, or ``{saved: operator}`` if ``duplicate`` is false."""
    mirror = Mirror(net)
    with mirror.filled():
        handle = _SavedHandle("saved_by_storage", _library.address_of(output, "the output"), mirror.handle, bool(duplicate))
    rows = SavedTensors(handle).rows()
    if not duplicate:
        return {row: row.node for row in rows}
    return {(row.to_dict().get("storage") or number): [row, row.node] for number, row in enumerate(rows)}
