# A sliding window of 16 takes as much as full attention on a card without FlashAttention.
import sys
import torch
import torch.nn.functional as F

T, HEADS, DIM = 2048, 6, 128
window = int(sys.argv[1]) if len(sys.argv) > 1 else 16
q, k, v = (torch.randn(1, HEADS, T, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(3))
rows, cols = torch.arange(T, device="cuda")[:, None], torch.arange(T, device="cuda")[None]
torch.cuda.reset_peak_memory_stats()
mask = cols <= rows
if 0 < window < T:
    mask &= rows - cols <= window
with torch.no_grad():
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
print(f"window {window}: peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
# Source: https://github.com/karpathy/nanochat/issues/825
