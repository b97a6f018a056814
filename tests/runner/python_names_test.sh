#!/usr/bin/env bash
# python_names_test.sh MEMLEDGER PROGRAM.py LINES_PROGRAM.py LIBTORCH_LIB VERSION [--cuda]
#
# Python programs that have never heard of memledger have their names and lines in the report: what
# they say of themselves is held against the rows of the peak. The lines of their functions are
# profiled.
#
# Needs a Python that imports the torch of this LibTorch: tests/support/python_test.sh says which.
source tests/support/shell_test.sh
source tests/support/python_test.sh
memledger="$PWD/$1" program="$PWD/$2" profiled="$PWD/$3"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model PYTHONDONTWRITEBYTECODE=1
gpu=()  # a torch with CUDA does not start without NVIDIA's libraries
[[ "${6:-}" == --cuda ]] && gpu=(--virtual-gpu=h100)

find_python "$4" "$5" "$memledger" run --quiet "${gpu[@]}" --
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(err)

run() { "$memledger" run --quiet "${gpu[@]}" --save-report=report.json "$@" >out 2>err; }

# Fails unless the peak's named rows are what the program prints, and gradients of it; nearly all
# other bytes, or that share of all, have a layer.
named_rightly() {  # DEVICE [SHARE [RANKS]]
  python3 - "$@" <<'PYTHON'
import json, sys
told = {name: (role, int(size)) for name, role, size in (line.split() for line in open("out"))}
assert told
report = json.load(open("report.json"))
rows = [row for one in report["peaks"]["devices"] if one["device"] == sys.argv[1] for row in one["rows"]]
found, wrong = {}, []
for row in rows:
    if row["anonymous"]:
        continue
    if row["name"] in found:
        wrong.append(f"{row['name']} is there twice")
    found[row["name"]] = (row["role"], row["bytes"])
for name, (role, size) in told.items():
    if sys.argv[1] != "cpu" and name.endswith(".step"):
        continue  # on the CPU
    if found.pop(name, None) != (role, size):
        wrong.append(f"{name}: no row, or another role or size than {role}, {size}")
for name, (role, size) in found.items():
    whole = name.replace(".gathered", "")
    part = told.get(whole, ("", 0))[1]
    # Parts are padded to one length.
    if whole != name and role == "parameter" and part <= size <= int((sys.argv[3:] or [1])[0]) * part:
        continue
    if whole.endswith(".grad") and (role, size) == ("gradient", told.get(whole[:-5], (0, 0))[1]):
        continue
    wrong.append(f"{name} is nothing that the program has")
tensors = [row for row in rows if row["storage_kind"] == "tensor"]
total = sum(row["bytes"] for row in tensors)
known = sum(row["bytes"] for row in tensors if not row["anonymous"] or row["module"])
print(f"{sys.argv[1]}: {known} of {total} bytes have a name or a layer")
if known < float((sys.argv[2:] or ["0.99"])[0]) * total:
    wrong.append("too few: " + ", ".join(f"{row['op']} {row['phase']} {row['bytes']}" for row in tensors if row["anonymous"] and not row["module"]))
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON
}

for mode in train wrapped wrapped_once copies; do
  run -- "$python" "$program" "$mode"
  check "$mode: exit status" equal "$?" 0
  [[ $mode == wrapped* ]] || check "$mode: silent" equal "$(cat err)" ""  # torch itself warns there
  check "$mode: names" named_rightly cpu
  [[ $mode == train ]] && check "layers of a tied weight, and of residual sums" python3 -c '
import json
device, = [one for one in json.load(open("report.json"))["peaks"]["devices"] if one["device"] == "cpu"]
layers = {(row["op"], row["bytes"]): set() for row in device["rows"]}
for row in device["rows"]:
    if row["anonymous"] and row["phase"] == "forward":
        layers[row["op"], row["bytes"]].add(row["module"])
