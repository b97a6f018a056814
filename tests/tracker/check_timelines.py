"""Reads timelines with what they are for, and checks sums. Argument: the folder of write_timelines."""

import importlib.util
import json
import os
import pickle
import pickletools
import sys

folder = sys.argv[1]
expected = {}
for line in open(folder + "/expected", encoding="utf-8"):
    key, _, value = line.strip().partition(" ")
    expected[key] = value
failures = 0


def check(what, condition):
    global failures
    if not condition:
        print("FAILED:", what)
        failures += 1


def check_trace(path, final_bytes):
    """The fields that the trace event format asks for, by phase; counters against slices."""
    trace = json.load(open(path, encoding="utf-8"))
    events = trace["traceEvents"]
    needed = {
        "C": {"args"}, "b": {"cat", "id", "args"}, "e": {"cat", "id"}, "M": {"args"}, "i": {"s"}, "B": set(), "E": set(),
    }
    open_slices, open_labels, last, series, labels = {}, {}, {}, {}, []
    last_time = {}
    for event in events:
        check("a known phase", event["ph"] in needed)
        for field in {"ph", "pid", "tid", "ts", "name"} | needed[event["ph"]]:
            check(f"{field} in {event}", field in event)
        check("times are numbers from 0", isinstance(event["ts"], (int, float)) and event["ts"] >= 0)
        if event["ph"] == "C":
            key = (event["pid"], event["name"])
            check("a counter's times go on", event["ts"] >= last_time.get(key, 0))
            last_time[key] = event["ts"]
            check("no negative bytes", event["args"]["bytes"] >= 0)
            series.setdefault(key, []).append((event["ts"], event["args"]["bytes"]))
        elif event["ph"] == "b":
            check("one slice per storage", event["id"] not in open_slices)
            open_slices[event["id"]] = event
        elif event["ph"] == "e":
            begin = open_slices[event["id"]]
            check("a slice ends after it began", event["ts"] >= begin["ts"])
            begin["end"] = event["ts"]
        elif event["ph"] == "B":
            open_labels.setdefault(event["tid"], []).append(event["name"])
            labels.append("/".join(open_labels[event["tid"]]))
        elif event["ph"] == "E":
            check("labels nest", open_labels[event["tid"]].pop() == event["name"])
    check("all labels end", not any(open_labels.values()))
    check("all slices end", all("end" in begin for begin in open_slices.values()))
    (all_key,) = [key for key in series if key[1] == "all"]
    check("the last total is the registry's", series[all_key][-1][1] == final_bytes)
    check("series add up", sum(values[-1][1] for key, values in series.items() if key != all_key) == final_bytes)
    check("series add up at the beginning", sum(v[0][1] for k, v in series.items() if k != all_key) == series[all_key][0][1])
    check("slices add up", sum(s["args"]["bytes"] for s in open_slices.values() if s["args"]["alive_at_the_end"]) == final_bytes)
    # The highest total, from the slices alone.
    steps = []
    for s in open_slices.values():
        steps.append((s["ts"], 1, s["args"]["bytes"]))
        if not s["args"]["alive_at_the_end"]:
            steps.append((s["end"], 0, -s["args"]["bytes"]))
    now = highest = 0
    for _, _, change in sorted(steps):
        now += change
        highest = max(highest, now)
    check("the peak", highest == max(value for _, value in series[all_key]))
    return trace, open_slices, series, labels


