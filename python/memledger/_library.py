"""libmemledger.so: which one, its functions, and what their errors become."""

import ctypes
import dataclasses
import gc
import operator
import os
import pathlib
import re
import sys
import threading
import weakref
from typing import Any, List, Optional, TypeVar

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "memledger needs PyTorch, and this Python has no torch: install it beside memledger (pip install torch)"
    ) from None

INTERFACE = 1
NAME = "libmemledger.so"


class Error(RuntimeError):
    """What memledger could not do, in one sentence that names the thing."""


def _loaded() -> Optional[str]:
    """The library that is in this process already, as `memledger run` has brought it in."""
    try:
        maps = pathlib.Path("/proc/self/maps").read_text(errors="surrogateescape")
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and os.path.basename(path[0]) == NAME:
            return path[0]
    return None


def _release_of_torch() -> str:
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return ".".join(version.groups()) if version else str(torch.__version__)


def _installed() -> str:
    """The library in this package that was built for this torch."""
    folder = pathlib.Path(__file__).resolve().parent / "lib"
    release = _release_of_torch()
    path = folder / release / "lib" / NAME
    if path.exists():
        return str(path)
    there = [one.parent.parent.name for one in folder.glob("*/lib/" + NAME)]
    there.sort(key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
    if not there:
        raise ImportError(
            f"memledger found no {NAME} in {folder}: install the wheel, start the program with `memledger run`, "
            "or set MEMLEDGER_LIBRARY to the library's path"
        )
    raise ImportError(
        f"this memledger has no library for torch {torch.__version__}: it was built for torch {', '.join(there)}"
    )


def _load() -> "tuple[ctypes.PyDLL, str]":
    path = _loaded() or os.environ.get("MEMLEDGER_LIBRARY") or _installed()
    try:
        library = ctypes.PyDLL(path)
        interface = library.memledger_c_interface
    except (OSError, AttributeError) as error:
        raise ImportError(f"memledger cannot use {path} with torch {torch.__version__}: {error}") from None
    if interface() != INTERFACE:
        raise ImportError(
            f"{path} has version {interface()} of the C interface, and this memledger package needs {INTERFACE}: "
            "install both from one release"
        )
    library.memledger_built_for.restype = ctypes.c_char_p
    built_for = library.memledger_built_for().decode()
    if built_for != _release_of_torch():
        raise ImportError(
            f"{path} was built for torch {built_for}, and this is torch {torch.__version__}: "
            "use a memledger that was built for it"
        )
    return library, path


_library, LIBRARY_PATH = _load()

_TEXT, _HANDLE, _INT, _LONG = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OUT = ctypes.POINTER(ctypes.c_void_p)
_MANY = ctypes.POINTER(ctypes.c_void_p)


class ReportOptions(ctypes.Structure):
    _fields_ = [
        ("verbose", _INT),
        ("device", _TEXT),
        ("max_rows", _LONG),
        ("sort", _TEXT),
        ("group", _TEXT),
        ("of_peak", _INT),
    ]


class TrackerOptions(ctypes.Structure):
    _fields_ = [
        ("detail", _INT),
        ("verbose", _INT),
        ("colons", _INT),
        ("echo", _INT),
        ("path", _TEXT),
        ("file_name", _TEXT),
        ("device", _TEXT),
    ]


class SavedOptions(ctypes.Structure):
    _fields_ = [
        ("exclude", _MANY),
        ("excluded", ctypes.c_size_t),
        ("inputs", _MANY),
        ("input_count", ctypes.c_size_t),
        ("device", _TEXT),
        ("cuda_blocks", _INT),
    ]


class CourtesyOptions(ctypes.Structure):
    _fields_ = [("place", _TEXT), ("folder", _TEXT), ("device", _TEXT), ("workspaces", _INT)]


class PredictOptions(ctypes.Structure):
    _fields_ = [
        ("gpu", _TEXT),
        ("capacity_bytes", _LONG),
        ("least_runs", _INT),
        ("most_runs", _INT),
        ("timeout_s", _INT),
    ]


class CounterValues(ctypes.Structure):
    _fields_ = [
        (name, _LONG)
        for name in (
            "current_bytes",
            "peak_bytes",
            "allocated_bytes",
            "freed_bytes",
            "current_count",
            "peak_count",
            "allocated_count",
            "freed_count",
        )
    ]


# A step that is predicted runs Python code.
Step = ctypes.PYFUNCTYPE(ctypes.c_void_p)

# Those that return an error's text, or nothing. They keep Python's lock, as they handle tensors.
_FALLIBLE = {
    "start": (),
    "read_counters": (_TEXT, ctypes.POINTER(CounterValues)),
    "reset_peak": (_TEXT,),
    "enter_label": (_TEXT, _OUT),
    "module_new": (_TEXT, _OUT),
    "module_part": (_HANDLE, _TEXT, _TEXT),
    "module_tensor": (_HANDLE, _TEXT, _TEXT, _INT, _HANDLE),
    "reporter_new": (_OUT,),
    "reporter_add_module": (_HANDLE, _TEXT, _HANDLE),
    "reporter_add_tensor": (_HANDLE, _TEXT, _HANDLE, _INT),
    "reporter_add_graph": (_HANDLE, _HANDLE),
    "reporter_add_state": (_HANDLE, _TEXT, _HANDLE),
    "reporter_remove": (_HANDLE, _TEXT),
    "reporter_text": (_HANDLE, _TEXT, ctypes.POINTER(ReportOptions), _OUT),
    "reporter_why": (_HANDLE, _HANDLE, _TEXT, _TEXT, _OUT),
    "tracker_new": (ctypes.POINTER(TrackerOptions), _OUT),
    "tracker_add_module": (_HANDLE, _TEXT, _HANDLE),
    "tracker_add_tensor": (_HANDLE, _TEXT, _HANDLE),
    "tracker_add_state": (_HANDLE, _TEXT, _HANDLE),
    "tracker_remove": (_HANDLE, _TEXT),
    "tracker_track": (_HANDLE, _TEXT, _TEXT, _TEXT, _INT, _OUT, _OUT),
    "tracker_log_path": (_HANDLE, _OUT),
    "tracker_clear_cache": (_HANDLE,),
    "tracker_tensors": (_HANDLE, _OUT),
    "tracker_usage": (_HANDLE, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)),
    "saved_new": (_MANY, ctypes.c_size_t, _HANDLE, ctypes.POINTER(SavedOptions), _OUT),
    "saved_by_storage": (_HANDLE, _HANDLE, _INT, _OUT),
    "saved_text": (_HANDLE, _TEXT, _OUT),
    "size_begin": (_HANDLE, _LONG, _MANY, ctypes.c_size_t, _OUT),
    "size_end": (_HANDLE, _MANY, ctypes.c_size_t, _OUT, _OUT),
    "profiler_new": (_HANDLE, _INT, _INT, _TEXT, _TEXT, _OUT),
    "profiler_record_stats": (_HANDLE, _OUT),
    "profiler_epoch_end": (_HANDLE, _OUT),
    "profiler_csv_path": (_HANDLE, _OUT),
    "set_target": (_TEXT,),
    "lines_new": (_OUT,),
    "lines_add_function": (_HANDLE, _TEXT, _TEXT, _TEXT, _INT, _TEXT),
    "lines_enable": (_HANDLE,),
    "lines_disable": (_HANDLE,),
    "lines_clear": (_HANDLE,),
    "lines_text": (_HANDLE, _TEXT, _TEXT, _TEXT, _OUT),
    "courtesy_new": (ctypes.POINTER(CourtesyOptions), _OUT),
    "courtesy_add_tensor": (_HANDLE, _HANDLE),
    "courtesy_yield": (_HANDLE,),
    "courtesy_restore": (_HANDLE,),
    "courtesy_unmoved": (_HANDLE, _OUT),
    "predict": (Step, ctypes.POINTER(PredictOptions), _TEXT, _TEXT, _INT, _OUT, _OUT),
}
_OTHERS: Any = {
    "version": (_TEXT, ()),
    "built_for": (_TEXT, ()),
    "free": (None, (_HANDLE,)),
    "know": (ctypes.c_uint64, (_HANDLE,)),
    "leave_label": (None, (_HANDLE,)),
    "training_paused": (None, (_INT,)),
    "module_let_go": (None, (_HANDLE,)),
    "module_free": (None, (_HANDLE,)),
    "reporter_free": (None, (_HANDLE,)),
    "tracker_free": (None, (_HANDLE,)),
    "saved_total_bytes": (_LONG, (_HANDLE,)),
    "saved_is_complete": (_INT, (_HANDLE,)),
    "saved_free": (None, (_HANDLE,)),
    "size_free": (None, (_HANDLE,)),
    "profiler_free": (None, (_HANDLE,)),
    "lines_free": (None, (_HANDLE,)),
    "courtesy_yielded_bytes": (_LONG, (_HANDLE,)),
    "courtesy_free": (None, (_HANDLE,)),
}


