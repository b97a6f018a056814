#!/usr/bin/env bash
# names_test.sh MEMLEDGER PROGRAM COMPILED_MODEL.so [--cuda RESNET]
#
# A program that has never heard of memledger has its names in the report: what it says of itself is
# held against the rows of the peak.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2" compiled="$PWD/$3" resnet="$PWD/${5:-}"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(err)

# Fails unless the peak's named rows are what the program prints, with each gradient and state, and
# nearly all other bytes have a layer. `paths` says whether the program's paths are known, else only
# its types; `share` how much has a name or a layer.
paths=yes share=0.99
named_rightly() {  # DEVICE OPTIMIZER-SLOTS…
  python3 - "$paths" "$share" "$@" <<'PYTHON'
import json, sys
paths, share, device, slots = sys.argv[1] == "yes", float(sys.argv[2]), sys.argv[3], sys.argv[4:]
told = dict(line.split() for line in open("out"))
report = json.load(open("report.json"))
rows = [row for one in report["peaks"]["devices"] if one["device"] == device for row in one["rows"]]
named = {row["name"]: row for row in rows if not row["anonymous"]}
data = [named.pop(name) for name in ("MNIST.images", "MNIST.targets") if name in named]
trained = [name for name in told if not name.endswith(("scale", "running_mean", "running_var", "num_batches_tracked"))]
wrong = []
for name, size in told.items():
    row = named.pop(name, None)
    role = "parameter" if name in trained else "buffer"
    if row is None or row["bytes"] != int(size) or row["role"] != role:
        wrong.append(f"{name}: {row and (row['bytes'], row['role'])} is not {size}, {role}")
for name in trained:
    gradient = named.pop(name + ".grad", None)
    if gradient and (gradient["role"], gradient["bytes"]) != ("gradient", int(told[name])):
        wrong.append(f"{name}.grad: {gradient}")
    for slot in slots:
        optimizer, _, state = slot.partition(".")
        row = named.pop(f"{optimizer}.{name}.{state}", None)
        if optimizer == "Adam" and name.startswith("Critic") or optimizer == "SGD" and name.startswith("LeNet"):
            continue
        if row is None or (row["role"], row["bytes"]) != ("optimizer_state", int(told[name])):
            wrong.append(f"{slot} of {name}: {row}")
wrong += [f"{name} is nothing that the program has" for name in named]
tensors = [row for row in rows if row["storage_kind"] == "tensor"]
# What was made in a scope is of its layer, whether forward or backward made it.
for row in rows:
    scope = row["label"] or row["forward_label"]
    if row["anonymous"] and scope.startswith("Optimizer.step#"):
        if row["module"] != scope.split("#")[1].split(".")[0]:
            wrong.append(f"{row['op']} in {scope}, {row['bytes']} bytes, is of {row['module']}")
    elif row["anonymous"] and scope and not scope.startswith("TorchScript") and paths and row["role"] != "input" and f".{scope}." not in f".{row['module']}.":
        wrong.append(f"{row['op']} in {scope}, {row['bytes']} bytes, is not of {row['module']}")
inputs = sum(row["bytes"] for row in rows if row["role"] == "input" and row["op"] in ("aten::randn", "aten::rand")) + sum(row["bytes"] for row in data if row["role"] == "input")
total = sum(row["bytes"] for row in tensors)
known = sum(row["bytes"] for row in tensors if not row["anonymous"] or row["module"])
print(f"{known} of {total} bytes have a name or a layer, {inputs} are inputs")
if not inputs and share > 0.9:
    wrong.append("no input was found")
if known < share * total:
    wrong.append("too few: " + ", ".join(f"{row['op']} {row['phase']} {row['bytes']}" for row in tensors if row["anonymous"] and not row["module"]))
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON
}
gpu=()  # a program with LibTorch's CUDA library does not start without NVIDIA's
[[ "${4:-}" == --cuda ]] && gpu=(--virtual-gpu=h100)
run() { "$memledger" run --quiet "${gpu[@]}" --save-report=report.json "$@" >out 2>err; }

