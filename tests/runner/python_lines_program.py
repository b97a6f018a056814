"""Programs whose lines are profiled, for python_lines_test.sh.

Usage: python_lines_program.py MODE
"""

import sys
import threading
import weakref

import torch
from torch import nn


def inner():
    torch.nn.Linear(100, 100).cuda()


def outer():
    linear = torch.nn.Linear(100, 100).cuda()
    linear2 = torch.nn.Linear(100, 100).cuda()
    inner()


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.first(x)
        y = torch.relu(y)
        return self.second(y)


def train_step(net, optimizer, x):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()

    optimizer.zero_grad()
    value = loss.item()
    del loss  # what a function has at its end is freed in its caller's line
    return value


def requested(which):
    return torch.cuda.memory_stats()["requested_bytes.all." + which]


def mode_readme():
    outer()


def mode_train(device="cuda"):
    """What LibTorch itself has counted within train_step."""
    net = Net(256).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.ones(512, 256, device=device)
    if device == "cuda":
        # Makes the libraries' workspace.
        torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    sums = [0, 0]
    for _ in range(3):
        before = (requested("allocated"), requested("freed"))
        train_step(net, optimizer, x)
        sums[0] += requested("allocated") - before[0]
        sums[1] += requested("freed") - before[1]
    print(*sums, torch.cuda.max_memory_allocated())


def mode_many():
    """No frame is kept: what the function had ends with it."""
    ended = []

    def short_lived():
        kept = nn.Linear(4, 4)
        weakref.finalize(kept, ended.append, 1)
        return kept.weight.sum().item()

    threads = [threading.Thread(target=lambda: [short_lived() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("ended", len(ended))


def never_called():
    return torch.ones(3)


def mode_fails():
    def failing():
        made = torch.ones(3)
        try:
            torch.empty(1 << 60)
        except RuntimeError as error:
            sys.tracebacklimit = 0
            raise ValueError("as it was") from error

    try:
        failing()
    except ValueError as error:
        print(error, type(error.__cause__).__name__)


globals()["mode_" + sys.argv[1]](*sys.argv[2:])
