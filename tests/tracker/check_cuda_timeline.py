"""Which device is which in the timeline of write_cuda_timeline, its folder being the argument."""

import json
import pickle
import sys

folder = sys.argv[1]
failures = 0


def check(what, condition):
    global failures
    if not condition:
        print("FAILED:", what)
        failures += 1


expected = {}
for line in open(folder + "/expected"):
    name, _, value = line.strip().partition(" ")
    expected[name] = int(value)
check(f"the registry's bytes: {expected}", (expected["cuda:0"], expected["cuda:1"]) == (4000, 12000))

snapshot = pickle.load(open(folder + "/timeline.pickle", "rb"))
# cuda:N is N, the CPU stands behind the last.
numbers = {"cuda:0": 0, "cuda:1": 1, "cpu": 2}
check("a trace for each", len(snapshot["device_traces"]) == 3)
for name, number in numbers.items():
    alive = sum(s["total_size"] for s in snapshot["segments"] if s["device"] == number)
    check(f"{name}: {alive} bytes in segments", alive == expected[name])
frames = {"first": 0, "second": 1, "host": 2}
for s in snapshot["segments"]:
    for frame in s["frames"]:
        if frame["filename"] == "name":
            check(f"{frame['name']} on {s['device']}", frames.pop(frame["name"]) == s["device"])
check(f"names: {frames}", not frames)
freed = [[e["size"] for e in trace if e["action"] == "free_completed"] for trace in snapshot["device_traces"]]
check(f"what was freed, and where: {freed}", freed[:2] == [[], [28000]])

trace = json.load(open(folder + "/timeline.json", encoding="utf-8"))
processes = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
for name in numbers:
    values = [e["args"]["bytes"] for e in trace["traceEvents"]
              if e["ph"] == "C" and e["name"] == "all" and e["pid"] == processes.get(name)]
    check(f"{name} in the trace: {values}", values and values[-1] == expected[name])

sys.exit(1 if failures else 0)