run -- "$program" lenet
check "exit status" equal "$?" 0
check "a net, on the CPU" named_rightly cpu Adam.exp_avg Adam.exp_avg_sq
check "the state after the last step, held against what the program tells" python3 - <<'PYTHON'
import json
told = {name: int(size) for name, size in (line.split() for line in open("out"))}
report = json.load(open("report.json"))
assert report["steps"]["count"] == 4 and report["steps"]["baseline"] == 2, report["steps"]
assert [step["step"] for step in report["steps"]["course"] if step["device"] == "cpu"] == [1, 2, 3, 4]
cpu = next(one for one in report["devices"] if one["device"] == "cpu")
rows = next(one for one in report["last_step"]["devices"] if one["device"] == "cpu")["rows"]
assert cpu["last_step_bytes"] == cpu["baseline_bytes"] == sum(row["bytes"] for row in rows)
trained = sum(size for name, size in told.items() if not name.endswith(("scale", "running_mean", "running_var", "num_batches_tracked")))
buffers = sum(told.values()) - trained
parts = {part["part"]: part["bytes"] for part in cpu["last_step_parts"]}
assert (parts["parameters"], parts["gradients"], parts["buffers"]) == (trained, trained, buffers), parts
# Adam's two states of each parameter, and no more than a count of steps in addition.
assert 2 * trained <= parts["optimizer state"] <= 2 * trained + 1024, parts
assert not report["end"]["devices"] or not any(one["rows"] for one in report["end"]["devices"])
PYTHON
run -- "$program" mnist
check "LibTorch's own data set" named_rightly cpu Adam.exp_avg Adam.exp_avg_sq
check "its images and targets" python3 -c '
import json
device, = [one for one in json.load(open("report.json"))["peaks"]["devices"] if one["device"] == "cpu"]
data = {row["name"]: (row["role"], row["bytes"]) for row in device["rows"] if row["name"].startswith("MNIST.")}
assert data == {"MNIST.images": ("input", 10000 * 28 * 28 * 4), "MNIST.targets": ("input", 10000 * 8)}, data'
run -- "$program" stack
check "a net on the stack" named_rightly cpu RMSprop.square_avg
run -- "$program" gan
check "two nets" named_rightly cpu SGD.momentum_buffer Adam.exp_avg Adam.exp_avg_sq
run -- "$program" dcgan
check "PyTorch's example" named_rightly cpu Adam.exp_avg Adam.exp_avg_sq
run -- "$program" eval
check "evaluation under no_grad" named_rightly cpu
run -- "$program" unasked
paths=no check "a net that nobody asks" named_rightly cpu
run -- "$program" frozen
check "frozen layers" named_rightly cpu
run -- "$program" script
# TorchScript differentiates whole graphs, within which operators do not see the parameters.
share=0.9 check "TorchScript" named_rightly cpu SGD.momentum_buffer
run -- "$program" storage
check "a storage that no operator made" python3 -c '
import json
device, = json.load(open("report.json"))["peaks"]["devices"]
row = max(device["rows"], key=lambda row: row["bytes"])
assert row["bytes"] == 64 << 20 and not row["adopted"], row'
run -- "$program" compiled "$compiled"
check "a model that AOTInductor has compiled: exit status" equal "$?" 0
check "its constants, its inputs and what it makes" python3 -c '
import json
report = json.load(open("report.json"))
device, = report["peaks"]["devices"]
rows = {(row["name"] if not row["anonymous"] else row["module"], row["role"]): row["bytes"] for row in device["rows"]}
assert rows.get(("input0", "input")) == 4 << 16, rows
assert sum(row["bytes"] for row in device["rows"] if row["module"] == "AOTInductor model") >= 4 << 18, rows
assert not [row for row in device["rows"] if row["anonymous"] and not row["module"]], rows
alive = {row["name"]: row["external_bytes"] for device in report["end"]["devices"] for row in device["rows"] if row["kind"] == "external"}
assert alive == {"encoder.weight": 4096}, alive'
"$memledger" run "${gpu[@]}" -- "$program" compiled "$compiled" >out 2>err
check "its screen" has err "AOTInductor model"
"$memledger" run "${gpu[@]}" --save-report=report.json -- "$program" losses >out 2>err
check "who keeps what has grown, though it is gone at the end" has err \
  "held by PowBackward0.self in the graph of aten::mean [step 3]"
check "in which step" python3 -c '
import json
device, = [one for one in json.load(open("report.json"))["last_step"]["devices"] if one["device"] == "cpu"]
held = [row.get("held_by", "") for row in device["rows"]]
for step in (1, 2, 3):
    assert f"PowBackward0.self in the graph of aten::mean [step {step}]" in held, held
assert "the program (1 reference to aten::mean [step 1])" in held, held'
run -- "$program" many
check "1000 nets leave nothing" python3 -c '
import json
end = json.load(open("report.json"))["end"]
assert not [row for device in end["devices"] for row in device["rows"]], end'
if [[ "${4:-}" == --cuda ]]; then
  run -- "$program" lenet cuda
  check "a net on a virtual GPU" named_rightly cuda:0 Adam.exp_avg Adam.exp_avg_sq
  check "its names before it moved" python3 -c '
import json
rows = [row for one in json.load(open("report.json"))["peaks"]["devices"] if one["device"] == "cpu" for row in one["rows"]]
told = dict(line.split() for line in open("out"))
named = {row["name"]: str(row["bytes"]) for row in rows if row["role"] in ("parameter", "buffer")}
assert named == told, (named, told)'
  run -- "$resnet" --batch=8 --steps=2
  check "ResNet-50: status" equal "$?" 0
  check "ResNet-50: all but 1 %" python3 -c '
import json
rows = [row for one in json.load(open("report.json"))["peaks"]["devices"] if one["device"] == "cuda:0" for row in one["rows"]]
tensors = [row for row in rows if row["storage_kind"] == "tensor"]
total = sum(row["bytes"] for row in tensors)
known = sum(row["bytes"] for row in tensors if not row["anonymous"] or row["module"])
parameters = sum(row["bytes"] for row in rows if row["role"] == "parameter" and not row["anonymous"])
print(f"{known} of {total} bytes have a name or a layer")
assert known >= 0.99 * total
assert parameters == 4 * 25557032, parameters  # as published'
fi
run --save-report=report.html -- "$program" stack
check "a page" has report.html "classifier.0.weight"
"$memledger" run "${gpu[@]}" --save-report=report.csv -- "$program" stack >out 2>err
check "rows" has report.csv "classifier.0.weight"
check "the report begins with the peak" matches err "^cpu  peak allocated [0-9.]+M, at step [0-9], (forward|backward)"
check "and its composition" matches err "^  parameters .*, gradients .*, optimizer state "
check "the state between steps, though all of it is gone" matches err "^  after the last step \\(3\\): [0-9.]+M: parameters [^,]*, buffers [^,]*, gradients "
check "what grew" has err "nothing has grown since step 2"
check "what is left" has err "not freed at the end: nothing"
check "one screen" test "$(wc -l <err)" -le 40
finish
