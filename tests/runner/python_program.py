"""Programs that have never heard of memledger, for python_names_test.sh. Each tells what it has.

Usage: python_program.py MODE [DEVICE]
"""

import copy
import functools
import gc
import itertools
import os
import sys
import threading
import time
import weakref

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, tokens=512, width=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.embedding.weight = self.head.weight  # tied

    def forward(self, x):
        y = self.embedding(x)
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2))


class Placed(torch.Tensor):
    """Wraps a tensor, and tells beside it what is none, as DTensor does from torch 2.15 on."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self._local_tensor = inner
        self.place = "here"

    def __tensor_flatten__(self):
        return ["_local_tensor", "place"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        raise NotImplementedError(function)


def loss_of(model, device="cpu"):
    x = torch.randint(0, 512, (8, 32), device=device)
    return F.cross_entropy(model(x).flatten(0, 1), x.flatten())


def train(model, optimizer, device="cpu", steps=3):
    for _ in range(steps):
        loss_of(model, device).backward()
        optimizer.step()
        optimizer.zero_grad()


def size_of(tensor):
    return getattr(tensor, "_local_tensor", tensor).untyped_storage().nbytes()


def tell(prefix, model, optimizer=None):
    """NAME ROLE BYTES of each tensor with its own storage."""
    for name, tensor in model.named_parameters():
        print(prefix + name, "parameter", size_of(tensor))
        for slot, state in (optimizer.state[tensor] if optimizer else {}).items():
            size = size_of(state)
            print(f"{type(optimizer).__name__}.{prefix}{name}.{slot}", "optimizer_state", size)
    for name, tensor in model.named_buffers():
        print(prefix + name, "buffer", size_of(tensor))


def mode_train(device):
    model = Model().to(device)
    model.register_buffer("placed", Placed(torch.zeros(64, 64, device=device)))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, device)
    tell("", model, optimizer)


def mode_large(device):
    """Weights and their states are what takes most."""
    model = Model(tokens=8192, width=1024).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, device)
    tell("", model, optimizer)


def mode_moved_states(device):
    """As Lightning does at the end; and a closure, which runs within the optimizer's step, keeps something."""
    global kept, model, optimizer
    kept = []
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def closure():
        optimizer.zero_grad()
        kept.append(torch.ones(256, 256, device=device) * 2)
        loss = loss_of(model, device)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    for parameter, states in optimizer.state.items():
        optimizer.state[parameter] = {name: state.cpu().clone() for name, state in states.items()}
    del parameter, states  # the last ones are there twice
    torch.ones(1 << 21)  # the peak
    tell("", model, optimizer)


def mode_threads(device):
    """A thread moves its module while another is in the middle of moving its own."""
    slow, quick = nn.PReLU(1 << 16), nn.BatchNorm1d(1 << 16)
    begun, moved = threading.Event(), threading.Event()

    def wait(tensor):
        begun.set()
        assert moved.wait(60)
        return tensor

    thread = threading.Thread(target=lambda: slow._apply(wait))
    thread.start()
    assert begun.wait(60)
    quick.double()  # its buffers are others now
    moved.set()
    thread.join()
    torch.ones(1 << 20)  # the peak
    tell("PReLU.", slow)
    tell("BatchNorm1d.", quick)


def mode_wrapped(device):
    """What wraps a model has no place in its names."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = Model().to(device)
    wrapped = torch.compile(nn.parallel.DistributedDataParallel(model), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    train(wrapped, optimizer, device)
    torch.distributed.destroy_process_group()
    tell("", model, optimizer)


def mode_wrapped_once(device):
    """DDP's first buckets are of its constructor."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters())
    train(nn.parallel.DistributedDataParallel(model), optimizer, device, steps=1)
    torch.distributed.destroy_process_group()
    tell("", model)


def mode_copies(device):
    """Copies register nothing; a load that assigns, and parameters of another place, replace."""
    model = Model().to(device)
    average = copy.deepcopy(model)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    model.embedding.weight = model.head.weight
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, device)
    tell("Model.", model, optimizer)
    tell("Model#2.", average)


