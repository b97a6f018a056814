"""What memledger's Python promises beyond its figures: handles with one owner and a lock, labels by context, arguments
that are checked, reports that never stop a program, functions of every kind.

package_test.sh runs it with memledger alone, and under `memledger run`.
"""

import asyncio
import collections
import contextlib
import contextvars
import copy
import dataclasses
import gc
import inspect
import io
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import torch

import memledger

KIB, MIB = 1 << 10, 1 << 20


def printed(function, *arguments, **keywords):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*arguments, **keywords)
    return out.getvalue()


def label_of_now():
    """The label that a storage gets which is made now."""
    made = torch.empty(12345, dtype=torch.uint8)
    report = json.loads(memledger.MemReporter().add_tensor("probe", made).to_json("cpu"))
    return next(row["label"] for device in report["devices"] for row in device["rows"] if row["name"] == "probe") or ""


def names_in(reporter):
    report = json.loads(reporter.to_json("cpu"))
    return {row["name"] for device in report["devices"] for row in device["rows"]}


def in_thread(function, *arguments):
    result = []

    def run():
        try:
            result.append(function(*arguments))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


class Labels(unittest.TestCase):
    def setUp(self):
        self.assertEqual(label_of_now(), "")

    def tearDown(self):
        self.assertEqual(label_of_now(), "")

    def test_tasks_have_labels_of_their_own(self):
        seen = collections.defaultdict(list)

        async def work(name):
            for _ in range(3):
                with memledger.label(name):
                    seen[name].append(label_of_now())
                    await asyncio.sleep(0.001)
                    with memledger.label("inner"):
                        await asyncio.sleep(0.001)
                        seen[name].append(label_of_now())
                    seen[name].append(label_of_now())
                await asyncio.sleep(0)
                seen[name].append(label_of_now())

        async def all_of_them():
            await asyncio.gather(*(work(f"task {i}") for i in range(4)))
            return label_of_now()

        self.assertEqual(asyncio.run(all_of_them()), "")
        for name, labels in seen.items():
            self.assertEqual(labels, [name, name + "/inner", name, ""] * 3)

    def test_a_task_inherits_the_labels_of_its_maker(self):
        async def child():
            before = label_of_now()
            await asyncio.sleep(0.002)
            return before, label_of_now()

        async def parent():
            with memledger.label("parent"):
                task = asyncio.ensure_future(child())
                await asyncio.sleep(0)
            return label_of_now(), await task

        with memledger.label("main"):
            self.assertEqual(asyncio.run(parent()), ("main", ("main/parent", "main/parent")))
            self.assertEqual(label_of_now(), "main")

    def test_a_cancelled_task_leaves_its_label(self):
        async def stuck():
            with memledger.label("stuck"):
                await asyncio.sleep(60)

        async def main():
            task = asyncio.ensure_future(stuck())
            await asyncio.sleep(0.001)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return label_of_now()

        self.assertEqual(asyncio.run(main()), "")

    def test_a_loop_of_another_kind_is_refused(self):
        class Loop(asyncio.AbstractEventLoop):
            """Stands in for uvloop's."""

        async def work():
            with memledger.label("x"):
                pass

        for loop, why in ((Loop(), "this is one of __main__"), (None, "none of them runs here")):
            asyncio._set_running_loop(loop)
            try:
                with self.assertRaisesRegex(memledger.Error, f"asyncio's own event loops, and {why}: put it into"):
                    work().send(None)
                with memledger.label("a function's"):
                    self.assertEqual(label_of_now(), "a function's")
            finally:
                asyncio._set_running_loop(None)

    def test_generators_that_end_in_any_order(self):
        def generator(name):
            with memledger.label(name):
                yield label_of_now()

        first, second = generator("first"), generator("second")
        self.assertEqual([next(first), next(second)], ["first", "first/second"])
        first.close()
        self.assertEqual(label_of_now(), "second")
        del second
        gc.collect()

    def test_a_generator_that_another_thread_closes(self):
        def generator():
            with memledger.label("loader"):
                yield

        for _ in range(3):
            made = generator()
            next(made)
            in_thread(made.close)
            with memledger.label("next"):
                self.assertEqual(label_of_now(), "next")
            self.assertEqual(label_of_now(), "")

    def test_a_generator_of_another_thread_that_is_closed_here(self):
        def generator():
            with memledger.label("loader"):
                yield

        made = generator()
        in_thread(next, made)
        with memledger.label("here"):
            made.close()
            self.assertEqual(label_of_now(), "here")

    def test_threads_have_labels_of_their_own(self):
        with memledger.label("main"):
            self.assertEqual(in_thread(label_of_now), "")
            context = contextvars.copy_context()  # as asyncio.to_thread() does
            self.assertEqual(in_thread(context.run, label_of_now), "")

    def test_rounds_make_no_new_paths(self):
        def generator():
            with memledger.label("round"):
                yield

        for _ in range(50):
            one, two = generator(), generator()
            next(one)
            next(two)
            one.close()
            two.close()
        self.assertEqual(label_of_now(), "")

    def test_exceptions_and_decorators(self):
        with self.assertRaises(KeyError), memledger.label("failed"):
            raise KeyError

        @memledger.label("decorated")
        def function():
            return label_of_now()

        @memledger.label("awaited")
        async def coroutine():
            await asyncio.sleep(0)
            return label_of_now()

        self.assertEqual([function(), function()], ["decorated"] * 2)
        self.assertEqual(asyncio.run(coroutine()), "awaited")
        with self.assertRaisesRegex(TypeError, "decorates no generator"):
            memledger.label("x")(lambda: (yield))
        entered = memledger.label("once")
        with entered:
            with self.assertRaisesRegex(RuntimeError, "entered already"):
                entered.__enter__()
        with entered:
            self.assertEqual(label_of_now(), "once")


