R"PYTHON(#"
# What memledger runs in a Python program that it watches, once, while `import torch` runs. At the
# end of that import it registers PyTorch's own hooks, which register modules, parameters, buffers
# and optimizers with C++ (python_program.cc); with `-f` it describes the functions that are
# profiled (python_lines.cc). First and last line: C++ includes this file as text.
#
# Nothing here keeps an object of the program's alive, raises or prints. Modules' forward functions
# have no hook, which would slow each call and show in compiled code; what compiled code runs of
# these hooks ends at is_compiling(), a constant there.

import builtins
import sys

__builtins__ = builtins  # as modules have them; torch.compile looks there
PARAMETER, BUFFER = 0, 1


class Books:
    """The functions of C++, by name. ADDRESSES is what C++ has put here."""

    def __init__(self):
        import ctypes

        text, number, tensor = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p
        # These keep Python's lock.
        for name, arguments in {
            "add_module": (number, text),
            "add_part": (number, text, number),
            "add_tensor": (number, text, ctypes.c_int, ctypes.c_int, tensor),
            "end_module": (number,),
            "add_trained": (text, ctypes.c_int, tensor),
            "add_gradient": (tensor, tensor),
            "add_state": (text, tensor, text, tensor),
            "add_checkpointed": (tensor,),
            "add_found": (number, ctypes.c_int, text, text),
            "end_search": (),
            "begin_label": (text,),
            "end_label": (),
        }.items():
            setattr(self, name, ctypes.PYFUNCTYPE(None, *arguments)(ADDRESSES[name]))
        tell = ctypes.PYFUNCTYPE(ctypes.c_int, text, text, text, ctypes.c_int, ctypes.c_int)
        self.add_function = tell(ADDRESSES["add_function"])
        self.has_function = ctypes.PYFUNCTYPE(ctypes.c_int, text)(ADDRESSES["has_function"])
        self.add_near = ctypes.PYFUNCTYPE(None, text)(ADDRESSES["add_near"])
        for name, result, arguments in (
            ("begin_search", ctypes.c_int, ()),
            ("look_at", number, (tensor, ctypes.c_int)),
            ("is_missing", ctypes.c_int, (number,)),
            ("count_missing", ctypes.c_int, ()),
            ("find_in_graphs", ctypes.c_int, ()),
            ("saved_storage", number, (ctypes.c_int,)),
            ("saved_by", ctypes.c_int, (ctypes.c_int,)),
            ("saved_slot", text, (ctypes.c_int,)),
        ):
            setattr(self, name, ctypes.PYFUNCTYPE(result, *arguments)(ADDRESSES[name]))
        self.set_searcher = ctypes.PYFUNCTYPE(None, ctypes.py_object)(ADDRESSES["set_searcher"])
        self.begin_lines = ctypes.PYFUNCTYPE(None, ctypes.py_object)(ADDRESSES["begin_lines"])
        self.program_ends = ctypes.CFUNCTYPE(None)(ADDRESSES["program_ends"])


class Profiled:
    """The functions that `-f` names. PROFILED is what C++ has put here."""

    def __init__(self, books):
        self.books = books
        books.begin_lines(self.describe)

    def describe(self, code, its_globals):
        """Returns the number of the function with that code, -1 if it is not one of them."""
        import os

        file = code.co_filename
        file = file if file.startswith("<") else os.path.abspath(file)
        texts = (full_name(code), str(its_globals.get("__name__", "")), file)
        first, last = code.co_firstlineno, self.last_line(code)
        return self.books.add_function(*(encode(text) for text in texts), first, last)

    def last_line(self, code):
        lines = [line for _, _, line in code.co_lines() if line]
        within = [self.last_line(one) for one in code.co_consts if isinstance(one, type(code))]
        return max([code.co_firstlineno] + lines + within)

    def describe_others(self):
        """Describes those that have made nothing, and suggests names for those not there."""
        import gc

        functions = [o for o in gc.get_objects() if type(o) is type(begin)]
        own = [one for one in functions if is_of_program(one.__code__.co_filename)]
        for wanted in PROFILED:
            if not any(self.is_described(wanted, some) for some in ([], own, functions)):
                self.suggest(wanted, own)

    def is_described(self, wanted, functions):
        for function in functions:
            if function.__code__.co_name == last_part(wanted):
                self.describe(function.__code__, function.__globals__)
        return self.books.has_function(encode(wanted)) != 0

    def suggest(self, wanted, functions):
        import difflib

        names = {full_name(function.__code__) for function in functions}
        by_last_part = {last_part(name): name for name in names}
        for near in difflib.get_close_matches(last_part(wanted), by_last_part, 3):
            self.books.add_near(encode(by_last_part[near]))