def mode_gathered(device, rank=0, ranks=1, place=None, steps=3):
    """FSDP2 gathers the parameters of the layer that runs."""
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.FileStore(place, ranks) if place else torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    mesh = torch.distributed.device_mesh.init_device_mesh(device, (ranks,))
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    train(model, optimizer, device, steps)
    torch.distributed.destroy_process_group()
    tell("", model, optimizer)


def mode_gathered_long(device):
    mode_gathered(device, steps=1000)


def mode_two_ranks(rank, place):
    mode_gathered("cpu", int(rank), 2, place)


def mode_replicated(device):
    """DataParallel copies the parameters to the second GPU in each step, in one piece."""
    model = Model().cuda()
    model.embedding.weight = nn.Parameter(model.embedding.weight.detach().clone())  # not tied
    wrapped = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    train(wrapped, optimizer, "cuda")
    if device == "cuda:0":
        tell("", model, optimizer)
        return
    print("parameters_0.replica_1", "parameter", sum(tensor.nbytes for tensor in model.parameters()))
    print("buffers_0.replica_1", "buffer", 2 * 256)  # mean and variance


def mode_checkpointed(device):
    """The wrapper's own module has no place in names. What it is given under no_grad it does not keep."""
    global unsaved
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as checkpoint

    model = Model().to(device)
    checkpoint.apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, device)
    with torch.no_grad():
        unsaved = model.embedding(torch.randint(0, 512, (3, 32), device=device))
        model.blocks[0](unsaved)
    names = {tensor: name.replace("_checkpoint_wrapped_module.", "") for name, tensor in model.named_parameters()}
    for tensor, name in names.items():
        print(name, "parameter", size_of(tensor))
        for slot, state in optimizer.state[tensor].items():
            print(f"AdamW.{name}.{slot}", "optimizer_state", size_of(state))
    for name, tensor in model.named_buffers():
        print(name, "buffer", size_of(tensor))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class RandomBlock(nn.Module):
    """Keeps what it makes in `kept`, and tells it to `note`, with the layer."""

    def __init__(self, kind, width, note):
        super().__init__()
        self.kind, self.note = kind, note
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.note(self.norm(x), "norm")
        y = self.note(self.up(y), "up")
        if self.kind == "square":
            y = self.note(Square.apply(y), "up")
        elif self.kind == "dropout":
            y = self.note(F.dropout(y, 0.5), "up")
        elif self.kind == "in place":
            y = torch.relu_(y)
        else:
            y = self.note(F.gelu(y), "up")
        y = self.note(self.down(y), "down")
        return y if self.kind == "plain" else self.note(x + y, "down")


def mode_random_checkpoints(device):
    """Networks with checkpoints around some of their blocks. Tells NETWORK LAYER RECOMPUTED BYTES of what it keeps."""
    global kept
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    kept, sums = [], {}
    for seed in range(10):
        for how in ("without", "reentrant", "not_reentrant", "mixed"):
            random = __import__("random").Random(seed)
            width, rows = random.randrange(8, 24), random.randrange(4, 40)
            # The process knows it by its type.
            network = type(f"Seed{seed}{how}", (nn.Sequential,), {})()
            within_backward = False

            def note(y, layer, index):
                kept.append(y.detach())
                key = (type(network).__name__, f"{index}.{layer}", within_backward)
                sums[key] = sums.get(key, 0) + size_of(y)
                return y

            blocks, checkpoints = [], []
            for index in range(random.randrange(2, 6)):
                kind = random.choice(["plain", "residual", "square", "dropout", "in place"])
                blocks.append(RandomBlock(kind, width, functools.partial(note, index=index)))
                checkpoints.append(random.random() < 0.6)
            network.extend(blocks).to(device)
            x = torch.randn(rows, width, device=device, requires_grad=True)
            for block, is_checkpoint in zip(blocks, checkpoints):
                if how == "without" or not is_checkpoint:
                    x = block(x)
                else:
                    reentrant = how == "reentrant" or (how == "mixed" and random.random() < 0.5)
                    x = checkpoint(block, x, use_reentrant=reentrant)
            within_backward = True
            with set_checkpoint_early_stop(False):
                x.sum().backward()
            kept.append(network)
    del x
    for (name, layer, recomputed), size in sums.items():
        print(name, layer, recomputed, size)