class Threads(unittest.TestCase):
    def together(self, *functions, rounds=60):
        failures = []
        barrier = threading.Barrier(len(functions))

        def run(function):
            barrier.wait()
            try:
                for _ in range(rounds):
                    function()
            except BaseException as error:
                failures.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=run, args=(function,)) for function in functions]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        self.assertEqual(failures, [])

    def test_one_reporter(self):
        net, other = torch.nn.Linear(8, 8), torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        reporter = memledger.MemReporter(net).add_optimizer(optimizer)

        def add_and_remove():
            reporter.add_module("other", other)
            reporter.remove("other")

        def names():
            self.assertLessEqual({"weight", "bias"}, names_in(reporter))

        self.together(names, names, lambda: reporter.why(net.weight), add_and_remove)

    def test_one_tracker(self):
        net = torch.nn.Linear(8, 8)
        tracker = memledger.MemTracker(path=tempfile.mkdtemp(), device="cpu").add_module("net", net)
        self.together(tracker.track, tracker.track, lambda: printed(tracker.print_all_gpu_tensor))

    def test_one_profiler_of_iterations(self):
        net = torch.nn.Linear(1000, 250, bias=False)
        out = io.StringIO()
        profiler = memledger.memory_profiler(net, file=out)
        self.together(profiler.record_stats, profiler.record_stats, profiler.epoch_end, rounds=300)
        self.assertEqual(out.getvalue().count("Total layer weight usage...............1 MB\n"), 600)

    def test_one_line_profiler(self):
        profiler = memledger.LineProfiler()
        self.together(*[lambda: profiler.add_function(printed)] * 4)
        self.assertEqual(len(json.loads(profiler.to_json())["functions"]), 1)

    def test_a_report_within_a_report(self):
        """As the collector may run a finalizer that reports."""
        net = torch.nn.Linear(8, 8)
        reporter = memledger.MemReporter(net)
        with reporter._registered.named():
            self.assertLessEqual({"weight", "bias"}, names_in(reporter))
            self.assertLessEqual({"weight", "bias"}, names_in(reporter))
        self.assertLessEqual({"weight", "bias"}, names_in(reporter))

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_the_child_of_a_fork_waits_for_no_thread_of_its_parent(self):
        net = torch.nn.Linear(8, 8)
        reporter = memledger.MemReporter(net)
        taken, done = threading.Event(), threading.Event()

        def hold():
            with reporter._registered.named():
                taken.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        child = os.fork()
        if child == 0:
            import signal

            signal.alarm(60)
            status = 1
            try:
                status = int(not {"weight", "bias"} <= names_in(reporter))
            finally:
                os._exit(status)
        done.set()
        thread.join()
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Owners(unittest.TestCase):
    def test_a_module_that_is_refused_is_forgotten(self):
        net = torch.nn.Linear(8, 8)
        for made in (memledger.MemReporter(), memledger.MemTracker(path=tempfile.mkdtemp(), device="cpu")):
            with self.assertRaisesRegex(TypeError, "a prefix is text, not an int"):
                made.add_module(5, net)
            with self.assertRaisesRegex(ValueError, "zero byte"):
                made.add_module("a\0b", net)
            with self.assertRaises(TypeError):
                made.add_module("x", None)
            made.add_module("good", net)
            getattr(made, "to_json", getattr(made, "track", None))()
            made.remove("good")

    def test_a_part_whose_name_is_refused(self):
        bad = torch.nn.Module()
        bad._modules["a\0b"] = torch.nn.Linear(2, 2)
        net = torch.nn.Linear(8, 8)
        reporter = memledger.MemReporter(net)
        with self.assertRaises(ValueError):
            reporter.add_module("bad", bad)
        self.assertLessEqual({"weight", "bias"}, names_in(reporter))

    def test_two_modules_of_one_prefix(self):
        one, two = torch.nn.Linear(8, 8), torch.nn.Conv1d(2, 2, 1)
        two.register_buffer("other", torch.ones(7))
        reporter = memledger.MemReporter().add_module("both", one).add_module("both", two)
        rows = json.loads(reporter.to_json("cpu"))["devices"][0]["rows"]
        self.assertEqual([row["bytes"] for row in rows if row["name"] == "both.weight"], [256, 16])
        self.assertIn("both.other", names_in(reporter))
        reporter.remove("both")
        self.assertFalse({"both.other", "both.weight"} & names_in(reporter))

    def test_removing_what_was_not_added(self):
        net = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        reporter = memledger.MemReporter(net)
        with self.assertRaisesRegex(memledger.Error, "this SGD was not added"):
            reporter.remove(optimizer)
        reporter.add_optimizer(optimizer).remove(optimizer)
        with self.assertRaises(TypeError):
            reporter.remove(5)

    def test_a_copy_within_a_model_and_a_pickle(self):
        net = torch.nn.Linear(8, 8)
        net.reporter = memledger.MemReporter(net)
        average = copy.deepcopy(net)
        self.assertIs(average.reporter, net.reporter)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(net)