def _function(name: str, result: Any, arguments: Any) -> Any:
    try:
        function = getattr(_library, "memledger_" + name)
    except AttributeError:
        raise ImportError(
            f"{LIBRARY_PATH} lacks memledger_{name}: install library and package from one release"
        ) from None
    function.restype, function.argtypes = result, arguments
    return function


_functions = {name: _function(name, _HANDLE, arguments) for name, arguments in _FALLIBLE.items()}
_functions.update({name: _function(name, *types) for name, types in _OTHERS.items()})

__version__: str = _functions["version"]().decode()
built_for_torch: str = _functions["built_for"]().decode()


def _taken(address: Any) -> str:
    """The text at an address, which is freed."""
    text = ctypes.string_at(address).decode("utf-8", "replace")
    _functions["free"](address)
    return text


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns an error's text. Holds the lock of the handle that comes first."""
    if arguments and isinstance(arguments[0], Handle):
        with arguments[0].lock:
            error = _functions[name](*arguments)
    else:
        error = _functions[name](*arguments)
    if error:
        raise Error(_taken(error))


def ask(name: str, *arguments: Any) -> str:
    """Calls one whose last argument is a text to be given out."""
    out = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(out))
    return _taken(out.value)


def ask_two(name: str, *arguments: Any) -> "tuple[str, str]":
    """Calls one whose last two arguments are texts to be given out."""
    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(first), ctypes.byref(second))
    return _taken(first.value), _taken(second.value)


