"""Python's modules, as C++ sees them for the length of a call."""

import contextlib
import sys
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from ._library import Handle, call, encode, plain

_PARAMETER, _BUFFER = 0, 1
_PLAIN = (torch.nn.Parameter, torch.Tensor)


def parts_of(tensor: torch.Tensor) -> List[Tuple[str, torch.Tensor]]:
    """The tensors with memory: those of a DTensor or another tensor that wraps some."""
    if type(tensor) in _PLAIN:
        return [("", tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is None:
            return [("", tensor)]
        names = flatten()[0]
        parts = []
        for name in names:
            suffix = "" if len(names) == 1 else "." + name
            parts += [(suffix + inner, part) for inner, part in parts_of(getattr(tensor, name))]
        return parts


def hooks() -> Optional[Any]:
    """What tells names of modules and optimizers (runner/inside/python_names.py), once it has begun."""
    module = sys.modules.get("_memledger")
    return module if hasattr(module, "tell_module") else None


class Mirror:
    """A tree of parts in C++ that has the module's tensors while it is filled, and none else. Holds the module
    weakly."""

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"memledger: a {type(module).__name__} is no torch.nn.Module")
        self._module = weakref.ref(module)
        self.handle = Handle("module", type(module).__name__.encode())

    def module(self) -> Optional[torch.nn.Module]:
        return self._module()

    @contextlib.contextmanager
    def filled(self) -> Iterator[bool]:
        """Gives whether the module is still alive."""
        module = self._module()
        if module is None:
            yield False
            return
        try:
            self._fill(module)
            yield True
        finally:
            plain("module_let_go", self.handle)

    def _fill(self, module: torch.nn.Module) -> None:
        for path, part in module.named_modules(remove_duplicate=False):
            where = encode(path)
            if path:
                call("module_part", self.handle, where, type(part).__name__.encode())
            for role, tensors in ((_PARAMETER, part._parameters), (_BUFFER, part._buffers)):
                for name, tensor in list((tensors or {}).items()):
                    if not isinstance(tensor, torch.Tensor):
                        continue
                    for suffix, one in parts_of(tensor):
                        call("module_tensor", self.handle, where, encode(name + suffix), role, one._cdata)


class Registered:
    """The modules and optimizers that a reporter or tracker was given. Names are read anew at each use."""

    def __init__(self, kind: str, handle: Handle) -> None:
        self._kind = kind
        self._handle = handle
        self._mirrors: Dict[str, Mirror] = {}
        self._optimizers: List["weakref.ref[torch.optim.Optimizer]"] = []

    def add_module(self, prefix: str, module: torch.nn.Module) -> None:
        self._mirrors[prefix] = Mirror(module)
        with self.named():
            pass  # bad names are refused now

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"memledger: a {type(optimizer).__name__} is no torch.optim.Optimizer")
        self._optimizers.append(weakref.ref(optimizer))

    def remove_module(self, prefix: str) -> bool:
        return self._mirrors.pop(prefix, None) is not None

    def remove_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers = [one for one in self._optimizers if one() is not None and one() is not optimizer]

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """While it is open, C++ knows the names, and holds the tensors."""
        self._tell_hooks()
        with contextlib.ExitStack() as stack:
            for prefix, mirror in list(self._mirrors.items()):
                if not stack.enter_context(mirror.filled()):
                    del self._mirrors[prefix]
                    continue
                name = encode(prefix)
                call(self._kind + "_add_module", self._handle, name, mirror.handle)
                stack.callback(call, self._kind + "_remove", self._handle, name)
            yield

    def _tell_hooks(self) -> None:
        told = hooks()
        if told is None:
            return
        optimizers = [optimizer for optimizer in (one() for one in self._optimizers) if optimizer is not None]
        if not optimizers:
            return
        for mirror in self._mirrors.values():
            module = mirror.module()
            if module is not None:
                told.tell_module(module)
        for optimizer in optimizers:
            told.tell_optimizer(optimizer)