class Arguments(unittest.TestCase):
    def test_integers(self):
        net = torch.nn.Linear(2, 2)
        reporter = memledger.MemReporter(net)
        for wrong in (1 << 63, 1 << 64, -1):
            with self.assertRaisesRegex(ValueError, f"max_rows is {wrong}; it is from 0 to {(1 << 63) - 1}"):
                reporter.report(max_rows=wrong)
        self.assertIn("weight", printed(reporter.report, max_rows=(1 << 63) - 1))
        for wrong in ((1 << 32) + 1, 1 << 31, -(1 << 31) - 1):
            with self.assertRaisesRegex(ValueError, f"print_period is {wrong}"):
                memledger.memory_profiler(net, print_period=wrong)
        for wrong in (2.5, "3"):
            with self.assertRaisesRegex(TypeError, "print_period is an integer, not a (float|str)"):
                memledger.memory_profiler(net, print_period=wrong)
        with self.assertRaisesRegex(ValueError, "type_size is"):
            memledger.modelsize(net, torch.ones(1, 2), type_size=(1 << 64) + 4, show=False)
        for wrong in ({"capacity_bytes": -5}, {"capacity_bytes": 1 << 64}, {"timeout_s": 1 << 32}, {"most_runs": (1 << 32) + 3}):
            with self.assertRaisesRegex(ValueError, next(iter(wrong))):
                memledger.predict(lambda: None, "h100", **wrong)
        with self.assertRaisesRegex(TypeError, "the step is a int"):
            memledger.predict(3)
        with self.assertRaisesRegex(TypeError, "profile_every.. is an integer"):
            memledger.profile_every(1.5)
        try:
            import numpy
        except ImportError:
            return
        memledger.memory_profiler(net, print_period=numpy.int64(3))

    def test_devices(self):
        net = torch.nn.Linear(2, 2)
        loss = net(torch.ones(1, 2)).sum()
        folder = tempfile.mkdtemp()
        calls = {
            "counters": memledger.counters,
            "reset_peak": memledger.reset_peak,
            "report": lambda device: memledger.MemReporter(net).report(device=device),
            "to_json": memledger.MemReporter(net).to_json,
            "MemTracker": lambda device: memledger.MemTracker(path=folder, device=device),
            "saved_for_backward": lambda device: memledger.saved_for_backward(loss, net, device=device),
            "memory_profiler": lambda device: memledger.memory_profiler(net, device=device),
            "set_target_gpu": memledger.set_target_gpu,
            "Courtesy": lambda device: memledger.Courtesy(net, device=device),
        }
        unknown = {
            "cuda:99": "there is no cuda:99",
            99: "there is no cuda:99",
            300: "the number of a GPU is 300",
            -1: "the number of a GPU is -1",
            "meta": "has no memory",
            "gpu7": "no device",
            1.5: "no device: .*not a float",
            "cpu:3": "there is no cpu:3",
        }
        for name, call in calls.items():
            for device, why in unknown.items():
                with self.subTest(call=name, device=device), self.assertRaisesRegex(ValueError, why):
                    call(device)
        for device in ("cpu", torch.device("cpu"), "cuda:0", "cuda", 0, None):
            memledger.counters(device)

    def test_paths_and_texts(self):
        net = torch.nn.Linear(2, 2)
        folder = pathlib.Path(tempfile.mkdtemp())
        tracker = memledger.MemTracker(path=folder, device="cpu")
        self.assertEqual(pathlib.Path(tracker.log_path()).parent, folder.resolve())
        for file in (folder / "all.txt", str(folder / "all.txt"), os.fsencode(folder / "all.txt")):
            tracker.print_all_gpu_tensor(file)
        self.assertEqual((folder / "all.txt").read_text().count("torch.Size([2, 2])") % 3, 0)
        memledger.memory_profiler(net, csv=True, csv_folder=folder / "csv").record_stats
        self.assertTrue((folder / "csv").is_dir())
        memledger.Courtesy(net, place="file", folder=folder, device="cpu")
        for call in (
            lambda: memledger.MemTracker(path=5),
            lambda: memledger.label(5),
            lambda: memledger.label(None),
            lambda: memledger.label(b"bytes"),
            lambda: memledger.MemReporter().add_tensor(5, torch.ones(1)),
            lambda: memledger.MemReporter().report(sort=5),
            lambda: tracker.track(5),
            lambda: memledger.Courtesy(5),
            lambda: memledger.Courtesy().add_optimizer(net),
        ):
            with self.subTest(inspect.getsource(call)), self.assertRaisesRegex(TypeError, "^memledger: "):
                call()