assert "head" in layers["aten::linear", 4 * 8 * 32 * 64], layers  # its input, made contiguous
assert layers["aten::cross_entropy_loss", 4 * 8 * 32 * 512] == {"head"}, layers
assert layers["aten::embedding", 4 * 8 * 32 * 64] == {"embedding"}, layers
sums = layers["aten::add", 4 * 8 * 32 * 64]
assert sums and all(layer.startswith("blocks.") for layer in sums), layers'
done
run -- "$python" "$program" moved_states
check "moved states: exit status" equal "$?" 0
check "moved states: names" named_rightly cpu 0
check "what a closure keeps is not the optimizer's" python3 -c '
import json
rows = json.load(open("report.json"))["end"]["devices"][0]["rows"]
assert [row["module"] for row in rows if row["op"] == "aten::mul" and row["bytes"] == 4 << 16] == [""] * 5, rows'
run -- "$python" "$program" threads
check "threads: exit status" equal "$?" 0
check "threads: names" named_rightly cpu 0
# Ray and Streamlit import torch on another thread than the main one, which waits in C, or runs
# Python meanwhile. ctypes opens libraries without Python's lock.
on_a_thread() {  # TITLE MAIN BEFORE
  run -- "$python" -c "
import importlib.util, os, runpy, sys, threading, time
sys.argv.pop(0)
program, failed = sys.argv[0], []
def work():
    try:
        $3
        runpy.run_path(program, run_name='__main__')
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=work)
thread.start()
$2
sys.exit(repr(failed) if failed else 0)" "$program" train
  check "on a thread, $1: exit status" equal "$?" 0
  check "on a thread, $1: names" named_rightly cpu
}
on_a_thread "the main one waits" "thread.join()" "pass"
on_a_thread "the main one works" "while thread.is_alive(): time.sleep(0.01)" "pass"
on_a_thread "LibTorch by ctypes" "thread.join()" \
  "import ctypes; ctypes.CDLL(os.path.join(*importlib.util.find_spec('torch').submodule_search_locations, 'lib', 'libtorch_cpu.so'))"
run -- "$python" "$program" gathered
check "gathered: exit status" equal "$?" 0
check "gathered: names" named_rightly cpu
check "gathered: a part is not called frozen" python3 -c '
import json
rows = [row for row in json.load(open("report.json"))["last_step"]["devices"][0]["rows"] if row["role"] == "parameter"]
assert rows and all(row["requires_grad"] is not False for row in rows), rows'
ranks=()
for rank in 0 1; do
  "$memledger" run --quiet "${gpu[@]}" --save-report=rank$rank.json -- "$python" "$program" two_ranks $rank "$PWD/store" >out$rank 2>err$rank &
  ranks+=($!)
done
for rank in 0 1; do
  wait "${ranks[rank]}"
  check "two ranks: exit status of $rank" equal "$?" 0
  cp rank$rank.json report.json; cp out$rank out
  check "two ranks: names of $rank" named_rightly cpu 0.99 2
done
for mode in checkpointed compiled_parts scripted; do
  run -- "$python" "$program" "$mode"
  check "$mode: exit status" equal "$?" 0
  check "$mode: names" named_rightly cpu
  [[ "$mode" != checkpointed ]] && continue
  # Two blocks, each with an input of (8, 32, 64) floats; and one of (3, 32, 64) under no_grad.
  check "$mode: inputs of checkpoints" python3 -c '
import json
report = json.load(open("report.json"))
at_peak, at_end = (report[moment]["devices"][0]["rows"] for moment in ("peaks", "end"))
given = [row["bytes"] for row in at_peak if row["checkpointed"]]
unsaved = [row["checkpointed"] for row in at_end if row["anonymous"] and row["bytes"] == 3 * 32 * 64 * 4]
assert given and set(given) == {8 * 32 * 64 * 4}, given
assert unsaved == [False], unsaved'
done
# By layer, what networks with checkpoints keep is what they keep without, and what is recomputed.
run -- "$python" "$program" random_checkpoints
check "random checkpoints: exit status" equal "$?" 0
check "random checkpoints: layers, roles, and what is recomputed" python3 - <<'PYTHON'
import collections, json, re
told, networks = collections.Counter(), collections.defaultdict(set)
for line in open("out"):
    name, layer, recomputed, size = line.split()
    told[f"{name}.{layer}", recomputed == "True"] += int(size)
    networks[re.match(r"Seed\d+", name).group()].add(name)
found, roles = collections.Counter(), collections.defaultdict(collections.Counter)
for row in json.load(open("report.json"))["end"]["devices"][0]["rows"]:
    name, _, layer = row["module"].partition(".")
    roles[name][row["role"], row["recomputed"]] += row["bytes"]
    if row["anonymous"]:
        found[row["module"], row["recomputed"]] += row["bytes"]
        assert row["phase"] == "forward", row