def mode_dispatched(device):
    """Hugging Face's device_map: hooks move what goes between the GPUs."""
    import accelerate

    model = Model(layers=4).eval()
    model.embedding.weight = nn.Parameter(model.embedding.weight.detach().clone())
    places = {"embedding": 0, "blocks.0": 0, "blocks.1": 0, "blocks.2": 1, "blocks.3": 1, "norm": 1, "head": 1}
    model = accelerate.dispatch_model(model, places)
    with torch.no_grad():
        model(torch.randint(0, 512, (8, 32), device="cuda:0"))
    for name, tensor in model.named_parameters():
        if str(tensor.device) == device:
            print(name, "parameter", size_of(tensor))
    for name, tensor in model.named_buffers():
        if str(tensor.device) == device:
            print(name, "buffer", size_of(tensor))


def mode_compiled_parts(device, backend="aot_eager"):
    """What eager code makes of a compiled graph's results belongs to that graph."""
    model = nn.Sequential(nn.Embedding(512, 64), Feed(64), nn.Linear(64, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    train_large(torch.compile(model, backend=backend), optimizer, device)
    tell("", model, optimizer)


def mode_scripted(device):
    """What TorchScript differentiates itself."""
    model = torch.jit.script(nn.Sequential(nn.Embedding(512, 64), Feed(64), Feed(64), nn.Linear(64, 512)).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    train_large(model, optimizer, device)
    tell("", model, optimizer)


def train_large(model, optimizer, device):
    """Activations take most."""
    for _ in range(4):
        x = torch.randint(0, 512, (32, 128), device=device)
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def mode_external(device):
    """Memory that is not LibTorch's; what stays lies in variables of the module."""
    global mapped, shared, array
    import numpy

    torch.save({"w": torch.ones(1 << 18)}, "checkpoint.pt")
    mapped = torch.load("checkpoint.pt", mmap=True)["w"]
    shared = torch.ones(1 << 17).share_memory_()
    array = torch.from_numpy(numpy.ones(1 << 16, dtype=numpy.float32))
    print((shared + 1).sum().item(), array.sum().item())
    torch.from_numpy(numpy.ones(1 << 15, dtype=numpy.float32)).sum()  # has gone by the end


def mode_held(device):
    """What is still alive at the end, and by which variables."""
    global outputs, best
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    outputs, best = [], {"metric": None}
    for step in range(4):
        model(torch.ones(16, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(model(torch.ones(32, 64)))  # and its graph
        best["metric"] = torch.ones(1000)


class Keeps:
    """Tells of reads that are not the program's own."""

    __slots__ = ("slot", "__dict__")
    shared = None

    @property
    def value(self):
        print("called", "value")
        return self.slot

    def __getattribute__(self, name):
        if sys._getframe(1).f_code.co_filename == "<memledger>":
            print("called", name)
        return object.__getattribute__(self, name)


class Gate(torch.autograd.Function):
    """Its result is on its ctx: a cycle."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = torch.sigmoid(x)
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, extra, note):
        ctx.save_for_backward(extra)
        ctx.notes = [note]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g, None, None


def raise_with(size):
    hidden = torch.ones(size)
    raise ValueError(hidden.shape)


def wait_with(size, begun):
    waiting = torch.ones(size)
    begun.set()
    time.sleep(600)
    del waiting


def yield_with(size):
    yielded = torch.ones(size)
    yield 1
    del yielded


def closure_with(size):
    enclosed = torch.ones(size)
    return lambda: enclosed


def mode_holders(device):
    """SIZE HOLDER of each tensor that is alive at the end."""
    global keeper, error, generator, closure, callbacks, saved, features, net, late, plain
    gc.disable()
    sizes = itertools.count(100001)

    def one(holder):
        size = next(sizes)
        print(4 * size, holder)
        return size

    keeper = Keeps()
    keeper.history = [None, {"best": (torch.ones(one("keeper.history[1]['best'][0]")),)}]
    keeper.slot = torch.ones(one("keeper.slot"))
    Keeps.shared = torch.ones(one("Keeps.shared"))
    size = one("hidden in raise_with() (LINE), kept by the exception error")
    try:
        raise_with(size)
    except ValueError as raised:
        error = raised
    begun = threading.Event()
    size = one("waiting in wait_with() (LINE)")
    threading.Thread(target=wait_with, args=(size, begun), daemon=True).start()
    begun.wait(60)
    generator = yield_with(one("yielded in yield_with() (LINE), kept by the generator generator"))
    next(generator)
    closure = closure_with(one("enclosed in the closure of closure"))
    callbacks = [functools.partial(print, torch.ones(one("callbacks[0].args[0]")))]
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].last = torch.ones(one("net.0.last"))
    x = torch.ones(3, requires_grad=True)
    extra = torch.ones(one("a saved tensor of SavesBackward in the graph of saved"))
    note = torch.ones(one("ctx.notes[0] of SavesBackward in the graph of saved"))
    saved = Saves.apply(x, extra, note)
    print(4 * 500000, "torch.nn.functional.kept[0]")  # large: found by what refers to it
    torch.nn.functional.kept = [torch.ones(500000)]
    leaf = torch.ones(one("MulBackward0.self in the graph of late"))
    late = (leaf * x[0]).sum() * 2
    features = [torch.ones(one("features[0], which shows 1/1000 of it"))[:100]]
    size = one("a cycle: y -> GateBackward's ctx -> y")
    print(4 * size, "AccumulateGrad.variable in the graph of a cycle: y -> GateBackward's ctx -> y")
    gate = torch.ones(size, requires_grad=True)
    Gate.apply(gate)
    del leaf, gate, extra, note


def mode_packaged(device):
    """A library's function makes what its caller wants."""
    import os

    os.makedirs("site-packages", exist_ok=True)
    with open("site-packages/somebodys.py", "w") as file:
        file.write("import torch\n\ndef make(size):\n    return torch.ones(size)\n")
    sys.path.insert(0, os.path.abspath("site-packages"))
    import somebodys

    made = somebodys.make(1 << 22)  # the user's line
    print(made.numel())


class Adapter(nn.Module):
    """Frozen, but for two factors of low rank."""

    def __init__(self, width):
        super().__init__()
        self.base_layer = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(width, 8, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(8, width, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def mode_adapted(device):
    model = nn.Sequential(Adapter(1024), nn.ReLU(), Adapter(1024)).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(3):
        model(torch.ones(4, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def mode_set_by_hand(device):
    """A gradient that the program sets, beside a thread such as a progress bar has."""
    global layer
    layer = nn.Linear(1024, 1024, bias=False)
    layer.weight.grad = torch.ones(1024, 1024)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def mode_uncaught(device):
    raise_with(100000)


class Runner:
    def __init__(self):
        self.outs = []


def mode_kept_graph(device):
    """An evaluation that keeps its results with their graphs."""
    global runner
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    runner = Runner()
    for _ in range(20):
        runner.outs.append(model(torch.ones(256, 64)))


def mode_views(device):
    global features
    features = [torch.ones(16, 64, 64)[:, 0] for _ in range(10)]


def fail(size):
    hidden = torch.ones(size)
    return hidden, torch.empty(1 << 61, dtype=torch.uint8)


def mode_failures(device):
    """The first failure's exception is kept."""
    global last_error
    for size in (1 << 20, 1 << 10):
        try:
            fail(size)
        except RuntimeError as error:
            last_error = last_error if size < 1 << 20 else error
            time.sleep(0.01)
    print("caught", "caught")


def mode_demand(device):
    import signal

    keeper = Keeps()
    local = torch.ones(1 << 20)
    keeper.history = [local]
    alive = weakref.ref(local)
    os.kill(os.getpid(), signal.SIGUSR2)
    for _ in range(100):
        time.sleep(0.01)
    keeper.history.clear()
    del local
    print("alive" if alive() is not None else "freed", flush=True)
    keeper.history.append(torch.ones(1 << 20))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def mode_generate(device, mode=torch.no_grad):
    """A cache that grows in layers computed without grad mode, whose parameters need none there."""
    model = Model().to(device).eval()
    caches = [torch.tensor([], device=device) for _ in model.blocks]
    with mode():
        for _ in range(3):
            y = model.embedding(torch.randint(0, 512, (64, 32), device=device))
            for i, block in enumerate(model.blocks):
                y = block(y)
                caches[i] = torch.cat([caches[i], block.mlp(y)])
    tell("", model)


def mode_inference(device):
    mode_generate(device, torch.inference_mode)


def mode_many(device):
    """1000 modules and optimizers, made and dropped: what is left of them?"""
    for _ in range(1000):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        model.eval()
    del model, optimizer
    gc.collect()
    alive = [o for o in gc.get_objects() if isinstance(o, (nn.Module, torch.optim.Optimizer, nn.Parameter))]
    print("alive", len(alive))


def mode_compiled(device):
    """What torch.compile counts. Registrations and an optimizer's step are compiled, too."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled, step = torch.compile(model, backend="eager"), torch.compile(lambda: optimizer.step(), backend="eager")

    @torch.compile(backend="eager")
    def make(x):
        layer = nn.Linear(4, 4)
        layer.register_buffer("extra", torch.ones(4))
        layer.add_module("relu", nn.ReLU())
        layer.eval()
        return layer(x) + layer.extra

    for i in range(4):
        loss_of(compiled).backward()
        optimizer.step() if i < 2 else step()
        optimizer.zero_grad()
        make(torch.ones(2, 4))
    for name, counts in sorted(torch._dynamo.utils.counters.items()):
        print(name, {key.split("\n")[0]: count for key, count in sorted(counts.items())})


def mode_hooks_fail(device):
    """Modules that look odd to a hook work as ever."""

    class Odd(nn.Module):
        def __eq__(self, other):
            raise RuntimeError("not to be compared")

        __hash__ = nn.Module.__hash__

        def __getattribute__(self, name):
            if name == "_buffers" and sys._getframe(1).f_code.co_filename == "<memledger>":
                raise RuntimeError("not for you")
            return super().__getattribute__(name)

    odd = Odd()
    odd.weight = nn.Parameter(torch.ones(3))
    odd.part = nn.Linear(3, 3)
    odd.eval()
    print("odd", len(list(odd.parameters())))


def forward_that_needs_too_much():
    return torch.empty(1 << 60, dtype=torch.uint8)


def mode_out_of_memory(device):
    try:
        forward_that_needs_too_much()
    except RuntimeError:
        print("caught")


def mode_lines(device):
    kept = torch.ones(1 << 22)
    model = nn.Linear(1024, 4096)
    y = model(torch.ones(1024, 1024))
    print("kept", kept.nbytes, y.nbytes)
    print("compiler imported:", "torch._inductor" in sys.modules)


def mode_ends(how):
    """However it ends."""
    model = nn.Linear(1024, 768)  # 3 MiB
    model(torch.ones(2, 1024)).sum().backward()
    print("ready", flush=True)
    if how == "exception":
        raise RuntimeError("no data")
    elif how == "_exit":
        os._exit(4)
    elif how == "abort":
        os.abort()
    while how == "wait":
        time.sleep(0.1)


globals()["mode_" + sys.argv[1]](*(sys.argv[2:] or ["cpu"]))
