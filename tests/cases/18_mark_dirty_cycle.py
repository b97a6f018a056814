# An in-place custom function on a view. Nothing is kept by the program, and the memory rises all
# the same.
import gc
import sys
import torch


class ClampInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (y > 0)


def work():
    x = torch.rand(100, 100, 1000, requires_grad=True)   # 40 MB
    z = x + 1.0
    part = z if "fixed" in sys.argv else z[0]
    ClampInPlace.apply(part)


for i in range(10):
    work()
gc.collect()
print("ten rounds done")
# Source: https://github.com/pytorch/pytorch/issues/160317
