# LoRA on a ResNet-50: 1 % of the parameters train, and the step takes more memory than training
# all of them.
import sys
import torch
from torch import nn

lora, device = "full" not in sys.argv, "cuda" if "cuda" in sys.argv else "cpu"


class LoraConv(nn.Module):
    def __init__(self, base, rank=4, drop=0.1):
        super().__init__()
        self.base = base
        self.a = nn.Conv2d(base.in_channels, rank, base.kernel_size, base.stride, base.padding, bias=False)
        self.b = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.base(x) + self.b(self.a(self.drop(x))) * 2.0


def conv(i, o, k, s=1):
    c = nn.Conv2d(i, o, k, s, k // 2, bias=False)
    return LoraConv(c) if lora else c


class Bottleneck(nn.Module):
    def __init__(self, i, m, s):
        super().__init__()
        self.c1, self.c2, self.c3 = conv(i, m, 1), conv(m, m, 3, s), conv(m, 4 * m, 1)
        self.b1, self.b2, self.b3 = nn.BatchNorm2d(m), nn.BatchNorm2d(m), nn.BatchNorm2d(4 * m)
        self.down = nn.Sequential(conv(i, 4 * m, 1, s), nn.BatchNorm2d(4 * m)) if s > 1 or i != 4 * m else None

    def forward(self, x):
        y = torch.relu_(self.b1(self.c1(x)))
        y = self.b3(self.c3(torch.relu_(self.b2(self.c2(y)))))
        y += self.down(x) if self.down else x
        return torch.relu_(y)


layers, width = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
for m, n, s in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
    for i in range(n):
        layers.append(Bottleneck(width, m, s if i == 0 else 1))
        width = 4 * m
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1)).to(device)
if lora:
    net.requires_grad_(False)
    for module in net.modules():
        if isinstance(module, LoraConv):
            module.a.requires_grad_(True)
            module.b.requires_grad_(True)
trainable = [p for p in net.parameters() if p.requires_grad]
adam = torch.optim.Adam(trainable, 1e-4)
for step in range(2):
    x = torch.randn(16, 3, 224, 224, device=device)
    loss = net(x).square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
print(f"{sum(p.numel() for p in trainable)} of {sum(p.numel() for p in net.parameters())} parameters trained")
# Source: https://github.com/huggingface/peft/issues/2196
