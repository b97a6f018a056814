# evaluation loop keeps outputs with their graph (pytorch #13613)
import torch
from torch import nn
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).cuda().eval()
predictions = []
def evaluate():
    kept = []
    for batch in range(60):
        x = torch.randn(1024, 512, device="cuda")
        kept.append(net(x))
    return torch.cat([k.argmax(-1) for k in kept])
class Runner:
    def __init__(self): self.outs = []
    def go(self):
        for b in range(60):
            self.outs.append(net(torch.randn(1024, 512, device="cuda")))
r = Runner(); r.go()
print(torch.cuda.memory_allocated() / 2**20)
# Source: https://github.com/pytorch/pytorch/issues/13613
