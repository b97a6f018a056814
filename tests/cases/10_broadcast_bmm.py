# Eight thousand queries against one shared matrix per head: matmul takes two gigabytes in one
# form and sixty-six in another.
import sys
import torch

queries = torch.rand(8192, 32, 1, 1024, dtype=torch.bfloat16, device="cuda")   # 512 MiB
shared = torch.rand(1, 32, 1024, 128, dtype=torch.bfloat16, device="cuda")     # 8 MiB
if "fixed" in sys.argv:
    result = torch.einsum("qhk,hkd->qhd", queries[:, :, 0], shared[0])
else:
    result = torch.matmul(queries, shared)
torch.cuda.synchronize()
print(tuple(result.shape), f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
# Source: https://github.com/pytorch/pytorch/issues/149302
