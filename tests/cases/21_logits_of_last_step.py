# Fine-tuning with a vocabulary of 128k: what a step leaves in its variables is still there at the
# peak of the next one.
import sys
import torch
from torch import nn

VOCAB, WIDTH, SEQ = 128256, 1024, 2048
net = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4)],
                    nn.Linear(WIDTH, VOCAB, bias=False)).to("cuda", torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
for step in range(4):
    torch.cuda.reset_peak_memory_stats()
    batch = torch.randint(VOCAB, (2, SEQ + 1), device="cuda")
    logits = net(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    probs = logits.detach().float().softmax(-1)      # for the log
    confidence = probs.amax(-1).mean()
    if "fixed" in sys.argv:
        del logits, loss, probs
    print(f"step {step}: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
# Source: https://github.com/foundation-model-stack/fms-fsdp/pull/152