def plain(name: str, *arguments: Any) -> Any:
    """Calls one that cannot fail."""
    return _functions[name](*arguments)


def encode(text: Optional[str], what: str = "a name") -> Optional[bytes]:
    """The text in UTF-8. Raises TypeError for what is no text, and ValueError for a zero byte in it."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"memledger: {what} is text, not {_kind(text)}")
    encoded = text.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError(f"memledger: there is a zero byte in {text!r}")
    return encoded


def encode_path(path: Any, what: str = "the path") -> Optional[bytes]:
    """The same of a path: text, bytes or a pathlib.Path."""
    if path is None:
        return None
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"memledger: {what} is a path, not {_kind(path)}")
    return encode(os.fsdecode(path), what)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def integer(value: Any, what: str, bits: int = 32, least: Optional[int] = None) -> int:
    """An integer of so many bits in C++, `least` or more. Raises TypeError and ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"memledger: {what} is an integer, not {_kind(value)}") from None
    largest = (1 << (bits - 1)) - 1
    smallest = -largest - 1 if least is None else least
    if not smallest <= number <= largest:
        raise ValueError(f"memledger: {what} is {number}; it is from {smallest} to {largest}")
    return number


def write(text: str, stream: Any = None) -> None:
    """Writes to the stream, by default to standard output. What its encoding lacks is written as `?`, and `…` as
    three points."""
    stream = sys.stdout if stream is None else stream
    if stream is None:  # a program without a console
        return
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        plain_text = text.replace("…", "...").replace("×", "x").replace("µ", "u")
        stream.write(plain_text.encode(error.encoding, "replace").decode(error.encoding))


