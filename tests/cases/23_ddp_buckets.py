# The same training under DistributedDataParallel takes about one set of gradients more than
# alone.
import os
import sys
import torch
import torch.distributed as dist
from torch import nn

ddp = "alone" not in sys.argv
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29533")
net = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(1408, 1408), nn.ReLU())], nn.Linear(1408, 1000)).cuda() 
if ddp:
    dist.init_process_group("nccl", rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(net, device_ids=[0], gradient_as_bucket_view="fixed" in sys.argv)
sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    x, y = torch.randn(512, 1408, device="cuda"), torch.randint(1000, (512,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB, parameters {sum(p.numel() for p in net.parameters()) * 4 / 2**20:.0f} MiB")
if ddp:
    dist.destroy_process_group()
# Source: https://github.com/pytorch/pytorch/issues/41954