def encode(text):
    return text.encode("utf-8", "replace")


def full_name(code):
    return getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")


def last_part(name):
    return name.replace("::", ".").split(".")[-1]


def is_of_program(file):
    return not file.startswith("<") and "-packages/" not in file and "/lib/python3" not in file


def begin():
    """Registers the hooks. PyTorch is imported by now."""
    import atexit
    import functools
    import itertools
    import threading
    import weakref

    import torch
    from torch.nn.modules import module as nn_module
    from torch.nn.parameter import Buffer, Parameter
    from torch.optim import optimizer as optim

    is_compiling = torch.compiler.is_compiling
    Module, Tensor = nn_module.Module, torch.Tensor
    plain = (Parameter, Tensor, Buffer)
    books = Books()
    profiled = Profiled(books) if PROFILED else None
    numbers = itertools.count(1)
    modules = {}  # by id, Known
    optimizers = {}  # by id, Known

    class Known(weakref.ref):
        __slots__ = ("key", "number", "steps", "states")

    def module_ended(known):
        if modules.get(known.key) is known:
            del modules[known.key]
        books.end_module(known.number)

    def optimizer_ended(known):
        if optimizers.get(known.key) is known:
            del optimizers[known.key]

    def know(table, thing, ended):
        known = Known(thing, ended)
        known.key, known.number, known.steps, known.states = id(thing), next(numbers), 0, 0
        table[known.key] = known
        return known

    def find(table, thing):
        known = table.get(id(thing))
        return known if known is not None and known() is thing else None

    def parts_of(tensor):
        """The tensors with memory: those of a DTensor or another tensor that wraps some."""
        if type(tensor) in plain:
            return ((b"", tensor._cdata),)
        with torch._C.DisableTorchFunctionSubclass():
            flatten = getattr(tensor, "__tensor_flatten__", None)
            if flatten is None:
                return ((b"", tensor._cdata),)
            # From torch 2.15 on a DTensor reports its device mesh, too.
            inside = [(name, getattr(tensor, name)) for name in flatten()[0]]
            inside = [(name, part) for name, part in inside if isinstance(part, Tensor)]
            parts = []
            for name, part in inside:
                suffix = b"" if len(inside) == 1 else b"." + encode(name)
                parts += [(suffix + inner, cdata) for inner, cdata in parts_of(part)]
            return parts

    def tell_tensor(number, name, role, tensor, is_copy=False):
        if not isinstance(tensor, Tensor):
            return
        name = encode(name)
        for suffix, cdata in parts_of(tensor):
            books.add_tensor(number, name + suffix, role, is_copy or cdata != tensor._cdata, cdata)
        if type(tensor) not in plain:
            tell_gradient(tensor)

    def tell_gradient(tensor):
        """LibTorch tells of gradients itself, but for those of tensors that wrap others."""
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is None or type(gradient) in plain:
            return
        for (_, cdata), (_, its) in zip(parts_of(tensor), parts_of(gradient)):
            books.add_gradient(cdata, its)

    def tell(module, known):
        """Tells what a module has now, and returns the modules in it."""
        found = []
        for name, tensor in list((module._parameters or {}).items()):
            if tensor is not None:
                tell_tensor(known.number, name, PARAMETER, tensor)
        for name, tensor in list((module._buffers or {}).items()):
            if tensor is not None:
                tell_tensor(known.number, name, BUFFER, tensor)
        for name, part in list((module._modules or {}).items()):
            if part is not None:
                found.append((name, part))
        return found

    def scan(module, seen):
        """Tells of a module and all within."""
        seen.add(id(module))
        known = find(modules, module)
        if known is None:
            known = know(modules, module, module_ended)
            books.add_module(known.number, encode(type(module).__name__))
        for name, part in tell(module, known):
            if id(part) not in seen:
                scan(part, seen)
            books.add_part(known.number, encode(name), find(modules, part).number)

    def number_of(module):
        known = find(modules, module)
        if known is None:
            watch_wrappers()
            scan(module, set())
            known = find(modules, module)
        return known.number

    def scan_all():
        seen = set()
        for known in list(modules.values()):
            module = known()
            if module is not None and id(module) not in seen:
                scan(module, seen)

    def silent(function):
        def called(*arguments):
            if is_compiling():
                return
            try:
                function(*arguments)
            except Exception:
                pass  # a name is missing

        return called

    def is_replica(module):
        """Of DataParallel, for one forward pass."""
        return module.__dict__.get("_is_replica", False)

    @silent
    def on_module(module, name, part):
        if part is not None and not is_replica(module):
            # Before it is looked at, as it may be this one that is being made.
            books.add_part(number_of(module), encode(name), number_of(part))

    @silent
    def on_parameter(module, name, tensor):
        if not is_replica(module):
            tell_tensor(number_of(module), name, PARAMETER, tensor)

    @silent
    def on_buffer(module, name, tensor):
        if not is_replica(module):
            tell_tensor(number_of(module), name, BUFFER, tensor)

    def is_due(count):
        """What rarely changes is read at the first three times and at each power of two."""
        return count <= 3 or count & (count - 1) == 0

    @silent
    def before_step(optimizer, arguments, keywords):
        known = find(optimizers, optimizer) or know(optimizers, optimizer, optimizer_ended)
        known.steps += 1
        if not is_due(known.steps):
            return
        watch_wrappers()
        scan_all()
        for i, group in enumerate(optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                for suffix, cdata in parts_of(parameter):
                    books.add_trained(b"param%d.%d" % (i, j) + suffix, cdata != parameter._cdata, cdata)

    def tell_state(optimizer, parameter, slot, state):
        if isinstance(state, Tensor):
            owners, parts = parts_of(parameter), parts_of(state)
            if len(owners) != len(parts):
                owners = owners[:1] * len(parts)
            for (_, owner), (suffix, cdata) in zip(owners, parts):
                books.add_state(optimizer, owner, slot + suffix, cdata)
        elif isinstance(state, (list, tuple)):
            for i, one in enumerate(state):
                tell_state(optimizer, parameter, slot + b".%d" % i, one)
        elif isinstance(state, dict):
            for name, one in state.items():
                tell_state(optimizer, parameter, slot + (b"." if slot else b"") + encode(str(name)), one)

    def tell_states(optimizer):
        name = encode(type(optimizer).__name__)
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, Tensor):
                tell_state(name, parameter, b"", state)

    @silent
    def after_step(optimizer, arguments, keywords):
        known = find(optimizers, optimizer)
        if known is None or not is_due(known.steps) and known.states == len(optimizer.state):
            return
        known.states = len(optimizer.state)
        tell_states(optimizer)

    def tell_all_states():
        """Those that were replaced since, by ones on another device, say."""
        for known in list(optimizers.values()):
            optimizer = known()
            if optimizer is not None:
                tell_states(optimizer)

    # Copies and pickles of modules register nothing, and moving a module replaces its buffers.
    # Programs ask for train() or eval() where they have made their model.
    class Depth(threading.local):
        calls = 0

    depth = Depth()

    def after(name, is_outermost, is_wanted):
        function = Module.__dict__[name]

        @functools.wraps(function)
        def called(self, *arguments, **keywords):
            if is_compiling():
                return function(self, *arguments, **keywords)
            depth.calls += 1
            try:
                result = function(self, *arguments, **keywords)
            finally:
                depth.calls -= 1
            if depth.calls == 0 or not is_outermost:
                try:
                    if is_wanted(self):
                        scan(self, set())
                except Exception:
                    pass
            return result

        setattr(Module, name, called)

    def is_train_wanted(module):
        watch_wrappers()
        known = find(modules, module)
        if known is None:
            return True
        known.steps += 1
        return is_due(known.steps)

    after("_apply", True, lambda module: True)
    after("train", True, is_train_wanted)
    after("__setstate__", False, lambda module: True)

    # Copies of parameters that a wrapper makes, and puts in their place past all hooks.

    def tell_gathered(its_parameter):
        """FSDP2's: whole, while its module runs."""
        place = its_parameter._module_info
        tell_tensor(number_of(place.module), place.param_name + ".gathered", PARAMETER, its_parameter._unsharded_param)

    def tell_replicas(module, replicas):
        """DataParallel's: several of a replica may lie in one storage."""
        for i, replica in enumerate(replicas):
            for role, table, copies, together in (
                (PARAMETER, "_parameters", "_former_parameters", "parameters_%d"),
                (BUFFER, "_buffers", "_buffers", "buffers_%d"),
            ):
                of_storage = {}
                for its_module, copied in zip(module.modules(), replica.modules()):
                    for name, copy in getattr(copied, copies).items():
                        if copy is None:
                            continue
                        storage = copy.untyped_storage().data_ptr()
                        if getattr(its_module, table)[name].untyped_storage().data_ptr() != storage:
                            of_storage.setdefault(storage, []).append((its_module, name, copy))
                several = 0
                for (its_module, name, copy), *others in of_storage.values():
                    if others:
                        its_module, name, several = module, together % several, several + 1
                    # Under no_grad a copy does not require grad, whatever its parameter does.
                    tell_tensor(number_of(its_module), "%s.replica_%d" % (name, i), role, copy, is_copy=True)

    def tell_after(kind, name, tell):
        function = kind.__dict__[name]

        @functools.wraps(function)
        def called(self, *arguments):
            result = function(self, *arguments)
            if not is_compiling():
                try:
                    tell(self, arguments, result)
                except Exception:
                    pass
            return result

        setattr(kind, name, called)

    def label(kind, name, text):
        """Whose it is what a wrapper makes for itself, outside of its forward function."""
        function = kind.__dict__[name]

        @functools.wraps(function)
        def called(self, *arguments, **keywords):
            books.begin_label(text)
            try:
                return function(self, *arguments, **keywords)
            finally:
                books.end_label()

        setattr(kind, name, called)

    def note_inputs(kind, name, inputs_of):
        """Tells of tensors that a function, a static method, keeps for backward to begin with."""
        function = kind.__dict__[name].__func__

        @functools.wraps(function)
        def called(*arguments):
            if not is_compiling():
                try:
                    for tensor in inputs_of(*arguments):
                        if isinstance(tensor, Tensor):
                            for _, cdata in parts_of(tensor):
                                books.add_checkpointed(cdata)
                except Exception:
                    pass
            return function(*arguments)

        setattr(kind, name, staticmethod(called))

    def watch_wrappers():
        """At their first use that is seen: they are imported long after torch, or never."""
        for wrapper in list(unwatched):
            module, name, watch = wrapper
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                unwatched.remove(wrapper)
                watch(kind)

    unwatched = [
        (
            "torch.distributed.fsdp._fully_shard._fsdp_param",
            "FSDPParam",
            lambda kind: tell_after(kind, "to_unsharded", lambda self, arguments, result: tell_gathered(self)),
        ),
        # A device_map: puts parameters on their devices past all hooks.
        (
            "accelerate.hooks",
            "AlignDevicesHook",
            lambda kind: tell_after(kind, "init_hook", lambda self, arguments, result: scan(arguments[0], set())),
        ),
        # Activation checkpointing, of both kinds: they save all tensors that they are given, if
        # there will be a backward pass. In the methods grad mode is off; ctx knows.
        (
            "torch.utils.checkpoint",
            "CheckpointFunction",
            lambda kind: note_inputs(kind, "forward", lambda ctx, function, preserve, *inputs: inputs if ctx.next_functions else ()),
        ),
        (
            "torch.utils.checkpoint",
            "_NoopSaveInputs",
            lambda kind: note_inputs(kind, "setup_context", lambda ctx, inputs, output: inputs if ctx.next_functions else ()),
        ),
    ]
    tell_after(
        torch.nn.DataParallel,
        "replicate",
        lambda self, arguments, result: tell_replicas(arguments[0], result),
    )

    # Its first buckets. The next ones it makes in its forward function, which has a scope.
    DistributedDataParallel = torch.nn.parallel.DistributedDataParallel
    if "_ddp_init_helper" in DistributedDataParallel.__dict__:
        label(DistributedDataParallel, "_ddp_init_helper", b"DistributedDataParallel.__init__")

    holders = Holders(books)
    books.set_searcher(holders.look_now)

    @atexit.register
    def at_end():
        for last_look in [scan_all, tell_all_states, lambda: holders.look(at_exit=True)] + ([profiled.describe_others] if profiled else []):
            try:
                last_look()
            except Exception:
                pass  # something is not registered
        books.program_ends()

    nn_module.register_module_module_registration_hook(on_module)
    nn_module.register_module_parameter_registration_hook(on_parameter)
    nn_module.register_module_buffer_registration_hook(on_buffer)
    optim.register_optimizer_step_pre_hook(before_step)
    optim.register_optimizer_step_post_hook(after_step)


class Finder:
    """Tells PyTorch of begin() where it looks for packages that extend it: the end of its import."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None

    @staticmethod
    def find_distributions(context=None):
        from importlib.metadata import Distribution, EntryPoint

        class Begin(EntryPoint):
            def load(self):
                return begin_once

        class Memledger(Distribution):
            entry_points = [Begin("memledger", "_memledger:begin", "torch.backends")]
            metadata = {"Name": "memledger-run", "Version": "0"}

            def read_text(self, filename):
                return None

            def locate_file(self, path):
                return None

        if getattr(context, "name", None) in (None, "memledger-run"):
            yield Memledger()


def begin_once():
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
        try:
            begin()
        except Exception:
            pass


def start():
    torch = sys.modules.get("torch")
    sys.meta_path.append(Finder)
    spec = getattr(torch, "__spec__", None)
    if torch is not None and not getattr(spec, "_initializing", False):
        begin_once()


start()
#)PYTHON"