wrong = [f"{layer}{', recomputed' * again}: {found[layer, again]}, not {told[layer, again]}"
         for layer, again in sorted({*told, *found}) if found[layer, again] != told[layer, again]]
for seed, ways in networks.items():
    without = roles[f"{seed}without"]
    for name in sorted(ways):
        first = {role: size for (role, again), size in roles[name].items() if not again}
        if first != {role: size for (role, again), size in without.items()}:
            wrong.append(f"{name}: {first}, without checkpoints {without}")
assert len(networks) == 10 and any(again for _, again in told), networks
print("\n".join(wrong))
raise SystemExit(bool(wrong))
PYTHON
# Inductor compiles C++ for half a minute.
if [[ -z "${MEMLEDGER_FULL:-}" ]]; then
  :
elif ! command -v g++ >/dev/null; then
  echo "SKIPPED: Inductor needs g++"
else
  export TORCHINDUCTOR_CACHE_DIR="$PWD/inductor"
  run -- "$python" "$program" compiled_parts cpu inductor
  check "inductor: exit status" equal "$?" 0
  check "inductor: names" named_rightly cpu
fi
# Neither the environment's variables nor the user's folder are read.
run -- "$python" -I "$program" train
check "isolated: names" named_rightly cpu
if [[ "${6:-}" == --cuda ]]; then
  run -- "$python" "$program" train cuda
  check "on a virtual GPU" named_rightly cuda:0
  # Its optimizer steps shards, which no forward pass reads.
  mkdir measured
  MEMLEDGER_MEASURE="$PWD/measured" MEMLEDGER_MEASURE_UNTIL=step run -- "$python" "$program" gathered_long cuda
  check "steps of shards end a program that is measured" equal \
    "$(python3 -c 'import glob, json; m = json.load(open(*glob.glob("measured/*.json"))); print(m["ended"], m["steps"] < 900, m["unstepped_parameters"])')" "step True 0"
  gpu=(--virtual-gpu=h100,count=2)
  for device in cuda:0 cuda:1; do
    run -- "$python" "$program" replicated $device
    check "replicated on $device" named_rightly $device
    "$python" -c 'import accelerate' 2>/dev/null || continue
    run -- "$python" "$program" dispatched $device
    check "dispatched on $device" named_rightly $device
  done
  gpu=(--virtual-gpu=h100)
fi

for mode in generate inference; do
  run -- "$python" "$program" "$mode"
  check "$mode: names" named_rightly cpu
  check "$mode: each cache is of its layer" python3 -c '
import json
rows = json.load(open("report.json"))["peaks"]["devices"][0]["rows"]
caches = {row["module"] for row in rows if row["op"] == "aten::cat"}
assert caches == {"blocks.0.mlp.2", "blocks.1.mlp.2"}, caches'
done
# What dry-run says of its peak, by the program's own figures, which `run` has left in `out`.
predicted_rightly() {
  python3 - "$program" <<'PYTHON'
import json, sys
told = {name: (role, int(size)) for name, role, size in (line.split() for line in open("told"))}
prediction = json.load(open("prediction.json"))
peak = prediction["peak"]
wrong = []
for role in ("parameter", "buffer", "optimizer_state"):
    # A step counter is on the CPU.
    size = sum(size for name, (its, size) in told.items() if its == role and not name.endswith(".step"))
    if peak["by_role"].get(role, 0) != size:
        wrong.append(f"{role}: {peak['by_role'].get(role)}, the program has {size}")
if sum(part["bytes"] for part in peak["parts"]) != sum(peak["by_role"].values()):
    wrong.append(f"parts {peak['parts']} of {peak['by_role']}")
rows = {row["name"]: row for row in peak["largest"]}
for name in ("embedding.weight", "AdamW.embedding.weight.exp_avg"):
    if name not in rows:
        wrong.append(f"{name} is not among the largest: {sorted(rows)}")
source = open(sys.argv[1]).read().splitlines()
for name, text in (("embedding.weight", ".to(device)"), ("AdamW.embedding.weight.exp_avg", "optimizer.step()")):
    place = (rows.get(name) or {}).get("place") or ""
    if not place.startswith("python_program.py:") or text not in source[int(place.split(":")[1].split()[0]) - 1]:
        wrong.append(f"{name} was made at '{place}', which has no '{text}'")
# The engine itself adds gradients of what was used twice, between nodes.
backward = [row for row in peak["largest"] if row["phase"] == "backward" and row["operator"] != "aten::add"]
if not backward or not all((row["place"] or "").startswith("python_program.py:") for row in backward):
    wrong.append(f"no line of what backward made: {backward}")
if not any(name.startswith("blocks.1.") for name in peak["by_layer"]):
    wrong.append(f"no layer of the second block: {sorted(peak['by_layer'])}")
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON
}
if [[ "${6:-}" == --cuda ]]; then
  run -- "$python" "$program" large cuda
  cp out told
  "$memledger" dry-run --gpu=h100 --settings=none --json=prediction.json -- "$python" "$program" large cuda >out 2>err
  check "dry-run: exit status" equal "$?" 0
  check "dry-run: roles, names and lines" predicted_rightly
  "$memledger" dry-run --gpu=h100 --settings=none --json -- "$python" "$program" large cuda >out 2>err
  check "dry-run: the same bytes again" cmp out prediction.json
fi

run --stacks=all -- "$python" "$program" external
check "external: exit status" equal "$?" 0
check "external memory has rows without a name" python3 - "$program" <<'PYTHON'
import json, sys
device = json.load(open("report.json"))["end"]["devices"][0]
source = open(sys.argv[1]).read().splitlines()
line = lambda row: source[int(row["where"].split(":")[1].split()[0]) - 1].strip()
rows = {row["external"]: row for row in device["rows"] if row["kind"] == "external"}
told = {kind: (row["external_bytes"], row["bytes"], line(row).split(" = ")[0]) for kind, row in rows.items()}
assert told.pop("shared_memory")[:2] == (4 << 17, 0), told
assert told.pop("program")[:2] == (4 << 16, 0), told
assert told == {"mapped_file": (4 << 18, 0, "mapped")}, told
assert device["external_bytes"] == (4 << 18) + (4 << 17) + (4 << 16), device["external_bytes"]
assert device["unexplained_bytes"] == 0
PYTHON

"$memledger" run "${gpu[@]}" --save-report=report.json -- "$python" "$program" held >out 2>err
check "held: exit status" equal "$?" 0
check "held: the variables and graphs that hold it" python3 - <<'PYTHON'
import json
rows = json.load(open("report.json"))["end"]["devices"][0]["rows"]
held = {}
for row in rows:
    if row.get("held_by"):
        held.setdefault(row["held_by"], []).append(row["bytes"])
assert held.pop("best['metric']") == [4000], held
for i in range(4):
    # What it is, and what its graph has saved: the activation, and the input.
    assert 4 * 32 * 8 in held.pop(f"outputs[{i}]"), held
    graph = [size for by, sizes in held.items() if f"in the graph of outputs[{i}]" in by for size in sizes]
    assert 4 * 32 * 256 in graph and 4 * 32 * 64 in graph, (graph, held)
assert all("in the graph of outputs[" in by for by in held), held
PYTHON
check "held: on the screen" has err "in the graph of outputs[…]"

# What the program reaches otherwise than by a variable, and what nothing reaches any more.
"$memledger" run "${gpu[@]}" --save-report=report.json -- "$python" "$program" holders >out 2>err
check "holders: exit status" equal "$?" 0
check "holders: each has its path" python3 - "$program" <<'PYTHON'
import json, re, sys
told = [line.rstrip("\n").split(" ", 1) for line in open("out")]
rows = json.load(open("report.json"))["end"]["devices"][0]["rows"]
found = {}
for row in rows:
    found.setdefault(str(row["bytes"]), []).append(re.sub(r"\(\S+:\d+\)", "(LINE)", row.get("held_by", "")))
wrong = [f"{size}: {holder}, not {found.get(size)}" for size, holder in told if holder not in found.get(size, [])]
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON
check "holders: what frees the cycle" has err "save y by ctx.save_for_backward(), not as ctx.y"
"$memledger" run "${gpu[@]}" --stacks=all -- "$python" "$program" packaged >out 2>err
line="$(sed -n "/the user.s line/=" "$program")"
check "packaged: the user's own line, too" matches err "16\\.00M .* at somebodys\\.py:4( make)?, from python_program\\.py:$line"
# Each adapter has 4 MiB that are frozen, and two times 8 x 1024 floats that train.
"$memledger" run "${gpu[@]}" -- "$python" "$program" adapted >out 2>err
check "adapted: frozen and trainable" has err "parameters 8.12M float32 (frozen 8.00M, trainable 128.00K: low-rank adapters)"
"$memledger" run "${gpu[@]}" -- "$python" "$program" set_by_hand >out 2>err
check "set by hand: the option is named" has err "1 gradient was not read, as another thread may be setting it: memledger run --training-paused"
"$memledger" run "${gpu[@]}" --training-paused -- "$python" "$program" set_by_hand >out 2>err
check "set by hand, promised: it is one" has err "4.00M weight.grad"
check "set by hand, promised: nothing is unread" equal "$(grep -c training-paused err)" 0
"$memledger" run "${gpu[@]}" -- "$python" "$program" uncaught >out 2>err
check "uncaught: the frame" has err "held by hidden in raise_with() (python_program.py:$(grep -n 'raise ValueError(hidden' "$program" | cut -d: -f1)), kept by the uncaught exception"
"$memledger" run "${gpu[@]}" -- "$python" "$program" kept_graph >out 2>err
check "kept graph: whose it is" has err "in the graph of runner.outs[…]"
check "kept graph: what frees it" has err "keep .detach() or .item() of runner.outs[…] instead of its graph"
"$memledger" run "${gpu[@]}" -- "$python" "$program" views >out 2>err
check "views: how much of it they show" has err "held by features[…], which shows 1/64 of it"
check "views: a clone" has err "keep features[…].clone()"
# A failure is reported with what an earlier one has left.
"$memledger" run "${gpu[@]}" -- "$python" "$program" failures >out 2>err
check "failures: the program goes on" equal "$(cat out)" "caught caught"
check "failures: the earlier one's frames" has err "held by hidden in fail() (python_program.py:$(grep -n 'torch.empty(1 << 61' "$program" | cut -d: -f1)), kept by the exception last_error"
check "failures: what frees it" has err "drop the exception last_error once it is handled"
check "failures: in Python's words" equal "$(grep -c MemReporter err)" 0
# On demand, by the program's own thread; after a signal nothing is said.
"$memledger" run "${gpu[@]}" --report-on=SIGUSR2 -- "$python" "$program" demand >out 2>err
check "demand: the running function's variable" has err "held by local in mode_demand() (python_program.py:"
check "demand: nothing is kept alive" equal "$(cat out)" "freed"
check "demand: not after a signal" has err "not freed at the end (who holds it: not looked up)"

# However it ends, it is reported once, and its parent sees the end that it would have seen.
check "each end is told" python3 - "$memledger" run "${gpu[@]}" -- "$python" "$program" ends <<'PYTHON'
import re, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background processes ignore it
ends = [("exception", None, 1, "ended (1)"), ("_exit", None, 4, "ended by _exit(4)"), ("abort", None, -6, "ended by SIGABRT"),
        ("wait", signal.SIGINT, -2, "ended by SIGINT"), ("wait", signal.SIGTERM, -15, "ended by SIGTERM")]
wrong = []
for how, number, status, told in ends:
    with subprocess.Popen([*sys.argv[1:], how], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        if number:
            process.send_signal(number)
        err = process.communicate(timeout=120)[1]
    titles = re.findall(r"^memledger: python_program.py (.*?) after .*$", err, re.M)
    if (process.returncode, titles) != (status, [told]) or "(768, 1024)" not in err:
        wrong.append(f"{how}, {number}: {process.returncode}, {titles}: {err}")
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON

run -- "$python" "$program" many
check "1000 modules: gc knows none" equal "$(cat out)" "alive 0"
check "1000 modules: the books know none" python3 -c '
import json
end = json.load(open("report.json"))["end"]
assert not [row for device in end["devices"] for row in device["rows"]], end'

# With the virtual GPU in both, as torch needs its libraries.
MEMLEDGER='' "$memledger" run --quiet "${gpu[@]}" -- "$python" "$program" compiled >bare 2>err
check "compiled, unwatched: exit status" equal "$?" 0
run -- "$python" "$program" compiled
check "compiled: graph breaks and recompilations are what they were" diff bare out
check "compiled: something was counted" has out "unique_graphs"
run -- "$python" "$program" hooks_fail
check "odd modules" equal "$(cat out)" "odd 3"

"$memledger" run "${gpu[@]}" -- "$python" "$program" out_of_memory >out 2>err
check "out of memory: the program goes on" equal "$(cat out)" "caught"
line="$(grep -n 'torch.empty(1 << 60' "$program" | cut -d: -f1)"
check "out of memory: the program's line" has err "by aten::empty [forward] at python_program.py:$line forward_that_needs_too_much"

# What the rows say of their places, by the line's text.
lines_told() {  # EXPECTED
  python3 - "$program" "$1" <<'PYTHON'
import json, sys
source = open(sys.argv[1]).read().splitlines()
report = json.load(open("report.json"))
told = [row["where"] for one in report["peaks"]["devices"] for row in one["rows"] if row.get("where")]
kept = [w for w in told if w.startswith("python_program.py:") and "1 << 22" in source[int(w.split(":")[1].split()[0]) - 1]]
print(told)
sys.exit(bool(kept) != (sys.argv[2] == "yes"))
PYTHON
}
run -- "$python" "$program" lines
check "lines: 16 MiB have theirs by default" lines_told yes
check "lines: without PyTorch's compiler" has out "compiler imported: False"
run --stacks=off -- "$python" "$program" lines
check "lines: off" lines_told no
run --stacks=all -- "$python" "$program" lines
check "lines: all" lines_told yes

profile() { "$memledger" run "${gpu[@]}" "$@" >out 2>err; }
row() { awk -v title="## $1" -v code="$2" '/^## /{ inside = $0 == title } inside && index($0, code) { print $1, $2 }' err; }

if [[ "${6:-}" == --cuda ]]; then
  # The figures of pytorch_memlab's README.
  profile -f outer -f inner -- "$python" "$profiled" readme
  check "profile: exit status" equal $? 0
  check "profile: outer begins" equal "$(row outer 'def outer')" "0.00B 0.00B"
  check "profile: the first" equal "$(row outer ' linear = ')" "40.00K 2.00M"
  check "profile: the second" equal "$(row outer 'linear2 =')" "80.00K 2.00M"
  check "profile: the call" equal "$(row outer 'inner()')" "120.00K 2.00M"
  check "profile: inner begins" equal "$(row inner 'def inner')" "80.00K 2.00M"
  check "profile: inner's line" equal "$(row inner 'Linear')" "120.00K 2.00M"
  check "profile: of these only" equal "$(grep -c '^## ' err)" 2

  # LibTorch's own counts, those of the threads that run backward, too.
  profile -q -f train_step -f Net.forward -r lines.json -- "$python" "$profiled" train
  check "profile: a training step" python3 -c '
import json
allocated, freed, peak = map(int, open("out").read().split())
step, forward = json.load(open("lines.json"))["functions"]
assert (step["function"], forward["function"]) == ("train_step", "Net.forward"), step["function"]
assert step["total"]["allocated_bytes"] == allocated, (step["total"], allocated)
assert step["total"]["freed_bytes"] == freed, (step["total"], freed)
assert max(line["active_bytes.all.peak"] or 0 for line in step["lines"]) == peak, peak
backward = [line for line in step["lines"] if "backward()" in line["code"]]
assert backward[0]["allocated_bytes"] > allocated / 2, backward
for one in (step, forward):
    for figure in ("allocated_bytes", "freed_bytes", "left_bytes"):
        assert sum(line[figure] or 0 for line in one["lines"]) == one["total"][figure], figure
call = [line for line in step["lines"] if "net(x)" in line["code"]]
assert forward["total"]["allocated_bytes"] < call[0]["allocated_bytes"]'
fi
profile -f short_lived -- "$python" "$profiled" many
check "profile: nothing is kept alive" equal "$(cat out)" "ended 200"
check "profile: of a function in a function" has err "## mode_many.short_lived"
profile -f python_lines_program.never_called -f train_stp -- "$python" "$profiled" many
check "profile: a function that is not called, by its module" has err "def never_called():"
check "profile: one that is not there" has err 'there is no function `train_stp`'
check "profile: a near one" has err '; near: `train_step`'
profile -f mode_fails.failing -- "$python" "$profiled" fails
check "profile: an exception stays as it was" equal "$(cat out)" "as it was RuntimeError"
check "profile: its function" has err "## mode_fails.failing"
finish