class Streams(unittest.TestCase):
    def ascii_stream(self, **keywords):
        return io.TextIOWrapper(io.BytesIO(), encoding="ascii", **keywords)

    def text_of(self, stream):
        stream.flush()
        return stream.buffer.getvalue().decode("ascii")

    def test_a_stream_that_is_not_utf_8(self):
        net = torch.nn.Module()
        net.register_buffer("größe", torch.ones(3, 5))
        net.register_buffer("x" * 90, torch.ones(3, 7))  # is cut with `…`
        net.add_module("linear", torch.nn.Linear(4, 4))
        stream = self.ascii_stream()
        memledger.MemReporter(net).report(file=stream)
        memledger.MemReporter(net).report_peak("cpu", file=stream)
        self.assertRegex(self.text_of(stream), r"gr\?\?e")
        stream = self.ascii_stream()
        with contextlib.redirect_stdout(stream):
            memledger.MemReporter(net).report(verbose=True)
            memledger.MemTracker(path=tempfile.mkdtemp(), device="cpu").add_module("", net).print_all_gpu_tensor()
            memledger.modelsize(torch.nn.Linear(2, 2), torch.ones(1, 2))
            memledger.memory_profiler(net).record_stats()
        self.assertIn("Iteration 1 of Epoch 1", self.text_of(stream))

    def test_profile_every_keeps_the_result(self):
        memledger.set_target_gpu("cpu")

        @memledger.profile_every(1)
        def step():
            größe = torch.empty(MIB, dtype=torch.uint8)
            return größe

        class Broken(io.StringIO):
            def write(self, text):
                raise BrokenPipeError("gone")

        closed = io.StringIO()
        closed.close()
        for stream in (self.ascii_stream(), Broken(), closed):
            told = io.StringIO()
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(told):
                self.assertEqual(step().numel(), MIB)
            if not isinstance(stream, io.TextIOWrapper):
                self.assertIn("memledger: the line profile could not be printed", told.getvalue())

        @memledger.profile_every(1)
        def fails():
            raise KeyError("its own")

        with contextlib.redirect_stdout(closed), contextlib.redirect_stderr(io.StringIO()):
            with self.assertRaisesRegex(KeyError, "its own"):
                fails()
        with self.assertRaisesRegex(memledger.Error, "no column `bytes`"):
            memledger.profile_every(1, columns=["bytes"])
        with self.assertRaisesRegex(memledger.Error, "no column `bytes`"):
            memledger.profile(printed, columns="bytes")
        with self.assertRaisesRegex(TypeError, "no Python function"):
            memledger.profile(len)


