# One layer with one weight, in a function that returns nothing. What is still allocated
# afterwards?
import torch


def once():
    layer = torch.nn.Linear(1, 1, device="cuda")
    layer(torch.randn(1, 1, device="cuda"))


start = torch.cuda.memory_allocated()
once()
torch.cuda.synchronize()
print(f"left behind: {torch.cuda.memory_allocated() - start} bytes")
# Source: https://github.com/pytorch/pytorch/issues/95668
