# A training script that resumes: everything is a global, and the checkpoint was saved from the
# GPU.
import os
import sys
import tempfile
import torch
from torch import nn

device = "cuda"
path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")


def build():
    net = nn.Sequential(nn.Embedding(20000, 512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.Linear(512, 20000)).to(device)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-4)


def step(net, opt):
    tokens = torch.randint(20000, (4, 256), device=device)
    loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()


if len(sys.argv) == 1 or sys.argv[1] != "scratch":
    first, first_opt = build()
    step(first, first_opt)
    torch.save({"model": first.state_dict(), "optimizer": first_opt.state_dict()}, path)
    del first, first_opt
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

net, opt = build()
if os.path.exists(path):
    checkpoint = torch.load(path, map_location="cpu" if "fixed" in sys.argv else device)
    net.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["optimizer"])
    os.remove(path)
for _ in range(4):
    step(net, opt)
print(f"peak since resume {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB, now {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
# Source: https://github.com/karpathy/nanoGPT/issues/158