class Lines(unittest.TestCase):
    def setUp(self):
        memledger.set_target_gpu("cpu")
        self.addCleanup(memledger.clear_global_line_profiler)

    def lines(self, name):
        import memledger.lines

        tables = json.loads(memledger.lines._global_profiler.to_json(["line.allocated"]))["functions"]
        (table,) = [table for table in tables if table["function"].rpartition(".")[2] == name]
        return {row["code"].strip(): row["allocated_bytes"] for row in table["lines"] if row["allocated_bytes"]}

    def test_generator(self):
        @memledger.profile
        def produce(count):
            for _ in range(count):
                made = torch.empty(MIB, dtype=torch.uint8)
                sent = yield made
            return sent

        self.assertTrue(inspect.isgeneratorfunction(produce))

        def consume():
            made = produce(4)
            next(made)
            for _ in range(3):
                made.send(5)
            with self.assertRaises(StopIteration) as stopped:
                made.send(6)
            return stopped.exception.value

        self.assertEqual(consume(), 6)
        self.assertEqual(self.lines("produce"), {"made = torch.empty(MIB, dtype=torch.uint8)": 4 * MIB})

    def test_coroutine(self):
        @memledger.profile
        async def fetch(size):
            await asyncio.sleep(0.001)
            made = torch.empty(size, dtype=torch.uint8)
            await asyncio.sleep(0.001)
            return made

        self.assertTrue(inspect.iscoroutinefunction(fetch))

        async def main():
            return await asyncio.gather(*(fetch(MIB) for _ in range(4)))

        self.assertEqual(len(asyncio.run(main())), 4)
        self.assertEqual(self.lines("fetch"), {"made = torch.empty(size, dtype=torch.uint8)": 4 * MIB})

    def test_asynchronous_generator(self):
        @memledger.profile
        async def stream(count):
            for _ in range(count):
                await asyncio.sleep(0)
                made = torch.empty(MIB, dtype=torch.uint8)
                try:
                    sent = yield made
                except KeyError:
                    sent = "caught"
                if sent is not None:
                    yield sent

        self.assertTrue(inspect.isasyncgenfunction(stream))

        async def main():
            made = [one async for one in stream(4)]
            other = stream(3)
            await other.__anext__()
            answers = [await other.asend("sent")]
            await other.__anext__()
            answers.append(await other.athrow(KeyError()))
            await other.aclose()
            return len(made), answers

        self.assertEqual(asyncio.run(main()), (4, ["sent", "caught"]))
        self.assertEqual(self.lines("stream"), {"made = torch.empty(MIB, dtype=torch.uint8)": 6 * MIB})

    def test_every_counts_finished_runs(self):
        @memledger.profile_every(2)
        def produce():
            yield torch.empty(MIB, dtype=torch.uint8)

        self.assertEqual(printed(lambda: list(produce())), "")
        self.assertIn("yield torch.empty(MIB", printed(lambda: list(produce())))

    def test_a_page_of_the_functions_that_are_named(self):
        def first():
            return torch.empty(MIB, dtype=torch.uint8)

        def second():
            return torch.empty(2 * MIB, dtype=torch.uint8)

        def third():
            return torch.empty(3 * MIB, dtype=torch.uint8)

        with memledger.LineProfiler(first, second, third) as profiler:
            first(), second(), third()
        for wanted, shown in (
            (None, {"1", "2", "3"}),
            (first, {"1"}),
            ([first, third], {"1", "3"}),
            ("second", {"2"}),
        ):
            page = profiler.to_html(wanted)
            self.assertEqual(page.count("<html"), 1)
            found = {n for n, code in (("1", "empty(MIB"), ("2", "empty(2 * MIB"), ("3", "empty(3 * MIB")) if code in page}
            self.assertEqual(found, shown)
        with self.assertRaisesRegex(memledger.Error, "`nobody` is not a function that is profiled"):
            profiler.to_html([first, "nobody"])


