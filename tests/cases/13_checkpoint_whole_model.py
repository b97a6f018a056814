# Gradient checkpointing is on, yet the peak is as high as without it.
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

per_layer, off = "fixed" in sys.argv, "off" in sys.argv
WIDTH, HEADS, LAYERS = 512, 8, 12


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.n1(x + self.attn(x, x, x, need_weights=False)[0])
        return self.n2(x + self.down(torch.relu(self.up(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10)

    def body(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if per_layer else layer(x)
        return x

    def forward(self, x):
        x = self.body(x) if off or per_layer else checkpoint(self.body, x, use_reentrant=False)
        return self.head(x.mean(0))


net = Net().cuda()
adam = torch.optim.Adam(net.parameters(), 1e-4)
for step in range(3):
    x, y = torch.randn(512, 32, WIDTH, device="cuda"), torch.randint(10, (32,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    adam.zero_grad()
    loss.backward()
    adam.step()
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
# Source: https://github.com/pytorch/pytorch/issues/147449
