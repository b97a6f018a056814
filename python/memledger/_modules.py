"""Python's modules, as C++ sees them for the length of a call."""

import contextlib
import os
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from ._library import Error, Handle, OfThisProcess, call, encode, plain

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
        # From torch 2.15 on a DTensor reports its device mesh, too.
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
    """The modules and optimizers that a reporter or tracker was given. Names are read anew at each use. Thread-safe by
    the handle's lock."""

    def __init__(self, kind: str, handle: Handle) -> None:
        self._kind = kind
        self._handle = handle
        self._mirrors: List[Tuple[str, Mirror]] = []
        self._optimizers: List["weakref.ref[torch.optim.Optimizer]"] = []
        self._states: Dict[str, Tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.optim.Optimizer]"]] = {}
        self._named_by = 0  # the process in which C++ has the names now

    def add_module(self, prefix: str, module: torch.nn.Module) -> None:
        encode(prefix, "a prefix")
        added = (prefix, Mirror(module))
        with self._handle.lock:
            self._mirrors.append(added)
            try:
                with self.named():
                    pass  # bad names are refused now
            except BaseException:
                self._mirrors.remove(added)
                raise

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"memledger: a {type(optimizer).__name__} is no torch.optim.Optimizer")
        with self._handle.lock:
            if not any(one() is optimizer for one in self._optimizers):
                self._optimizers.append(weakref.ref(optimizer))

    def remove(self, what: Any) -> None:
        """Forgets a module's prefix, a tensor's name, or an optimizer."""
        with self._handle.lock:
            if isinstance(what, torch.optim.Optimizer):
                self._remove_optimizer(what)
                return
            name = encode(what)
            others = [one for one in self._mirrors if one[0] != what]
            if len(others) == len(self._mirrors):
                call(self._kind + "_remove", self._handle, name)
            self._mirrors = others

    def _remove_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        left = [one for one in self._optimizers if one() is not None and one() is not optimizer]
        if not any(one() is optimizer for one in self._optimizers):
            raise Error(f"memledger: this {type(optimizer).__name__} was not added")
        self._optimizers = left
        for name in [name for name, (_, owner) in self._states.items() if owner() is optimizer]:
            if self._states.pop(name)[0]() is not None:
                call(self._kind + "_remove", self._handle, encode(name))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """While it is open, C++ knows the names, and holds the tensors. Other threads wait; what this thread does
        meanwhile, as the collector may run a finalizer, has the names as well."""
        with self._handle.lock:
            process = os.getpid()
            if self._named_by == process:
                yield
                return
            self._add_states()
            with contextlib.ExitStack() as stack:
                self._named_by = process
                stack.callback(setattr, self, "_named_by", 0)
                self._name(stack)
                yield

    def _name(self, stack: contextlib.ExitStack) -> None:
        given = set()
        for one in list(self._mirrors):
            prefix, mirror = one
            if not stack.enter_context(mirror.filled()):
                self._mirrors.remove(one)
                continue
            name = encode(prefix)
            call(self._kind + "_add_module", self._handle, name, mirror.handle)
            if prefix not in given:  # several may have it
                given.add(prefix)
                stack.callback(call, self._kind + "_remove", self._handle, name)

    def _add_states(self) -> None:
        """Names what the optimizers have now."""
        living = [optimizer for optimizer in (one() for one in self._optimizers) if optimizer is not None]
        if not living:
            return
        self._states = {name: known for name, known in self._states.items() if known[0]() is not None}
        names: Dict[int, str] = {}
        for prefix, mirror in self._mirrors:
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
