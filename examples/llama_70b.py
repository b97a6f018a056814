"""Two steps of a model of the shape of Llama 2 70B with FSDP2. It knows nothing of memledger.

    memledger run --virtual-gpu=h100,count=8,share=job -- torchrun --nproc-per-node=8 examples/llama_70b.py
"""
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCABULARY, CONTEXT = 8192, 64, 8, 28672, 80, 32000, 4096


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        size = HIDDEN // HEADS
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))

    def run(self, x):
        x = x + self.attend(self.attention_norm(x))
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.run, x, use_reentrant=False)


def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    init_process_group("cuda:nccl,cpu:gloo")
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Embedding(VOCABULARY, HIDDEN), *(Block() for _ in range(LAYERS)), nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        ).to(torch.bfloat16)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        tokens = torch.randint(VOCABULARY, (1, CONTEXT), device="cuda")
        F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    destroy_process_group()


main()
