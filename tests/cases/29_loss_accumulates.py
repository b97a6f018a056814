# The running loss is summed for the log. Memory grows with every batch of an epoch of meta-
# learning.
import sys
import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)).cuda()
adam = torch.optim.Adam(net.parameters())
running = 0.0
for batch in range(30):
    x = torch.randn(2048, 512, device="cuda", requires_grad=True)
    energy = net(x)
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    loss = force.square().mean() + energy.square().mean()
    adam.zero_grad()
    loss.backward(retain_graph=True)
    adam.step()
    running += loss.item() if "fixed" in sys.argv else loss
    if batch % 10 == 9:
        print(f"batch {batch}: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
# Source: https://github.com/pytorch/pytorch/issues/64586
