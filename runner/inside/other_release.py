R"PYTHON(#"
# What memledger runs in a Python program whose torch is of a release that it was not built for,
# while `import torch` runs. At the program's end it asks that torch for its own statistics, and for
# the allocations that were alive at its peak (other_release.cc, which puts TELL here, and
# HAS_VIRTUAL_GPU where there is one). First and last line: C++ includes this file as text. Nothing
# here raises, prints or keeps an object of the program's alive.

import builtins
import os
import sys

__builtins__ = builtins  # as modules have them
MAX_EVENTS = 100000  # of each device; they take some 100 MB, and two seconds at the end
MAX_ROWS = 10
BLOCK = 512  # LibTorch rounds each allocation up to it


def machine_number(device):
    """Returns the machine's number of a device; None where it is not known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return device
    numbers = visible.split(",")
    known = device < len(numbers) and all(number.strip().isdigit() for number in numbers)
    return int(numbers[device]) if known else None


def place_of(frames, torch_folder):
    """Returns `file:line function` of the innermost frame that is not torch's own."""
    for frame in frames:
        file = frame.get("filename", "")
        if file and not file.startswith(torch_folder) and file != "<memledger>":
            return f"{os.path.basename(file)}:{frame.get('line', 0)} {frame.get('name', '')}"
    return ""


class Replay:
    """The events of one device: when most was alive, and what that was."""

    def __init__(self, events):
        self.events = events
        self.most, self.at, self.bytes, alive = 0, -1, 0, {}
        for index, event in enumerate(events):
            if self.note(event, alive) and self.bytes > self.most:
                self.most, self.at = self.bytes, index

    def note(self, event, alive):
        """Returns whether it is an allocation."""
        action, address = event.get("action"), event.get("addr")
        if action == "alloc":
            size = -(-event["size"] // BLOCK) * BLOCK
            alive[address] = (size, event)
            self.bytes += size
            return True
        if action == "free_completed":
            self.bytes -= alive.pop(address, (0, None))[0]
        return False

    def alive_at_peak(self):
        self.bytes, alive = 0, {}
        for event in self.events[: self.at + 1]:
            self.note(event, alive)
        return list(alive.values())


def rows_of(replay, torch_folder):
    """Returns the largest, by place: dictionaries of bytes, count, each_bytes and place."""
    rows = {}
    for size, event in replay.alive_at_peak():
        place = place_of(event.get("frames", ()), torch_folder)
        row = rows.setdefault(place, {"bytes": 0, "count": 0, "each_bytes": size, "place": place})
        row["bytes"] += size
        row["count"] += 1
        row["each_bytes"] = size if row["each_bytes"] == size else 0
    return sorted(rows.values(), key=lambda row: -row["bytes"])[:MAX_ROWS]


def figures_of(torch, device, events):
    """Returns what torch says of a device, as JSON has it; None of one that was not used."""
    statistics = torch.cuda.memory_stats(device)
    number = machine_number(device)
    if number is None or not statistics.get("reserved_bytes.all.peak", 0):
        return None
    figures = {
        "index": number,
        "allocated_peak": statistics["allocated_bytes.all.peak"],
        "reserved_peak": statistics["reserved_bytes.all.peak"],
        "allocations": statistics["allocation.all.allocated"],
        "requested_in_all": statistics.get("requested_bytes.all.allocated", 0),
        "failures": statistics.get("num_ooms", 0),
        "retries": statistics.get("num_alloc_retries", 0),
        "peak": None,
    }
    replay = Replay(events)
    # A history that was cut, or of another allocator, shows another peak than torch.
    if replay.at >= 0 and abs(replay.most - figures["allocated_peak"]) <= replay.most // 100:
        folder = os.path.dirname(torch.__file__) + os.sep
        figures["peak"] = {
            "place": place_of(events[replay.at].get("frames", ()), folder),
            "bytes": replay.most,
            "largest": rows_of(replay, folder),
        }
    return figures


def words_of(version, figures):
    mib = 1 << 20
    text = ""
    for device in figures:
        text += (
            f"memledger: cuda:{device['index']}, by its torch {version}: "
            f"{device['allocated_peak'] / mib:.1f} MiB allocated at most, "
            f"{device['reserved_peak'] / mib:.1f} reserved\n"
        )
        peak = device["peak"]
        for row in peak["largest"] if peak else ():
            count = f"{row['count']} x  " if row["count"] > 1 else ""
            text += f"  {row['bytes'] / mib:>10.1f} MiB  {count}{row['place'] or '?'}\n"
    return text


def begin_history():
    """Once CUDA is initialized."""
    import torch

    try:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MAX_EVENTS
        )
    except Exception:
        pass  # a release that has none, or another


def end():
    try:
        import ctypes
        import json

        import torch

        if not torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork():
            return
        try:
            events = torch.cuda.memory._snapshot().get("device_traces", [])
        except Exception:
            events = []
        figures = []
        for device in range(torch.cuda.device_count()):
            of_device = events[device] if device < len(events) else []
            figures.append(figures_of(torch, device, of_device))
        figures = [one for one in figures if one is not None]
        text, words = json.dumps(figures), words_of(torch.__version__, figures)
        tell = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(TELL)
        tell(text.encode(errors="replace"), words.encode(errors="replace"))
    except Exception:
        pass


class Finder:
    """Waits, at each import, until torch.cuda is imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        cuda = sys.modules.get("torch.cuda")
        spec = getattr(cuda, "__spec__", None)
        if cuda is not None and not getattr(spec, "_initializing", False):
            begin_once()
        return None


def begin_once():
    if Finder not in sys.meta_path:
        return
    sys.meta_path.remove(Finder)
    try:
        import atexit

        atexit.register(end)
        # Runs that answer reads otherwise show no rows.
        if "HAS_VIRTUAL_GPU" in globals() and not os.environ.get("MEMLEDGER_ASSUMPTIONS"):
            sys.modules["torch.cuda"]._lazy_call(begin_history)
    except Exception:
        pass


sys.meta_path.insert(0, Finder)
#)PYTHON"