class Figures(unittest.TestCase):
    def test_verbose_has_a_row_for_each(self):
        kept = [torch.ones(321, 3) for _ in range(3)]
        text = printed(memledger.MemReporter().report, True)
        self.assertEqual(text.count("(321, 3)"), 3)
        self.assertEqual(printed(memledger.MemReporter().report).count("(321, 3)"), 1)
        self.assertEqual(printed(memledger.MemReporter().report, True, group="alike").count("(321, 3)"), 1)
        del kept

    def test_lazy_modules(self):
        net = torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.BatchNorm1d(16), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(4))
        size = memledger.modelsize(net, torch.randn(8, 32), show=False)
        self.assertEqual(size.parameter_bytes, 4 * (32 * 16 + 16 + 4 * 16 + 16 * 4 + 4))
        self.assertEqual(sum(layer["parameters"] for layer in size.to_dict()["layers"]) * 4, size.parameter_bytes)
        for norm in net[1:3]:
            self.assertEqual((norm.running_mean.abs().sum().item(), norm.num_batches_tracked.item()), (0, 0))
        self.assertTrue(net.training)

    def test_inputs_of_every_container(self):
        @dataclasses.dataclass(frozen=True)
        class Batch:
            pixels: torch.Tensor
            name: str = "x"

        class Listed(list):
            def __init__(self, one, two):
                super().__init__([one, two])

        class Net(torch.nn.Module):
            def forward(self, batch):
                for one in memledger._library.tensors_in(batch):
                    one.zero_()
                self.kind = type(batch)
                return torch.zeros(1)

        def some():
            return torch.ones(3)

        inputs = [
            collections.defaultdict(list, a=some()),
            collections.OrderedDict(a=some()),
            collections.Counter(),
            Batch(some()),
            Listed(some(), some()),
            (some(), [some()]),
            {some()},
        ]
        for given in inputs:
            net = Net()
            memledger.modelsize(net, given, show=False)
            self.assertIs(net.kind, type(given))
            for one in memledger._library.tensors_in(given):
                self.assertTrue(torch.equal(one, some()), type(given))

    def test_random_numbers_are_put_back(self):
        try:
            import numpy
        except ImportError:
            numpy = None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.zeros(1, device=device)

        class Net(torch.nn.Module):
            def forward(self, x):
                random.random()
                numpy is None or numpy.random.rand()
                torch.rand(3, device=device)
                if x.numel() == 7:
                    raise KeyError
                return torch.nn.functional.dropout(x, 0.5)

        def states():
            return (
                random.getstate(),
                None if numpy is None else numpy.random.get_state()[1].tolist() + [numpy.random.get_state()[2]],
                torch.get_rng_state().tolist(),
                torch.cuda.get_rng_state().tolist() if device == "cuda" else None,
            )

        before = states()
        memledger.modelsize(Net(), torch.ones(4), show=False)
        self.assertEqual(states(), before)
        with self.assertRaises(KeyError):
            memledger.modelsize(Net(), torch.ones(7), show=False)
        self.assertEqual(states(), before)


