"""Python's modules, as C++ sees them for the length of a call."""

import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from ._library import Handle, OfThisProcess, call, encode, plain

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
        # From torch 2.15 on a DTensor tells its device mesh, too.
        inside = [(name, getattr(tensor, name)) for name in flatten()[0]]
        inside = [(name, part) for name, part in inside if isinstance(part, torch.Tensor)]
        parts = []
        for name, part in inside:
            suffix = "" if len(inside) == 1 else "." + name
            parts += [(suffix + inner, own) for inner, own in parts_of(part)]
        return parts


def _states_of(value: Any, slot: str) -> Iterator[Tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        for suffix, part in parts_of(value):
            yield slot + suffix, part
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _states_of(one, f"{slot}.{index}")
    elif isinstance(value, dict):
        for name, one in list(value.items()):
            yield from _states_of(one, f"{slot}.{name}" if slot else str(name))


class Mirror(OfThisProcess):
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


class Registered(OfThisProcess):
    """The modules and optimizers that a reporter or tracker was given. Names are read anew at each use."""

    def __init__(self, kind: str, handle: Handle) -> None:
        self._kind = kind
        self._handle = handle
        self._mirrors: Dict[str, Mirror] = {}
        self._optimizers: List["weakref.ref[torch.optim.Optimizer]"] = []
        self._states: Dict[str, Tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.optim.Optimizer]"]] = {}

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
        for name in [name for name, (_, owner) in self._states.items() if owner() is optimizer]:
            if self._states.pop(name)[0]() is not None:
                call(self._kind + "_remove", self._handle, encode(name))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """While it is open, C++ knows the names, and holds the tensors."""
        self._add_states()
        with contextlib.ExitStack() as stack:
            for prefix, mirror in list(self._mirrors.items()):
                if not stack.enter_context(mirror.filled()):
                    del self._mirrors[prefix]
                    continue
                name = encode(prefix)
                call(self._kind + "_add_module", self._handle, name, mirror.handle)
                stack.callback(call, self._kind + "_remove", self._handle, name)
            yield

    def _add_states(self) -> None:
        """Names what the optimizers have now."""
        living = [optimizer for optimizer in (one() for one in self._optimizers) if optimizer is not None]
        if not living:
            return
        self._states = {name: known for name, known in self._states.items() if known[0]() is not None}
        names: Dict[int, str] = {}
        for prefix, mirror in self._mirrors.items():
            module = mirror.module()
            for path, named in module.named_parameters() if module is not None else ():
                names.setdefault(id(named), f"{prefix}.{path}" if prefix else path)
        for optimizer in living:
            places = {
                id(parameter): f"param{i}.{j}"
                for i, group in enumerate(optimizer.param_groups)
                for j, parameter in enumerate(group["params"])
            }
            for parameter, state in list(optimizer.state.items()):
                where = names.get(id(parameter)) or places.get(id(parameter))
                if where is None:
                    continue
                for slot, one in _states_of(state, ""):
                    self._add_state(f"{type(optimizer).__name__}.{where}.{slot}", one, optimizer)

    def _add_state(self, name: str, tensor: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        known = self._states.get(name)
        if known is not None and known[0]() is tensor:
            return
        call(self._kind + "_add_state", self._handle, encode(name), tensor._cdata)
        self._states[name] = (weakref.ref(tensor), weakref.ref(optimizer))
