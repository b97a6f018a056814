# Generation with a cache of keys and values that grows by cat: the peak is about two caches, not
# one.
import sys
import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, BATCH, PROMPT, NEW = 16, 2048, 16, 8, 2000, 24
preallocate = "fixed" in sys.argv


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cache, at):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if preallocate:
            cache[0][:, :, at:at + x.size(1)], cache[1][:, :, at:at + x.size(1)] = k, v
            k, v, new = cache[0][:, :, :at + x.size(1)], cache[1][:, :, :at + x.size(1)], cache
        else:
            k, v = (torch.cat([old, t], 2) for old, t in zip(cache, (k, v))) if cache else (k.contiguous(), v.contiguous())
            new = (k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=x.size(1) > 1)
        return x + self.out(y.transpose(1, 2).flatten(2)), new


layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to("cuda", torch.bfloat16)
room = lambda: torch.empty(BATCH, HEADS, PROMPT + NEW, WIDTH // HEADS, dtype=torch.bfloat16, device="cuda")
with torch.no_grad():
    caches = tuple((room(), room()) if preallocate else None for _ in layers)
    x, at = torch.randn(BATCH, PROMPT, WIDTH, dtype=torch.bfloat16, device="cuda"), 0
    for token in range(NEW):
        if token == 1:
            torch.cuda.reset_peak_memory_stats()
        past, caches = caches, []          # `past` stays, as it does in the inputs of generate()
        for layer, old in zip(layers, past):
            x, new = layer(x, old, at)
            caches.append(new)
        at += x.size(1)
        x = x[:, -1:].clone()
one = 2 * LAYERS * BATCH * (PROMPT + NEW) * WIDTH * 2
print(f"one cache {one / 2**30:.2f} GiB, peak while decoding {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
# Source: https://github.com/huggingface/transformers/pull/30536
