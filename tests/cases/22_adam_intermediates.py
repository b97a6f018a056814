# A ViT-L/16 of 1.2 GB with Adam: 1.2 parameters + 1.2 gradients + 2.4 states = 4.9 GB, but the
# peak is six.
import sys
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, w=1024, heads=16):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(w, 1e-6), nn.LayerNorm(w, 1e-6)
        self.attn = nn.MultiheadAttention(w, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(w, 4 * w), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * w, w), nn.Dropout(0.0))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 1024, 16, 16)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, 1024)), nn.Parameter(torch.zeros(1, 197, 1024))
        self.blocks, self.norm, self.head = nn.Sequential(*[Block() for _ in range(24)]), nn.LayerNorm(1024, 1e-6), nn.Linear(1024, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


net = ViT().cuda()
adam = torch.optim.Adam(net.parameters(), foreach=False if "fixed" in sys.argv else None)
for _ in range(3):
    image = torch.rand(1, 3, 224, 224, device="cuda")
    net(image).sum().backward()
    adam.step()
    adam.zero_grad()
print(f"{sum(p.numel() for p in net.parameters()) * 4 / 1e9:.2f} GB of parameters, peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
# Source: https://github.com/pytorch/pytorch/issues/97712
