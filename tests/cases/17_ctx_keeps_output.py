# A custom autograd function stores its result on ctx as an attribute. Evaluation leaks one result
# for each call.
import sys
import torch

fixed = "fixed" in sys.argv


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        y = torch.sigmoid(x * weight)
        if fixed:
            ctx.save_for_backward(y, weight)
        else:
            ctx.y, ctx.weight = y, weight
        return y

    @staticmethod
    def backward(ctx, g):
        y, weight = ctx.saved_tensors if fixed else (ctx.y, ctx.weight)
        d = g * y * (1 - y)
        return d * weight, (d * 1).sum(0)


weight = torch.nn.Parameter(torch.randn(1024, device="cuda"))
total = 0.0
for batch in range(50):
    x = torch.rand(1024, 1024, device="cuda")
    total += Gate.apply(x, weight).mean().item()
print(f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated after 50 batches")
# Source: https://github.com/pytorch/pytorch/issues/25340