def load_memory_viz():
    """PyTorch's own functions, without the rest of torch."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(expected["libtorch"])))
    place = root + "/cuda/_memory_viz.py"
    if not os.path.exists(place):
        return None  # a LibTorch that was not unpacked from a wheel
    sys.dont_write_bytecode = True  # LibTorch's folder is not ours
    spec = importlib.util.spec_from_file_location("memory_viz", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_pickle(path, final_bytes):
    # All that the page's own unpickler knows of what we use.
    known = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "BINUNICODE", "LONG_BINPUT", "LONG_BINGET", "BININT", "BININT1", "LONG1",
             "NEWFALSE", "NEWTRUE", "APPENDS", "SETITEMS", "TUPLE2", "STOP"}
    used = {opcode.name for opcode, _, _ in pickletools.genops(open(path, "rb").read())}
    check(f"opcodes {used - known}", used <= known)
    snapshot = pickle.load(open(path, "rb"))
    check("keys", {"segments", "device_traces", "allocator_settings", "external_annotations"} <= set(snapshot))
    check("alive", sum(s["total_size"] for s in snapshot["segments"]) == final_bytes)
    blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
    check("blocks", sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated") == final_bytes)
    check("frames", all(f["name"] and isinstance(f["line"], int) for b in blocks for f in b["frames"]))
    (trace,) = snapshot["device_traces"]
    # Back from the end to the beginning, and forth again: nothing is born twice, nothing dies
    # unborn.
    alive = {b["address"]: b["size"] for b in blocks}
    for event in reversed(trace):
        if event["action"] == "alloc":
            check("alive before its birth is undone", alive.pop(event["addr"], None) == event["size"])
        elif event["action"] == "free_completed":
            check("gone before its death is undone", event["addr"] not in alive)
            alive[event["addr"]] = event["size"]
    times = [event["time_us"] for event in trace]
    check("times", times == sorted(times))
    viz = load_memory_viz()
    if viz is None:
        print("SKIPPED: there is no torch/cuda/_memory_viz.py here")
        return snapshot
    check("segsum", "seg_" in viz.segsum(snapshot) or "total" in viz.segsum(snapshot).lower())
    check("trace", f"{len(trace)} entries" in viz.trace(snapshot))
    check("trace_plot", "MemoryViz" in viz.trace_plot(snapshot))
    check("segment_plot", "MemoryViz" in viz.segment_plot(snapshot))
    told = []
    viz.memory(snapshot, format_flamegraph=told.append)
    # Each line ends with the bytes of a block.
    check("memory", sum(int(line.rsplit(" ", 1)[1]) for line in told[0].splitlines()) == final_bytes)
    return snapshot


final = int(expected["bytes"])
trace, slices, series, labels = check_trace(folder + "/timeline.json", final)
for what in ("events", "label_changes", "marks"):
    check(f"no {what} were dropped", trace["otherData"]["dropped_" + what] == 0)
alive = [s for s in slices.values() if s["args"]["alive_at_the_end"]]
check("as many storages", len(alive) == int(expected["storages"]))
names = {s["args"]["name"] for s in slices.values()}
check("a name with quotes", 'net "quoted".weight' in names)
check("names of what has died since a mark", 'net "quoted".weight.grad' in names)
(process,) = {key[0] for key in series}
check("parameters", series[(process, "Parameter")][-1][1] == int(expected["parameters"]))
check("momentum", series[(process, "OptimizerState")][-1][1] == int(expected["parameters"]))
check("births", sum(1 for s in slices.values() if s["ts"] > 0) == int(expected["births"]))
before = [s for s in slices.values() if s["args"]["name"] == "before"]
check("what was there before", len(before) == 1 and before[0]["ts"] == 0 and before[0]["args"]["bytes"] == 4000)
gone = [s for s in slices.values() if s["ts"] == 0 and not s["args"]["alive_at_the_end"]]
check("what was there before and went", [s["args"]["bytes"] for s in gone] == [2000])
check(f"labels {labels}", labels == [x for i in range(3) for x in (f"step {i}", f"step {i}/forward")] + ["caf\ufffd"])
check("a mark that is no UTF-8", [e for e in trace["traceEvents"] if e["ph"] == "i" and e["name"] == "fianc\ufffd"])
check("a name and a label that are no UTF-8",
      [s["args"]["label"] for s in slices.values() if s["args"]["name"] == "na\ufffdve"] == ["caf\ufffd"])
check("marks", sum(1 for e in trace["traceEvents"] if e["ph"] == "i" and e["name"] == "after backward") == 3)
relu = [s for s in slices.values() if s["args"]["op"] == "aten::relu"]
check("an operator with its label", len(relu) == 3 and relu[1]["args"]["label"] == "step 1/forward")
check("its bytes and shape", relu[0]["args"]["bytes"] == 16 * 32 * 4 and relu[0]["args"]["shape"] == [16, 32])
check("its dtype, role and phase", [relu[0]["args"][k] for k in ("dtype", "role", "series", "storage_kind", "phase")] ==
      ["torch.float32", "tensor", "Tensor [forward]", "tensor", "forward"])
check("its thread", relu[0]["args"]["thread"] > 0)
check("its number is the slice's", all(int(id, 16) == s["args"]["storage_id"] for id, s in slices.items()))
check("a name's role", {s["args"]["role"] for s in slices.values() if s["args"]["name"] == 'net "quoted".weight'} == {"parameter"})
check("schema", list(trace["otherData"].items())[0] == ("schema", "memledger.timeline/2"))

snapshot = check_pickle(folder + "/timeline.pickle", final)
births = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
check("births in the pickle", len(births) == int(expected["births"]))
check("a frame per fact", {"filename": "operator", "line": 0, "name": "aten::relu"} in
      [f for e in births for f in e["frames"]])
for fact in ({"filename": "name", "line": 0, "name": "na\ufffdve"}, {"filename": "label", "line": 0, "name": "caf\ufffd"}):
    check(f"what is no UTF-8: {fact}", fact in [f for e in births for f in e["frames"]])

check("a file that cannot be", "/dev/null/timeline.json" in expected["unwritable"])
check("a full device is no success", expected["full"] == "failed")
check("nothing half", not [name for name in os.listdir(folder) if name.endswith(".part")])

trace, slices, series, labels = check_trace(folder + "/dropped.json", int(expected["dropped_bytes"]))
check("dropped events are counted", trace["otherData"]["dropped_events"] > 4000)
snapshot = check_pickle(folder + "/dropped.pickle", int(expected["dropped_bytes"]))
check("counted there, too", snapshot["allocator_settings"]["memledger_dropped_events"] > 4000)
check("no more than there is room for", len([e for e in snapshot["device_traces"][0] if e["action"] in ("alloc", "free_completed")]) <= 352)

sys.exit(1 if failures else 0)