class Magic(unittest.TestCase):
    def test_words_with_quotes(self):
        from memledger.magics import _parser, _split

        for line, wanted, statement in (
            ('-T "my file.txt" -f f f("a b")', {"dump_profile": "my file.txt", "function": ["f"]}, 'f("a b")'),
            ("-T 'it is.txt' f()", {"dump_profile": "it is.txt"}, "f()"),
            (r"-T my\ file.txt f()", {"dump_profile": "my file.txt"}, "f()"),
            ("-q -r -f f f(-1)", {"quiet": True, "return_profiler": True}, "f(-1)"),
            ("--function f --gpu 1 f('#')", {"function": ["f"], "gpu": 1}, "f('#')"),
            ("-f A.b  -c line.left   x = -1", {"function": ["A.b"], "column": ["line.left"]}, "x = -1"),
            ("-T -odd.txt f()", {"dump_profile": "-odd.txt"}, "f()"),
            ("-q -- -f()", {"quiet": True}, "-f()"),
        ):
            words, rest = _split(line)
            self.assertEqual(rest, statement)
            options = vars(_parser().parse_args(words))
            self.assertEqual({name: options[name] for name in wanted}, wanted, line)
        for line in ('-T "open f()', "-T"):
            with self.assertRaisesRegex(ValueError, "^mlrun: "):
                _parser().parse_args(_split(line)[0])


class Imports(unittest.TestCase):
    def test_a_library_for_another_torch(self):
        result = subprocess.run(
            [sys.executable, "-c", "import torch; torch.__version__ = '9.7.0'\nimport memledger"],
            env={**os.environ, "MEMLEDGER_LIBRARY": memledger.LIBRARY_PATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assertRegex(
            result.stderr, rf"ImportError: .*libmemledger.so was built for torch {memledger.built_for_torch}, and this is torch 9.7.0"
        )


if __name__ == "__main__":
    program = unittest.main(verbosity=1, exit=False)
    for test, why in program.result.skipped:
        print(f"SKIPPED: {test.id()}: {why}")  # CI reports it
    sys.exit(not program.result.wasSuccessful())