class OfThisProcess:
    """What belongs to this process and has one owner. A copy, deep or not, is the object itself, as with a
    logging.Logger: a model that has one as an attribute can be copied. Pickling is refused."""

    # What to do instead of pickling.
    _instead = "leave it out, as torch.save(model.state_dict()) does"

    def __copy__(self: "_Same") -> "_Same":
        return self

    def __deepcopy__(self: "_Same", memo: Any) -> "_Same":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"memledger: a {type(self).__name__} cannot be pickled, as it belongs to this process: {self._instead}"
        )


_Same = TypeVar("_Same", bound=OfThisProcess)


class Handle(OfThisProcess):
    """What a `memledger_…_new` has made, until the last reference to it goes. Its lock is held by each call with it,
    and by who needs several calls to be one."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self._make(kind, kind + "_new", *arguments)

    def _make(self, kind: str, function: str, *arguments: Any) -> None:
        self.kind = kind
        self.address: Optional[int] = None
        # Re-entrant: the collector may run a finalizer that uses the same handle.
        self.lock = threading.RLock()
        _handles.add(self)
        out = ctypes.c_void_p()
        call(function, *arguments, ctypes.byref(out))
        self.address = out.value

    def free(self) -> None:
        address, self.address = self.address, None
        if address is not None:
            plain(self.kind + "_free", address)

    def __del__(self) -> None:
        try:
            self.free()
        except Exception:
            pass  # Python is ending

    @property
    def _as_parameter_(self) -> Optional[int]:
        return self.address


_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()


def _after_fork() -> None:
    """A thread that held a lock is not in the child."""
    for handle in list(_handles):
        handle.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def address_of(tensor: Any, what: str = "a tensor") -> int:
    """The address of a tensor's TensorImpl, for a call that the tensor lives through."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"memledger: {what} is a {type(tensor).__name__}, not a torch.Tensor")
    return int(tensor._cdata)


def addresses_of(tensors: Any, what: str = "a tensor") -> "tuple[Any, int]":
    """An array of them, and its length."""
    addresses = [address_of(tensor, what) for tensor in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses), len(addresses)


def device_text(device: Any) -> Optional[bytes]:
    """A torch.device, its text, or the number of a GPU. Raises ValueError for a device that torch does not see."""
    if device is None:
        return None
    try:
        if isinstance(device, (str, torch.device)):
            meant = torch.device(device)
        else:
            meant = torch.device(f"cuda:{integer(device, 'the number of a GPU', bits=8, least=0)}")
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"memledger: {device!r} is no device: {str(error).splitlines()[0]}") from None
    if meant.type == "meta":
        raise ValueError("memledger: the device `meta` has no memory")
    # Without any GPU cuda:0 has nothing: a program for both needs no branch.
    if meant.type == "cuda" and (meant.index or 0) >= max(torch.cuda.device_count(), 1):
        raise ValueError(f"memledger: there is no {meant}; CUDA devices that torch sees: {torch.cuda.device_count()}")
    if meant.type == "cpu" and (meant.index or 0) > 0:
        raise ValueError(f"memledger: there is no {meant}: the CPU is cpu")
    return str(meant).encode()


def tensors_in(value: Any) -> List[Any]:
    """The tensors in nested lists, tuples, sets, dicts, dataclasses and objects such as Hugging Face's outputs."""
    found: List[Any] = []
    seen = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, torch.Tensor):
            found.append(one)
            continue
        if isinstance(one, dict):
            parts: Any = one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            parts = one
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            parts = [getattr(one, field.name, None) for field in dataclasses.fields(one)]
        else:
            continue
        if id(one) not in seen:
            seen.add(id(one))
            stack.extend(reversed(list(parts)))
    return found


def _start() -> None:
    call("start")
    # Tensors from before are in the books from now on, too.
    know = _functions["know"]
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            know(thing._cdata)


_start()
