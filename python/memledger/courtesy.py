"""Courtesy: GPU memory lent back for a while."""

import ctypes
import os
from typing import Any, Optional, Union

import torch

from . import _library
from ._modules import parts_of


class Courtesy(_library.OfThisProcess):
    """Moves the storages of live tensors to host memory or a file, in place under the tensors, and brings them back bit
    for bit.

        courtesy = memledger.Courtesy()
        courtesy.yield_memory()
        wait_for_restart_signal()
        courtesy.restore()

    Without anything added it moves all that memledger knows on CUDA devices. ``place``: ``pageable``, ``pinned`` or
    ``file``. While yielded, what asks for a tensor's data raises. Both methods raise ``memledger.Error``; if
    ``yield_memory()`` does, nothing was moved. ``copy.deepcopy`` gives the same object; it cannot be pickled.
    """

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        *,
        place: str = "pageable",
        folder: Union[str, "os.PathLike[str]"] = "",
        device: Any = None,
        workspaces: Optional[bool] = None,
    ) -> None:
        options = _library.CourtesyOptions(
            _library.encode(place, "place"),
            _library.encode_path(folder, "the folder"),
            _library.device_text(device),
            -1 if workspaces is None else int(bool(workspaces)),
        )
        self._handle = _library.Handle("courtesy", ctypes.byref(options))
        if model is not None:
            self.add_module(model)

    def add_tensor(self, tensor: torch.Tensor) -> "Courtesy":
        """Adds a tensor and its gradient. Once something was added, only that moves."""
        _library.address_of(tensor)
        for _, part in parts_of(tensor):
            _library.call("courtesy_add_tensor", self._handle, part._cdata)
        return self

    def add_module(self, module: torch.nn.Module) -> "Courtesy":
        """Adds a module's parameters and buffers."""
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"memledger: a {type(module).__name__} is no torch.nn.Module")
        for tensor in [*module.parameters(), *module.buffers()]:
            self.add_tensor(tensor)
        return self

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> "Courtesy":
        """Adds the optimizer's parameters, and the state that it has now."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"memledger: a {type(optimizer).__name__} is no torch.optim.Optimizer")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.add_tensor(parameter)
        for tensor in _library.tensors_in(list(optimizer.state.values())):
            if tensor.device.type != "cpu":
                self.add_tensor(tensor)
        return self

    def yield_memory(self) -> None:
        """Moves everything or, if that fails, nothing."""
        _library.call("courtesy_yield", self._handle)

    def restore(self) -> None:
        """Brings back what it can; raises if the device is full, and can be called again."""
        _library.call("courtesy_restore", self._handle)

    @property
    def yielded_bytes(self) -> int:
        """The bytes that are away."""
        return int(_library.plain("courtesy_yielded_bytes", self._handle))

    def unmoved(self) -> str:
        """Returns what the last yield_memory() left on the devices, a line each with the reason."""
        return _library.ask("courtesy_unmoved", self._handle)

    def __enter__(self) -> "Courtesy":
        self.yield_memory()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.restore()
