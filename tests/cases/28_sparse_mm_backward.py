# A sparse matrix of 860 000 entries times a dense one: forward takes 0.2 GB, backward asks for 45
# GiB.
import sys
import torch

n, entries = 110000, 860000
where = torch.randint(n, (2, entries))
a = torch.sparse_coo_tensor(where, torch.randn(entries), (n, n)).cuda().requires_grad_("fixed" not in sys.argv)
b = torch.randn(n, 200, device="cuda", requires_grad=True)
total = torch.sparse.mm(a, b).sum()
print(f"after forward {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
total.backward()
print(f"after backward {torch.cuda.memory_allocated() / 2**20:.0f} MiB, peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
# Source: https://github.com/pytorch/pytorch/issues/41128
