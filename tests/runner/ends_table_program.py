"""A user's Python program that makes a tensor and ends as its arguments say; the table is in ends_table.py.

  ends_table_program.py KIND END

Whoever waits for a signal says `ready` and its process id first.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time

kept = []
calls = []


def make():
    import torch

    kept.append(torch.ones(3 << 18))


def say_ready():
    print("ready", os.getpid(), flush=True)


def wait():
    say_ready()
    while True:
        time.sleep(60)  # one line of a traceback, whenever a signal comes


def work():
    """Without a pause, so that a signal finds the interpreter's lock and the allocator's held."""
    import torch

    say_ready()
    while True:
        some = [torch.empty(16 * i) for i in range(1, 64)]
        del some


def look_for_children():
    try:
        if os.waitpid(-1, os.WNOHANG) is not None:
            print("there is a child")
    except ChildProcessError:
        pass
    if multiprocessing.active_children():
        print("there are active children")


def observe():
    """Counts what it sees while others ask it for reports; SIGTERM ends it."""
    ended = []
    signal.signal(signal.SIGCHLD, lambda *_: calls.append("SIGCHLD"))
    signal.signal(signal.SIGINT, lambda *_: calls.append("SIGINT"))
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    say_ready()
    while not ended:
        look_for_children()
        time.sleep(0.002)
    woken_by = [number for number in os.read(read_end, 100) if number != signal.SIGTERM]
    print("calls", calls, "woken by", woken_by)


def end_with_handler(handler):
    signal.signal(signal.SIGTERM, handler)
    wait()
    print("went on")


def leave(*_):
    sys.exit(5)


def wait_for_handler():
    signal.signal(signal.SIGTERM, lambda *_: calls.append("SIGTERM"))
    say_ready()
    while not calls:
        time.sleep(0.01)
    print("calls", calls)


ENDS = {
    "return": lambda: None,
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(4),
    "abort": os.abort,
    "null": lambda: ctypes.string_at(0),
    "null_faulthandler": lambda: (faulthandler.enable(), ctypes.string_at(0)),
    "wait": wait,
    "work": work,
    "handler_exits": lambda: end_with_handler(leave),
    "handler__exits": lambda: end_with_handler(lambda *_: os._exit(5)),
    "handler_returns": wait_for_handler,
    "exec": lambda: os.execv("/bin/echo", ["echo", "another program"]),
    "observe": observe,
}


def exception():
    raise RuntimeError("a user's mistake")


ENDS["exception"] = exception


def kind_main(end):
    make()
    atexit.register(print, "at exit", flush=True)
    ENDS[end]()


def kind_thread(end):
    """torch is another thread's, as in servers of notebooks and of actors."""
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if end.startswith("in_thread_"):
        thread = threading.Thread(target=ENDS[end[len("in_thread_") :]], daemon=True)
        thread.start()
        thread.join()
    else:
        ENDS[end]()


def kind_asyncio(end):
    async def run():
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        if end in ("observe", "handler_returns"):
            loop.add_signal_handler(signal.SIGTERM, stop.set)
            loop.add_signal_handler(signal.SIGINT, calls.append, "SIGINT")
            signal.signal(signal.SIGCHLD, lambda *_: calls.append("SIGCHLD"))
            say_ready()
            while not stop.is_set():
                look_for_children()
                await asyncio.sleep(0.002)
            print("calls", calls)
        elif end == "subprocess":
            loop.add_signal_handler(signal.SIGTERM, stop.set)
            process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
            say_ready()
            await stop.wait()
            process.stdin.close()
            print("subprocess", await process.wait())
        elif end == "wait":
            say_ready()
            await asyncio.sleep(60)
        else:
            ENDS[end]()

    make()
    asyncio.run(run())


def in_worker(end):
    make()
    ENDS[end]()


def kind_processes(method, end):
    """The worker ends as told, and its parent returns."""
    if method == "fork":
        make()  # a launcher of the other methods has no torch in its parent's memory either
    worker = multiprocessing.get_context(method).Process(target=in_worker, args=(end,))
    worker.start()
    worker.join()
    print("worker", worker.exitcode)
    resource.getrusage(resource.RUSAGE_CHILDREN)


def end_worker(how):
    """Ends the DataLoader's worker that calls it."""
    if how == "exception":
        exception()
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


def kind_dataloader(end):
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if end.startswith("worker_") and index == 9:
                end_worker(end[len("worker_") :])
            return torch.full((16,), float(index))

    make()
    total = 0.0
    for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)):
        total += batch.sum().item()
        if step == 4 and not end.startswith("worker_"):
            ENDS[end]()
    print("total", total)


def main():
    kind, end = sys.argv[1:3]
    if kind in ("fork", "spawn", "forkserver"):
        kind_processes(kind, end)
    else:
        {"main": kind_main, "thread": kind_thread, "asyncio": kind_asyncio, "dataloader": kind_dataloader}[kind](end)


if __name__ == "__main__":
    main()
