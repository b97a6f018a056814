"""memledger.predict() in a Python program under `memledger run --virtual-gpu`. 4096 x 4096 floats are 64 MiB."""

import torch

import memledger

net = torch.nn.Linear(4096, 4096, bias=False).cuda()


def step():
    net(torch.ones(64, 4096, device="cuda")).sum().backward()


def fails():
    raise ValueError("this step is wrong")


fits = memledger.predict(step, "l4")
peak = fits.to_dict()["devices"][0]["allocated_peak"]
assert fits.verdict == "fits", fits
# Weight, gradient and workspaces.
assert 2 * 64 << 20 <= peak["low"] <= peak["high"] < 4 * 64 << 20, peak
small = memledger.predict(step, "l4", capacity_bytes=96 << 20)
assert small.verdict == "does not fit" and "does not fit" in str(small), small
wrong = memledger.predict(fails, "l4")
assert wrong.verdict == "failed" and "ValueError: this step is wrong" in wrong.to_json(), wrong.to_json()
try:
    memledger.predict(step, "gpu9000")
    raise SystemExit("a GPU that cannot be was predicted")
except memledger.Error as error:
    assert "gpu9000" in str(error), error
print("predicted", net.weight.grad is None)
