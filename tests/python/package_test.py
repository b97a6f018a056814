"""`import memledger`, held against torch's own figures and sizes worked out by hand.

package_test.sh runs it with memledger alone, and under `memledger run`.
"""

import contextlib
import copy
import ctypes
import gc
import inspect
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import typing
import unittest
import weakref

import torch

before_import = torch.ones(1 << 20)  # 4 MiB that nobody has seen being born

import memledger  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20


def printed(function, *arguments, **keywords):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*arguments, **keywords)
    return out.getvalue()


def rows_of(reporter, device="cpu"):
    report = json.loads(reporter.to_json())
    return {row["name"]: row for one in report["devices"] if one["device"] == device for row in one["rows"]}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.inner = torch.nn.Sequential(torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 64, bias=False))

    def forward(self, input):
        return self.inner(torch.relu(self.first(input)))


class Reports(unittest.TestCase):
    def test_names_roles_and_bytes(self):
        net = Net()
        reporter = memledger.MemReporter(net)
        net(torch.randn(8, 64)).sum().backward()
        rows = rows_of(reporter)
        for name, parameter in net.named_parameters():
            self.assertEqual((rows[name]["role"], rows[name]["bytes"]), ("parameter", parameter.numel() * 4), name)
            self.assertEqual((rows[name + ".grad"]["role"], rows[name + ".grad"]["bytes"]), ("gradient", parameter.numel() * 4))
        self.assertEqual((rows["inner.0.running_mean"]["role"], rows["inner.0.running_mean"]["bytes"]), ("buffer", 512))
        self.assertEqual(rows["inner.1.weight"]["module"], "inner.1")

    def test_prefix_and_removal(self):
        net = Net()
        reporter = memledger.MemReporter().add_module("net", net)
        self.assertIn("net.first.weight", rows_of(reporter))
        reporter.remove("net")
        self.assertNotIn("net.first.weight", rows_of(reporter))
        with self.assertRaisesRegex(memledger.Error, "nothing|no "):
            reporter.remove("nobody")

    def test_optimizer_state(self):
        net = torch.nn.Linear(32, 16)
        optimizer = torch.optim.Adam(net.parameters())
        reporter = memledger.MemReporter(net).add_optimizer(optimizer)
        net(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        rows = rows_of(reporter)
        for slot in ("exp_avg", "exp_avg_sq"):
            row = rows["Adam.weight." + slot]
            self.assertEqual((row["role"], row["bytes"]), ("optimizer_state", 32 * 16 * 4))

    def test_rows_and_lines_add_up(self):
        net = Net()
        reporter = memledger.MemReporter(net)
        report = json.loads(reporter.to_json())
        for device in report["devices"]:
            self.assertEqual(device["unexplained_bytes"], 0)

    def test_a_tensor_that_wraps_one(self):
        class Placed(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

            def __init__(self, inner):
                self.inner, self.place = inner, "here"

            def __tensor_flatten__(self):  # DTensor reports what is no tensor from torch 2.15 on
                return ["inner", "place"], None

            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
                raise NotImplementedError(function)

        net = torch.nn.Module()
        net.register_buffer("placed", Placed(torch.zeros(64, 64)))
        row = rows_of(memledger.MemReporter(net))["placed"]
        self.assertEqual((row["role"], row["bytes"]), ("buffer", 64 * 64 * 4))

    def test_tied_weights(self):
        one, two = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
        two.weight = one.weight
        net = torch.nn.Sequential(one, two)
        rows = rows_of(memledger.MemReporter(net))
        self.assertEqual(rows["0.weight+1.weight"]["bytes"], 256 * 256 * 4)

    def test_from_before_the_import(self):
        rows = rows_of(memledger.MemReporter().add_tensor("old", before_import))
        self.assertEqual(rows["old"]["bytes"], 4 * MIB)

    def test_input_graph_and_why(self):
        net = torch.nn.Linear(64, 64)
        batch = torch.randn(32, 64)
        loss = net(batch).exp().sum()
        reporter = memledger.MemReporter(net).add_input("batch", batch).add_graph(loss)
        rows = rows_of(reporter)
        self.assertEqual((rows["batch"]["role"], rows["batch"]["bytes"]), ("input", 32 * 64 * 4))
        self.assertEqual((rows["ExpBackward0.result"]["role"], rows["ExpBackward0.result"]["bytes"]), ("saved", 32 * 64 * 4))
        self.assertIn("batch", reporter.why(batch))

    def test_peak(self):
        memledger.reset_peak("cpu")
        before = memledger.counters("cpu").current_bytes
        large = torch.empty(5 * MIB, dtype=torch.uint8)
        del large
        self.assertEqual(memledger.counters("cpu").peak_bytes - before, 5 * MIB)
        self.assertIn("5.00M", printed(memledger.MemReporter().report_peak, "cpu"))

    def test_training_paused(self):
        import threading

        stop = threading.Event()
        other = threading.Thread(target=stop.wait)
        other.start()
        try:
            model = torch.nn.Linear(3, 5, bias=False)
            reporter = memledger.MemReporter(model)
            model.weight.grad = torch.zeros(5, 3)

            def kind():
                rows = [row for device in json.loads(reporter.to_json("cpu"))["devices"] for row in device["rows"]]
                return [(row["kind"], row["bytes"]) for row in rows if row["name"] == "weight.grad"]

            self.assertEqual(kind(), [("unread", None)])
            with memledger.training_paused():
                self.assertEqual(kind(), [("storage", 60)])
            model.weight.grad = torch.zeros(5, 3)  # what was read is known from then on
            self.assertIn("training_paused", printed(reporter.report))
            self.assertNotIn("training_paused", printed(reporter.report, training_paused=True))
        finally:
            stop.set()
            other.join()
        self.assertEqual(kind(), [("storage", 60)])

    def test_label(self):
        with memledger.label("epoch 3"), memledger.label("encoder"):
            labelled = torch.empty(777)
        report = json.loads(memledger.MemReporter().to_json())
        labels = [row["label"] for device in report["devices"] for row in device["rows"] if row["bytes"] == 777 * 4]
        self.assertEqual(labels, ["epoch 3/encoder"])
        del labelled

    def test_errors_are_sentences(self):
        with self.assertRaisesRegex(ValueError, "no device"):
            memledger.MemReporter().report(device="gpu7")
        with self.assertRaisesRegex(memledger.Error, "there is no order `colour`"):
            memledger.MemReporter().report(sort="colour")
        with self.assertRaisesRegex(TypeError, "a list is no torch.nn.Module"):
            memledger.MemReporter([])
        with self.assertRaisesRegex(TypeError, "an? int, not a torch.Tensor"):
            memledger.MemReporter().add_tensor("x", 3)


class Lifetimes(unittest.TestCase):
    def test_nothing_is_kept_alive(self):
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        reporter, tracker = memledger.MemReporter(net), memledger.MemTracker(path=tempfile.mkdtemp())
        reporter.add_optimizer(optimizer)
        tracker.add_module("net", net)
        loss = net(torch.randn(8, 64)).sum()
        reporter.add_graph(loss)
        loss.backward()
        optimizer.step()
        references = [sys.getrefcount(tensor) for tensor in net.parameters()]
        printed(reporter.report, verbose=True)
        tracker.track()
        self.assertEqual([sys.getrefcount(tensor) for tensor in net.parameters()], references)
        told = weakref.ref(net), weakref.ref(net.first.weight), weakref.ref(optimizer)
        del net, optimizer, loss
        gc.collect()
        self.assertEqual([one() for one in told], [None] * 3)
        self.assertNotIn("first.weight", rows_of(reporter))
        tracker.track()

    def test_a_thousand_models_leave_nothing(self):
        def one():
            net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            reporter = memledger.MemReporter(net).add_optimizer(optimizer)
            loss = net(torch.ones(2, 16)).sum()
            loss.backward()
            optimizer.step()
            memledger.memory_for_backward(net, net(torch.ones(2, 16)).sum())
            return reporter

        def alive():
            gc.collect()
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            now = memledger.counters("cpu")
            return tensors, now.current_count, now.current_bytes

        one()
        before = alive()
        for i in range(1000):
            reporter = one()
            if i % 100 == 0:
                reporter.to_json()
        del reporter
        self.assertEqual(alive(), before)


class Copies(unittest.TestCase):
    """Each class that owns something of C++'s."""

    def owners(self):
        net = torch.nn.Linear(8, 4)
        loss = net(torch.ones(2, 8)).exp().sum()
        return net, [
            memledger.MemReporter(net),
            memledger.MemTracker(path=tempfile.mkdtemp(), device="cpu").add_module("net", net),
            memledger.saved_for_backward(loss, net),
            memledger.memory_profiler(net),
            memledger.LineProfiler(printed),
            memledger.Courtesy(net, device="cpu"),
        ]

    def test_every_kind_is_tried(self):
        kinds = {name[: -len("_free")] for name in memledger._library._functions if name.endswith("_free")}
        # Modules are in the reporter, a size lives for the length of one call.
        self.assertEqual(kinds - {"module", "size"}, {one._handle.kind for one in self.owners()[1]})

    def test_copies_are_the_object(self):
        net, owners = self.owners()
        for one in owners + [one._handle for one in owners] + [owners[0]._registered, owners[3]._mirror]:
            self.assertIs(copy.copy(one), one)
            self.assertIs(copy.deepcopy(one), one)
            self.assertIs(copy.deepcopy([one])[0], one)

    def test_a_model_with_an_attribute(self):
        net, net.owners = self.owners()
        tracker = net.tracker = net.owners[1]
        for _ in range(3):
            average = copy.deepcopy(net)  # as for an EMA
            self.assertIs(average.tracker, tracker)
            self.assertIsNot(average.weight, net.weight)
        del net, average
        gc.collect()
        self.assertIn("At package_test.py", tracker.track())
        del tracker
        gc.collect()
        torch.ones(4)

    def test_pickling_says_what_to_do(self):
        net, owners = self.owners()
        for one in owners:
            name = type(one).__name__
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with self.assertRaisesRegex(TypeError, f"a {name} cannot be pickled.*: (leave it out|pickle its to_)"):
                    pickle.dumps(one, protocol)
            net.owner = one
            with self.assertRaisesRegex(TypeError, f"a {name} cannot be pickled"):
                torch.save(net, io.BytesIO())
            torch.save(net.state_dict(), io.BytesIO())
        with self.assertRaisesRegex(TypeError, "a Handle cannot be pickled"):
            pickle.dumps(owners[0]._handle)

    def test_values_are_copied_and_pickled(self):
        net = torch.nn.Linear(8, 4)
        saved = memledger.saved_for_backward(net(torch.ones(2, 8)).exp().sum(), net)
        for value in (memledger.counters("cpu"), memledger.modelsize(net, torch.ones(2, 8), show=False), saved.rows()[0]):
            for made in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
                self.assertIsNot(made, value)
                self.assertEqual(repr(made), repr(value))


class Tracking(unittest.TestCase):
    def test_log(self):
        folder = tempfile.mkdtemp()
        tracker = memledger.MemTracker(path=folder, device="cpu")
        tracker.track()
        net = torch.nn.Linear(512, 512, bias=False)
        tracker.add_module("net", net)
        text = tracker.track("made")
        line = sys._getframe().f_lineno - 1
        self.assertIn("+ | 1 * Size:(512, 512)           | Memory: 1.0 M | Parameter            | torch.float32 | net.weight", text)
        self.assertIn(f"At package_test.py line {line}: test_log [made]", text)
        log = pathlib.Path(tracker.log_path())
        self.assertEqual(log.parent, pathlib.Path(folder).resolve())
        self.assertIn(text, log.read_text())
        tracker.remove("net")
        del net
        self.assertIn("- | 1 * Size:(512, 512)", tracker.track())

    def test_usage(self):
        tracker = memledger.MemTracker(path=tempfile.mkdtemp(), device="cpu")
        before = tracker.get_tensor_usage()
        kept = torch.empty(3 * MIB, dtype=torch.uint8)
        self.assertAlmostEqual(tracker.get_tensor_usage() - before, 3.0)
        self.assertIn("torch.Size([3145728]) torch.uint8 3.0", printed(tracker.print_all_gpu_tensor))
        del kept
        tracker.clear_cache()

    def test_unwritable(self):
        file = tempfile.NamedTemporaryFile()
        with self.assertRaisesRegex(memledger.Error, re.escape(file.name)):
            memledger.MemTracker(path=file.name + "/below")


class Graphs(unittest.TestCase):
    def test_memory_for_backward(self):
        net = torch.nn.Linear(64, 32)
        batch = torch.randn(16, 64)
        out = net(batch).exp()
        loss = out.sum()
        # exp() keeps its result, the layer its input.
        self.assertEqual(memledger.memory_for_backward(net, loss), 16 * 32 * 4 + 16 * 64 * 4)
        self.assertEqual(memledger.memory_for_backward(net, loss, inputs=[batch]), 16 * 32 * 4)
        saved = memledger.saved_for_backward(loss, net)
        self.assertTrue(saved.complete)
        self.assertIn("ExpBackward0", str(saved))

    def test_freed_graph(self):
        weight = torch.ones(4, requires_grad=True)
        loss = (weight * weight).sum()
        loss.backward()
        with self.assertRaises(memledger.Error):
            memledger.memory_for_backward(torch.nn.Linear(1, 1), loss)
        with self.assertRaises(memledger.Error):
            memledger.saved_for_backward(torch.ones(1))

    def test_get_tensors(self):
        net = torch.nn.Linear(64, 32)
        loss = net(torch.randn(16, 64)).exp().sum()
        found = memledger.get_tensors_saved_for_backward(net, loss)
        total = sum([tensor.element_size() * tensor.numel() for ptr, [tensor, operator_name] in found.items()])
        self.assertEqual(total, 16 * 32 * 4 + 16 * 64 * 4)
        slots = memledger.get_tensors_saved_for_backward(net, loss, duplicate=False)
        self.assertIn("ExpBackward0", slots.values())

    def test_modelsize(self):
        net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.BatchNorm1d(32), torch.nn.Dropout())
        mean, state = net[2].running_mean.clone(), torch.get_rng_state()
        text = printed(lambda: self.__dict__.update(size=memledger.modelsize(net, torch.randn(8, 64))))
        size = self.__dict__["size"]
        self.assertEqual(size.parameter_bytes, (64 * 32 + 32 + 32 + 32) * 4)
        self.assertIn(f"Model Sequential : params: {size.parameter_bytes / 1e6:f}M", text)
        self.assertTrue(torch.equal(net[2].running_mean, mean))
        self.assertEqual([one.grad for one in net.parameters()], [None] * 4)
        del state
        half = memledger.modelsize(net, torch.randn(8, 64), 2, show=False)
        self.assertEqual(half.parameter_bytes * 2, size.parameter_bytes)
        with self.assertRaises(memledger.Error):
            memledger.modelsize(net, torch.randn(8, 64), type_size=0, show=False)
        with self.assertRaises(RuntimeError):
            memledger.modelsize(net, torch.randn(8, 63), show=False)
        # What failed has left nothing switched on.
        self.assertEqual(memledger.modelsize(net, torch.randn(8, 64), show=False).parameter_bytes, size.parameter_bytes)


class Profiles(unittest.TestCase):
    def test_iterations(self):
        net = torch.nn.Linear(1000, 500, bias=False)
        other = torch.nn.Linear(30, 30)  # is not in the profile
        folder = tempfile.mkdtemp()
        profiler = memledger.memory_profiler(net, print_period=2, csv=True, csv_folder=folder)

        def iterate():
            net.zero_grad()
            net(torch.randn(10, 1000)).sum().backward()
            profiler.record_stats()

        self.assertEqual(printed(iterate), "")
        text = printed(iterate)
        self.assertIn("Memory Usage for Iteration 2 of Epoch 1", text)
        self.assertIn("weight...............................2 MB", text)
        self.assertIn("weight grad..........................2 MB", text)
        profiler.epoch_end()
        iterate()
        self.assertIn("Iteration 2 of Epoch 2", printed(iterate))
        rows = pathlib.Path(profiler.csv_path()).read_text().splitlines()
        self.assertEqual(rows[0], "epoch,iteration,kind,name,bytes")
        self.assertIn("1,2,weight_grad,weight grad,2000000", rows)
        self.assertEqual([row for row in rows if ",weight," in row and row != "1,2,weight,weight,2000000"], ["2,2,weight,weight,2000000"])
        del other
        with self.assertRaises(memledger.Error):
            memledger.memory_profiler(net, print_period=0)
        with self.assertRaises(memledger.Error):
            memledger.memory_profiler(torch.nn.ReLU())

    def test_lines(self):
        kept = []

        def inner():
            kept.append(torch.empty(2 * MIB, dtype=torch.uint8))

        def outer():
            first = torch.empty(MIB, dtype=torch.uint8)
            kept.append(first)
            inner()
            return None

        memledger.set_target_gpu("cpu")
        with memledger.LineProfiler(outer, inner) as profiler:
            outer()
        tables = {table["function"].rpartition(".")[2]: table for table in json.loads(profiler.to_json(["line.left"]))["functions"]}
        left = {row["code"].strip(): row["left_bytes"] for row in tables["outer"]["lines"] if row["left_bytes"]}
        self.assertEqual(left, {"first = torch.empty(MIB, dtype=torch.uint8)": MIB, "inner()": 2 * MIB})
        left = {row["code"].strip(): row["left_bytes"] for row in tables["inner"]["lines"] if row["left_bytes"]}
        self.assertEqual(left, {"kept.append(torch.empty(2 * MIB, dtype=torch.uint8))": 2 * MIB})
        text = printed(profiler.display, columns=("line.allocated", "line.left"))
        self.assertRegex(text, r"1\.00M +1\.00M +\d+ +first = ")
        self.assertNotIn("inner():", printed(profiler.display, outer).split("inner()")[0])
        with self.assertRaisesRegex(memledger.Error, "no column `bytes`"):
            profiler.display(columns=["bytes"])
        with self.assertRaisesRegex(TypeError, "no Python function"):
            profiler.add_function(len)

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU, not even a virtual one")
    def test_lines_of_backward(self):
        net, x = Net().cuda(), torch.ones(256, 64, device="cuda")

        def step():
            loss = net(x).square().sum()
            loss.backward()

        step()  # makes the libraries' workspaces
        memledger.set_target_gpu(0)
        before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        with memledger.LineProfiler(step, Net.forward) as profiler:
            step()
        allocated = torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
        step, forward = json.loads(profiler.to_json())["functions"]
        self.assertEqual(step["total"]["allocated_bytes"], allocated)
        lines = {line["code"].strip(): line["allocated_bytes"] or 0 for line in step["lines"]}
        self.assertEqual(sum(lines.values()), allocated)
        # LibTorch runs it on a thread of its own.
        self.assertGreater(lines["loss.backward()"], allocated / 4)
        self.assertLess(forward["total"]["allocated_bytes"], lines["loss = net(x).square().sum()"])

    def test_profile_every(self):
        memledger.set_target_gpu("cpu")

        @memledger.profile_every(2, columns=("line.allocated",))
        def step():
            return torch.empty(MIB, dtype=torch.uint8)

        self.assertEqual(printed(step), "")
        self.assertIn("return torch.empty(MIB", printed(step))
        with self.assertRaisesRegex(ValueError, "1 or more"):
            memledger.profile_every(0)


class Lending(unittest.TestCase):
    def test_courtesy(self):
        net = torch.nn.Linear(256, 256)
        weight, folder = net.weight.detach().clone(), tempfile.mkdtemp()
        courtesy = memledger.Courtesy(net, place="file", folder=folder, device="cpu")
        courtesy.yield_memory()
        self.assertEqual(courtesy.yielded_bytes, (256 * 256 + 256) * 4)
        with self.assertRaises(RuntimeError):
            net.weight.sum().item()
        courtesy.restore()
        self.assertTrue(torch.equal(net.weight, weight))
        with self.assertRaisesRegex(memledger.Error, "no place `moon`"):
            memledger.Courtesy(place="moon")


class Imports(unittest.TestCase):
    def run_python(self, code, **environment):
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def test_without_torch(self):
        result = self.run_python("import sys; sys.modules['torch'] = None\nimport memledger")
        self.assertIn("ImportError: memledger needs PyTorch", result.stderr)

    def test_unknown_torch(self):
        result = self.run_python(
            "import os, torch; torch.__version__ = '9.7.0'; os.environ.pop('MEMLEDGER_LIBRARY', None)\nimport memledger"
        )
        if not memledger._library._loaded() or "MEMLEDGER_RUN_PROCESS" not in os.environ:
            self.assertRegex(result.stderr, "ImportError: (this memledger has no library for torch 9.7|memledger found no lib)")

    def test_the_one_library(self):
        maps = pathlib.Path("/proc/self/maps").read_text()
        libraries = {line.split()[-1] for line in maps.splitlines() if line.endswith("/libmemledger.so")}
        self.assertEqual(len(libraries), 1)

    def test_cudnn_is_no_older_than_torch(self):
        if not torch.cuda.is_available():
            self.skipTest("no GPU, and no virtual one")
        self.assertTrue(torch.backends.cudnn.version())  # an older one is refused
        self.assertEqual(torch.nn.LSTM(4, 4).cuda()(torch.zeros(2, 3, 4, device="cuda"))[0].shape, (2, 3, 4))

    def test_typed(self):
        folder = pathlib.Path(memledger.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        for name in memledger.__all__:
            self.assertTrue(hasattr(memledger, name), name)
            thing = getattr(memledger, name)
            if not callable(thing):
                continue
            self.assertTrue(thing.__doc__, f"{name} has no docstring")
            members = vars(thing).items() if inspect.isclass(thing) else [(name, thing)]
            for member, function in members:
                function = getattr(function, "fget", None) or function
                if not inspect.isfunction(function) or (member.startswith("_") and member != "__init__"):
                    continue
                signature = inspect.signature(function)
                for argument in list(signature.parameters.values())[inspect.isclass(thing) :]:
                    self.assertIsNot(argument.annotation, argument.empty, f"{name}.{member}({argument.name}) has no type")
                self.assertIsNot(signature.return_annotation, signature.empty, f"{name}.{member} returns no type")
        if hasattr(typing, "get_overloads"):  # so that what is decorated keeps its type
            self.assertEqual(len(typing.get_overloads(memledger.profile)), 2)


class Magic(unittest.TestCase):
    def test_mlrun(self):
        try:
            from IPython.core.interactiveshell import InteractiveShell
        except ImportError:
            self.skipTest("no IPython here")
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "memledger")
        memledger.set_target_gpu("cpu")
        cell = "import torch\ndef func():\n    net = torch.nn.Linear(1024, 1024)\n    return net\nkept = func()"
        text = printed(shell.run_cell_magic, "mlrun", "-f func", cell)
        self.assertRegex(text, r"4\.00M.*\n?.*net = torch.nn.Linear")
        text = printed(shell.run_line_magic, "mlrun", "-f func func()")
        self.assertIn("net = torch.nn.Linear(1024, 1024)", text)
        profiler = shell.run_line_magic("mlrun", "-q -r -f func func()")
        self.assertIsInstance(profiler, memledger.LineProfiler)
        with self.assertRaisesRegex(ValueError, "no function `nobody`"):
            shell.run_line_magic("mlrun", "-f nobody func()")


class Elsewhere(unittest.TestCase):
    def test_a_symbol_for_everything(self):
        library = ctypes.PyDLL(memledger.LIBRARY_PATH)
        header = pathlib.Path(os.environ["MEMLEDGER_C_INTERFACE_H"]).read_text()
        names = set(re.findall(r"\bmemledger_\w+(?=\()", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
        self.assertGreater(len(names), 60)
        for name in names:
            getattr(library, name)
        used = {"memledger_" + name for name in memledger._library._functions} | {"memledger_c_interface"}
        self.assertEqual(used, names)


if __name__ == "__main__":
    program = unittest.main(verbosity=1, exit=False)
    for test, why in program.result.skipped:
        print(f"SKIPPED: {test.id()}: {why}")  # CI reports it
    sys.exit(not program.result.wasSuccessful())
