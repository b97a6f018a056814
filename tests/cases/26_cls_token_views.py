# Features are collected for a data set: one token of 577 is kept for each picture, and the memory
# of all of them.
import sys
import torch
from torch import nn

net = nn.TransformerEncoder(nn.TransformerEncoderLayer(384, 6, 768, batch_first=True), 2, enable_nested_tensor=False).cuda().eval()
features = []
with torch.no_grad():
    for batch in range(40):
        tokens = torch.randn(16, 577, 384, device="cuda")
        out = net(tokens)
        features.append(out[:, 0].clone() if "fixed" in sys.argv else out[:, 0])
held = sum(f.numel() * 4 for f in features)
print(f"features {held / 2**20:.2f} MiB, allocated {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
# Source: https://github.com/ViCCo-Group/thingsvision/pull/150
