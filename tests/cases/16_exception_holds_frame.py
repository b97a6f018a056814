# The batch is halved after an out-of-memory error, and even a batch of one fails.
import sys
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4096, 16384), nn.ReLU(), nn.Linear(16384, 4096)).cuda()
limit = 3 << 30
torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)


def run(batch):
    x = torch.randn(batch, 4096, device="cuda")
    hidden = net[0](x)
    return net[2](net[1](hidden)).mean()


batch, last_error = 24576, None
while batch:
    try:
        print(f"batch {batch}: loss {float(run(batch)):.3f}")
        break
    except torch.OutOfMemoryError as error:
        last_error = None if "fixed" in sys.argv else error   # kept for the log
        print(f"batch {batch} does not fit; {torch.cuda.memory_allocated() / 2**20:.0f} MiB still allocated")
        batch //= 2
print("gave up" if not batch else f"runs with {batch}")
# Source: https://github.com/pytorch/pytorch/issues/27600
