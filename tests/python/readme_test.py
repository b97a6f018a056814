"""The Python examples of pytorch_memlab, Pytorch-Memory-Utils, pytorch_mem_profiler and TRUMPY, with memledger in their
place: on cuda:0 where torch sees one, else on the CPU. What they print is held against the READMEs and sizes by hand:
(1024, 1024) floats are 4.00M, (512, 1024) 2.00M, (1024,) 4.00K; a scalar is 4 bytes in a block of 512."""

import contextlib
import gc
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest

import torch

import memledger

GPU = torch.cuda.is_available()


class Finder:
    """`from TOOL import NAME` gives memledger's."""

    tools = ("pytorch_memlab", "gpu_mem_track", "modelsize_estimate", "pytorch_mem_profiler", "trumpy")


for tool in Finder.tools:
    sys.modules[tool] = memledger


def run(code):
    if not GPU:
        code = code.replace(".cuda()", "").replace("cuda:0", "cpu").replace(".cuda(0)", "")
    gc.collect()  # what the example before has left
    if GPU:
        torch.cuda.empty_cache()
    out = io.StringIO()
    file = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)
    with file:
        file.write(code)
    with contextlib.redirect_stdout(out):
        exec(compile(code, file.name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


DEVICE = "cuda:0" if GPU else "cpu"
SCALAR = "512.00B" if GPU else "4.00B"


def tables(text):
    """The rows of each table of the device: name, size, memory."""
    found = []
    for table in text.split("Element type")[1:]:
        part = table.split(f"Storage on {DEVICE}\n")
        rows = part[1].split("\n---")[0].splitlines() if len(part) > 1 else []
        found.append([(row[:40].strip(), row[40:60].strip(), row[60:70].strip()) for row in rows])
    return found


class Memlab(unittest.TestCase):
    def test_line_profiler(self):
        text = run(
            """
import torch
from pytorch_memlab import LineProfiler

def inner():
    torch.nn.Linear(100, 100).cuda()

def outer():
    linear = torch.nn.Linear(100, 100).cuda()
    linear2 = torch.nn.Linear(100, 100).cuda()
    inner()

with LineProfiler(outer, inner) as prof:
    outer()
prof.display()
"""
        )
        self.assertLess(text.index("## outer"), text.index("## inner"))
        self.assertIn("active_bytes", text)
        # 100 x 100 floats in blocks of 512 are 40448 bytes, 100 floats 512: 40.00K.
        linear = 40448 + 512 if GPU else 40000 + 400
        for line, peak in (("linear = torch", 1), ("linear2 = torch", 2), ("inner()", 3)):
            row = re.search(r"^ *([0-9.]+)K.*  " + re.escape(line), text, re.M)
            self.assertIsNotNone(row, line + text)
            self.assertAlmostEqual(float(row[1]), peak * linear / 1024, delta=0.02, msg=text)

    def test_profile_decorator(self):
        text = run(
            """
import torch
from pytorch_memlab import profile, profile_every, set_target_gpu
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(10, 10)
    @profile
    def forward(self, inp):
        return self.linear(inp)
@profile
def func():
    net1 = torch.nn.Linear(1024, 1024).cuda(0)
    set_target_gpu(0) if torch.cuda.is_available() else None
    net3 = torch.nn.Linear(1024, 1024).cuda(0)

func()
Net()(torch.ones(1, 10))
import memledger.lines
memledger.lines._print_global()
memledger.clear_global_line_profiler()
"""
        )
        self.assertIn("## func", text)
        self.assertIn("## Net.forward", text)
        self.assertRegex(text, r"4\.00M.*net1 = ")
        self.assertRegex(text, r"8\.0.M.*net3 = ")

    @unittest.skipUnless(torch.cuda.device_count() > 1, "the example has two GPUs")
    def test_two_gpus(self):
        text = run(
            """
import torch
from pytorch_memlab import profile, set_target_gpu
@profile
def func():
    net1 = torch.nn.Linear(1024, 1024).cuda(0)
    set_target_gpu(1)
    net2 = torch.nn.Linear(1024, 1024).cuda(1)
    set_target_gpu(0)
    net3 = torch.nn.Linear(1024, 1024).cuda(0)

func()
import memledger.lines
memledger.lines._print_global()
memledger.clear_global_line_profiler()
"""
        )
        # What the examples before have left: libraries' workspaces.
        before = float(re.search(r"([0-9.]+)[BM] .*@profile", text)[1])
        for net, peak in (("net1", before + 4), ("net2", 4), ("net3", before + 8)):
            self.assertAlmostEqual(float(re.search(rf"([0-9.]+)M .*    {net} = ", text)[1]), peak, delta=0.02, msg=text)

    def test_profile_every_mixed_with_profile(self):
        text = run(
            """
import torch
from pytorch_memlab import profile, profile_every
@profile
def inner():
    return torch.nn.Linear(10, 10).cuda()
@profile_every(1)
def func():
    return inner()
func()
func()
import memledger.lines
memledger.lines._print_global()
memledger.clear_global_line_profiler()
"""
        )
        self.assertEqual((text.count("## func"), text.count("## inner")), (2, 1))

    def test_columns(self):
        text = run(
            """
import torch
from pytorch_memlab import LineProfiler
def outer():
    torch.nn.Linear(100, 100).cuda()
with LineProfiler(outer) as prof:
    outer()
prof.display(columns=['active_bytes.all.current', 'allocation.all.allocated'])
"""
        )
        self.assertRegex(text, r"active_bytes +allocation +line +code")

    def shell(self):
        try:
            from IPython.core.interactiveshell import InteractiveShell
        except ImportError:
            self.skipTest("no IPython here")
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "pytorch_memlab")
        return shell

    def test_magics(self):
        shell = self.shell()
        here = "" if GPU else ".cpu()"
        last = 1 if torch.cuda.device_count() > 1 else 0
        cell = f"""import torch
from pytorch_memlab import profile, set_target_gpu
def func():
    net1 = torch.nn.Linear(1024, 1024).cuda(0)
    set_target_gpu({last})
    net2 = torch.nn.Linear(1024, 1024).cuda({last})
    set_target_gpu(0)
    net3 = torch.nn.Linear(1024, 1024).cuda(0)
"""
        if not GPU:
            cell = re.sub(r"\.cuda\(\d\)", here, cell).replace("set_target_gpu(0)", "set_target_gpu('cpu')")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            shell.run_cell("%%mlrun -f func\n" + cell)
            shell.run_cell(
                "import torch\nfrom pytorch_memlab import profile, set_target_gpu\ndef func(input_size):\n"
                f"    net1 = torch.nn.Linear(input_size, 1024){'.cuda(0)' if GPU else ''}\n%mlrun -f func func(2048)"
            )
        first, second = out.getvalue().split("## ")[1:]
        self.assertIn("net3 = ", first)  # the cell makes the function, and calls it nowhere
        self.assertRegex(second, r"8\.0.M .*    net1 = torch.nn.Linear\(input_size, 1024\)")

    def test_minimal(self):
        text = run(
            """
import torch
from pytorch_memlab import MemReporter
linear = torch.nn.Linear(1024, 1024).cuda()
reporter = MemReporter()
reporter.report()
"""
        )
        sizes = [row[1:] for row in tables(text)[0] if "1024" in row[1]]
        self.assertEqual(sizes, [("(1024, 1024)", "4.00M"), ("(1024,)", "4.00K")])
        self.assertIn(f"The allocated memory on {DEVICE}: ", text)

    def test_before_and_after_backward(self):
        text = run(
            """
import torch
from pytorch_memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names
reporter = MemReporter(linear)
out = linear(inp).mean()
print('========= before backward =========')
reporter.report()
out.backward()
print('========= after backward =========')
reporter.report()
"""
        )
        before, after = tables(text)
        self.assertEqual(
            [row for row in before if not row[0].startswith("Tensor")],
            [("weight", "(1024, 1024)", "4.00M"), ("bias", "(1024,)", "4.00K")],
        )
        self.assertIn(("weight.grad", "(1024, 1024)", "4.00M"), after)
        self.assertIn(("bias.grad", "(1024,)", "4.00K"), after)
        for table in (before, after):
            anonymous = [row[1:] for row in table if row[0].startswith("Tensor")]
            self.assertIn(("(512, 1024)", "2.00M"), anonymous)
            self.assertIn(("(1,)", SCALAR), anonymous)

    def test_shared_weights(self):
        text = run(
            """
import torch
from pytorch_memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
linear2 = torch.nn.Linear(1024, 1024).cuda()
linear2.weight = linear.weight
container = torch.nn.Sequential(
    linear, linear2
)
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names

out = container(inp).mean()
out.backward()

# verbose shows how storage is shared across multiple Tensors
reporter = MemReporter(container)
reporter.report(verbose=True)
"""
        )
        rows = tables(text)[0]
        for name in ("0.weight+1.weight", "0.weight.grad+1.weight.grad"):
            self.assertIn((name, "(1024, 1024)", "4.00M"), rows)
        for name in ("0.bias", "0.bias.grad", "1.bias", "1.bias.grad"):
            self.assertIn((name, "(1024,)", "4.00K"), rows)

    def test_lstm(self):
        text = run(
            """
import torch
from pytorch_memlab import MemReporter

lstm = torch.nn.LSTM(1024, 1024).cuda()
reporter = MemReporter(lstm)
reporter.report(verbose=True)
inp = torch.Tensor(10, 10, 1024).cuda()
out, _ = lstm(inp)
out.mean().backward()
reporter.report(verbose=True)
"""
        )
        before, after = tables(text)
        if GPU:
            for table, grad in ((before, ""), (after, ""), (after, ".grad")):
                self.assertIn(("weight_ih_l0" + grad, "(4096, 1024)", "32.03M"), table)
                for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                    self.assertIn(f"{name}{grad}(->weight_ih_l0{grad})", [row[0] for row in table])
        else:
            self.assertIn(("weight_hh_l0", "(4096, 1024)", "16.00M"), before)
            self.assertIn(("weight_hh_l0.grad", "(4096, 1024)", "16.00M"), after)
        # Each tensor has a row: input and output, two states.
        sizes = [row[1:] for row in after if row[0].startswith("Tensor")]
        self.assertEqual(sizes.count(("(10, 10, 1024)", "400.00K")), 2, after)
        self.assertGreaterEqual(sizes.count(("(1, 10, 1024)", "40.00K")), 2, after)

    def test_buffers_of_c(self):
        text = run(
            """
import torch
from pytorch_memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names
reporter = MemReporter(linear)
out = linear(inp * (inp + 2)).mean()
reporter.report()
"""
        )
        rows = [row[1:] for row in tables(text)[0]]
        # The second is what the original loses.
        self.assertEqual(rows.count(("(512, 1024)", "2.00M")), 2)

    def test_device_filter(self):
        text = run(
            f"""
import torch
from pytorch_memlab import MemReporter
linear = torch.nn.Linear(10, 10)
MemReporter(linear).report(device=torch.device("{DEVICE}"))
"""
        )
        self.assertEqual(re.findall("Storage on (.*)", text), [DEVICE])

    def test_courtesy(self):
        text = run(
            """
import torch
from pytorch_memlab import Courtesy
linear = torch.nn.Linear(1024, 1024).cuda()
before = linear.weight.detach().clone().cpu()
iamcourtesy = Courtesy()
for i in range(2):
    if i == 1:
        iamcourtesy.yield_memory()
        print(torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)
        iamcourtesy.restore()
print(torch.equal(before, linear.weight.detach().cpu()))
"""
        )
        self.assertEqual(text.split()[1], "True")
        if GPU:
            # Workspaces of LibTorch's that stay apart, nothing is left there.
            self.assertLess(int(text.split()[0]), 1 << 20)


class MemoryUtils(unittest.TestCase):
    def test_tracker(self):
        try:
            from torchvision import models
        except ImportError:
            self.skipTest("no torchvision here")
        if not GPU:
            self.skipTest("1.2 GB on a GPU that is not there")
        os.chdir(tempfile.mkdtemp())
        run(
            """
import torch

from torchvision import models
from gpu_mem_track import MemTracker

device = torch.device('cuda:0')

gpu_tracker = MemTracker()         # define a GPU tracker

gpu_tracker.track()                     # run function between the code line where uses GPU
cnn = models.vgg19(weights=None).features.to(device).eval()
gpu_tracker.track()                     # run function between the code line where uses GPU

dummy_tensor_1 = torch.randn(30, 3, 512, 512).float().to(device)  # 90.00M
dummy_tensor_2 = torch.randn(40, 3, 512, 512).float().to(device)  # 120.00M
dummy_tensor_3 = torch.randn(60, 3, 512, 512).float().to(device)  # 180.00M

gpu_tracker.track()

dummy_tensor_4 = torch.randn(120, 3, 512, 512).float().to(device)  # 360.00M
dummy_tensor_5 = torch.randn(80, 3, 512, 512).float().to(device)  # 240.00M

gpu_tracker.track()

dummy_tensor_4 = dummy_tensor_4.cpu()
dummy_tensor_2 = dummy_tensor_2.cpu()
gpu_tracker.clear_cache() # or torch.cuda.empty_cache()

gpu_tracker.track()
"""
        )
        (log,) = pathlib.Path(".").glob("*-gpu_mem_track.txt")
        text = log.read_text()
        rows = re.findall(r"^([+-]) \| (\d+) \* Size:(\(.*?\)) *\| Memory: ([0-9.]+) M", text, re.M)
        for row in (
            ("+", "7", "(512, 512, 3, 3)", "63.0"),
            ("+", "3", "(256, 256, 3, 3)", "6.75"),
            ("+", "1", "(64, 64, 3, 3)", "0.1406"),
            ("+", "1", "(64, 3, 3, 3)", "0.0065"),
            ("+", "1", "(60, 3, 512, 512)", "180.0"),
            ("+", "1", "(40, 3, 512, 512)", "120.0"),
            ("+", "1", "(30, 3, 512, 512)", "90.0"),
            ("+", "1", "(120, 3, 512, 512)", "360.0"),
            ("+", "1", "(80, 3, 512, 512)", "240.0"),
            ("-", "1", "(40, 3, 512, 512)", "120.0"),
            ("-", "1", "(120, 3, 512, 512)", "360.0"),
        ):
            self.assertIn(row, rows)
        self.assertEqual(re.findall(r": <module> +Total Tensor Used Memory:([0-9.]+)", text)[1:], ["76.4", "466.4", "1066.4", "586.4"])

    def test_modelsize(self):
        text = run(
            """
import torch
from modelsize_estimate import modelsize
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3, padding=1))
modelsize(model, torch.randn(1, 3, 16, 16))
"""
        )
        self.assertIn(f"Model Sequential : params: {(3 * 8 * 9 + 8 + 8 * 4 * 9 + 4) * 4 / 1e6:f}M", text)
        self.assertIn(f"Model Sequential : intermedite variables: {12 * 16 * 16 * 4 / 1e6:f} M (without backward)", text)
        self.assertIn(f"Model Sequential : intermedite variables: {12 * 16 * 16 * 8 / 1e6:f} M (with backward)", text)


class MemProfiler(unittest.TestCase):
    def test_neumf(self):
        text = run(
            """
import torch
from pytorch_mem_profiler import *
class NeuMF(torch.nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.mf_user_embed = torch.nn.Embedding(users, 64)
        self.mf_item_embed = torch.nn.Embedding(items, 64)
        self.mlp_user_embed = torch.nn.Embedding(users, 128)
        self.mlp_item_embed = torch.nn.Embedding(items, 128)
        self.mlp = torch.nn.ModuleList([torch.nn.Linear(256, 256), torch.nn.Linear(256, 128), torch.nn.Linear(128, 64)])
        self.final = torch.nn.Linear(128, 1)
    def forward(self, user, item):
        mf = self.mf_user_embed(user) * self.mf_item_embed(item)
        x = torch.cat((self.mlp_user_embed(user), self.mlp_item_embed(item)), dim=1)
        for layer in self.mlp:
            x = torch.relu(layer(x))
        return self.final(torch.cat((mf, x), dim=1))
model = NeuMF(138493, 26744).cuda()
global profiler
profiler = memory_profiler(model, print_period=5, csv=False)
device = next(model.parameters()).device
for epoch in range(1):
    for batch_index in range(5):
        user = torch.zeros(64, dtype=torch.long, device=device)
        model.zero_grad()
        model(user, user).sum().backward()
        profiler.record_stats()
    profiler.epoch_end()
"""
        )
        self.assertIn("*" * 43 + "\nMemory Usage for Iteration 5 of Epoch 1\n" + "*" * 43, text)
        # The README's lines, with dot leaders to 43 columns.
        for line in (
            "Total layer weight usage.............127 MB",
            "  mf_user_embed.weight................35 MB",
            "  mf_item_embed.weight.................7 MB",
            "  mlp_user_embed.weight...............71 MB",
            "  mlp_item_embed.weight...............14 MB",
            "  mlp.0.weight.........................0 MB",
            "  final.bias...........................0 MB",
            "Total layer weight gradient usage....127 MB",
            "  mlp_user_embed.weight grad..........71 MB",
        ):
            self.assertIn("\n" + line + "\n", text)


TRUMPY = """
import torch
from torchvision.models.resnet import resnet50
device = torch.device('cpu')
net = resnet50().to(device)
input = torch.rand(2, 3, 224, 224).to(device)
loss = net(input).sum() # loss is the starting point of the backward computation graph
"""
# What it is at 16 images, per image: see examples/trumpy.cc. By hand over torch's own graph below.


class Trumpy(unittest.TestCase):
    def setUp(self):
        try:
            import torchvision  # noqa: F401
        except ImportError:
            self.skipTest("no torchvision here")

    def by_hand(self, net, loss):
        """What Python's own walk of the graph finds, each storage once, whole."""
        parameters = {parameter.untyped_storage().data_ptr() for parameter in [*net.parameters(), *net.buffers()]}
        seen, stack, storages = set(), [loss.grad_fn], {}
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
            for name in dir(node):
                value = getattr(node, name) if name.startswith("_saved") else None
                for tensor in value if isinstance(value, (tuple, list)) else [value]:
                    if isinstance(tensor, torch.Tensor):
                        storage = tensor.untyped_storage()
                        if storage.data_ptr() not in parameters:
                            storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def test_memory_for_backward(self):
        scope = {}
        exec(TRUMPY + "from trumpy import memory_for_backward\nsaved_memory = memory_for_backward(net, loss)", scope)
        self.assertEqual(scope["saved_memory"], self.by_hand(scope["net"], scope["loss"]))

    def test_get_tensors(self):
        scope = {}
        exec(
            TRUMPY
            + """
from trumpy import get_tensors_saved_for_backward
deduplicated = get_tensors_saved_for_backward(net, loss)
saved_memory = sum([tensor.element_size() * tensor.numel() for ptr, [tensor, operator_name] in deduplicated.items()])
""",
            scope,
        )
        self.assertEqual(scope["saved_memory"], self.by_hand(scope["net"], scope["loss"]))


if __name__ == "__main__":
    program = unittest.main(verbosity=1, exit=False)
    for test, why in program.result.skipped:
        print(f"SKIPPED: {test.id()}: {why}")  # CI reports it
    sys.exit(not program.result.wasSuccessful())
