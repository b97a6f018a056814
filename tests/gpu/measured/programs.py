#!/usr/bin/env python3
"""programs.py NAME: runs one program on cuda:0 and prints what torch and the device say of its memory, a line of JSON.

`programs.py --list` names them. The weights are random; nothing is downloaded. Sizes are those with which the rows of
the tables beside this file were measured, so they are not to be changed.
"""

import json, os, sys
import torch
import torch.nn as nn
import torch.nn.functional as F

name = sys.argv[1]
DEV = "cuda:0"


def free():
    return torch.cuda.mem_get_info()[0]


def opt_steps(model, batch, loss_of, n=3, amp=None, opt=None, scaler=None):
    opt = opt or torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(n):
        x = batch()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            loss = loss_of(model, x)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
        opt.zero_grad()


def tv(n, **k):
    import torchvision

    return getattr(torchvision.models, n)(weights=None, **k).to(DEV)


def images(b, s=224):
    return lambda: (torch.randn(b, 3, s, s, device=DEV), torch.randint(0, 1000, (b,), device=DEV))


def xent(m, x):
    y = m(x[0])
    y = getattr(y, "logits", y)
    return F.cross_entropy(y.float(), x[1])


def cnn(n, b, s=224, amp=None, cl=False, benchmark=False, tf32=False, **k):
    torch.backends.cudnn.benchmark = benchmark
    m = tv(n, **k)
    if cl:
        m = m.to(memory_format=torch.channels_last)
    opt_steps(m, images(b, s), xent, amp=amp)


def hf_lm(cfg, b, t, dtype=torch.float32, amp=None, ckpt=False, opt=None, n=3, foreach=None):
    from transformers import AutoModelForCausalLM

    with torch.device(DEV):
        m = AutoModelForCausalLM.from_config(cfg, dtype=dtype)
    if ckpt:
        m.gradient_checkpointing_enable()
        m.config.use_cache = False
    m.train()
    o = opt(m) if opt else torch.optim.AdamW(m.parameters(), lr=1e-4, foreach=foreach)

    def batch():
        return torch.randint(0, cfg.vocab_size, (b, t), device=DEV)

    opt_steps(m, batch, lambda m, x: m(input_ids=x, labels=x).loss, amp=amp, opt=o, n=n)
    return m


def gpt2cfg(**k):
    from transformers import GPT2Config

    return GPT2Config(**k)


def llama(**k):
    from transformers import LlamaConfig

    d = dict(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    d.update(k)
    return LlamaConfig(**d)


def linalg(f):
    f()
    torch.cuda.synchronize()


def R(*s):
    return torch.randn(*s, device=DEV)


def sym(*s):
    a = R(*s)
    return a + a.mT


def sgemm_sparse(n, dens):
    a = (torch.rand(n, n, device=DEV) < dens).float().to_sparse_csr()
    b = a @ a
    return b._nnz()


def graph(n):
    x = torch.ones(1024, device=DEV)
    y = x + 1
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(n):
            x.add_(1)
    g.replay()
    torch.cuda.synchronize()


def rnn(kind):
    m = getattr(nn, kind)(1024, 1024, 2).to(DEV)
    o = torch.optim.Adam(m.parameters())
    for _ in range(3):
        o.zero_grad()
        y, _ = m(R(128, 32, 1024))
        y.pow(2).mean().backward()
        o.step()


def encoder(amp=None, b=32, t=256, d=768, layers=6, tfm=nn.TransformerEncoderLayer):
    m = nn.TransformerEncoder(tfm(d, 12, 4 * d, batch_first=True), layers).to(DEV)
    opt_steps(m, lambda: R(b, t, d), lambda m, x: m(x).float().pow(2).mean(), amp=amp)


def unet(b=8, s=256, amp=None, benchmark=False):
    torch.backends.cudnn.benchmark = benchmark

    def block(i, o):
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1),
            nn.GroupNorm(8, o),
            nn.SiLU(),
            nn.Conv2d(o, o, 3, padding=1),
            nn.GroupNorm(8, o),
            nn.SiLU(),
        )

    class U(nn.Module):
        def __init__(self):
            super().__init__()
            c = [64, 128, 256, 512]
            self.d = nn.ModuleList(block(i, o) for i, o in zip([3] + c[:-1], c))
            self.u = nn.ModuleList(block(a + b, b) for a, b in zip(c[:0:-1], c[-2::-1]))
            self.t = nn.ModuleList(nn.ConvTranspose2d(a, a, 2, 2) for a in c[:0:-1])
            self.o = nn.Conv2d(64, 3, 1)

        def forward(self, x):
            k = []
            for i, l in enumerate(self.d):
                x = l(x)
                k.append(x)
                if i < 3:
                    x = F.max_pool2d(x, 2)
            for t, u, s in zip(self.t, self.u, k[-2::-1]):
                x = u(torch.cat([t(x), s], 1))
            return self.o(x)

    opt_steps(U().to(DEV), lambda: R(b, 3, s, s), lambda m, x: (m(x).float() - x).pow(2).mean(), amp=amp)


def generate():
    from transformers import AutoModelForCausalLM

    with torch.device(DEV):
        m = AutoModelForCausalLM.from_config(llama(), dtype=torch.bfloat16)
    m.eval()
    m.generate(torch.randint(0, 32000, (4, 200), device=DEV), max_new_tokens=100, min_new_tokens=100, do_sample=False)


def moe():
    from transformers import MixtralConfig

    hf_lm(
        MixtralConfig(
            vocab_size=8000,
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            num_local_experts=8,
        ),
        4,
        256,
        torch.bfloat16,
    )


def bert(b=16, t=256):
    from transformers import BertConfig, BertForMaskedLM

    m = BertForMaskedLM(BertConfig()).to(DEV)
    opt_steps(
        m,
        lambda: torch.randint(0, 30000, (b, t), device=DEV),
        lambda m, x: m(input_ids=x, attention_mask=torch.ones_like(x), labels=x).loss,
    )


def timm_(n, b, amp=None):
    import timm

    opt_steps(timm.create_model(n).to(DEV), images(b), xent, amp=amp)


def lora():
    from transformers import AutoModelForCausalLM
    from peft import LoraConfig, get_peft_model

    with torch.device(DEV):
        m = AutoModelForCausalLM.from_config(llama(), dtype=torch.bfloat16)
    m = get_peft_model(m, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    opt_steps(
        m,
        lambda: torch.randint(0, 32000, (4, 512), device=DEV),
        lambda m, x: m(input_ids=x, labels=x).loss,
        opt=torch.optim.AdamW([p for p in m.parameters() if p.requires_grad]),
    )


def detector(train):
    import torchvision

    m = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).to(DEV)
    x = [torch.rand(3, 480, 640, device=DEV) for _ in range(2)]
    if train:
        t = [
            {
                "boxes": torch.tensor([[10.0, 20.0, 200.0, 300.0], [50.0, 60.0, 400.0, 420.0]], device=DEV),
                "labels": torch.tensor([1, 2], device=DEV),
            }
            for _ in x
        ]
        o = torch.optim.SGD(m.parameters(), 1e-3)
        for _ in range(3):
            o.zero_grad()
            sum(m(x, t).values()).backward()
            o.step()
    else:
        m.eval()
        with torch.no_grad():
            m(x)


def compiled():
    m = torch.compile(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(DEV))
    opt_steps(m, lambda: R(2048, 1024), lambda m, x: m(x).pow(2).mean())


def scaler_step():
    encoder_m = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4).to(DEV)
    opt_steps(
        encoder_m,
        lambda: R(16, 256, 512),
        lambda m, x: m(x).float().pow(2).mean(),
        amp=torch.float16,
        scaler=torch.amp.GradScaler("cuda"),
    )


def ddp():
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", device_id=torch.device(DEV))
    m = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(DEV)
    m = nn.parallel.DistributedDataParallel(m, device_ids=[0])
    opt_steps(m, lambda: R(256, 1024), lambda m, x: m(x).pow(2).mean())
    dist.destroy_process_group()


def mlp(w=2048, d=6, b=1024):
    m = nn.Sequential(*[l for _ in range(d) for l in (nn.Linear(w, w), nn.ReLU())]).to(DEV)
    opt_steps(m, lambda: R(b, w), lambda m, x: m(x).pow(2).mean(), n=6)


BF, HF = torch.bfloat16, torch.float16
P = {
    "empty": lambda: R(16),
    "matmul": lambda: R(4096, 4096) @ R(4096, 4096),
    "mlp": mlp,
    "mlp_small": lambda: mlp(300, 3, 64),
    "gpt2_fp32_b8": lambda: hf_lm(gpt2cfg(), 8, 512),
    "gpt2_bf16_b16": lambda: hf_lm(gpt2cfg(), 16, 1024, torch.bfloat16),
    "gpt2_amp_b8": lambda: hf_lm(gpt2cfg(), 8, 1024, amp=BF),
    "gpt2_ckpt_b16": lambda: hf_lm(gpt2cfg(), 16, 1024, torch.bfloat16, ckpt=True),
    "gpt2_eager_attn": lambda: hf_lm(gpt2cfg(attn_implementation="eager"), 4, 1024),
    "llama_bf16": lambda: hf_lm(llama(), 8, 1024, torch.bfloat16),
    "llama_foreach_off": lambda: hf_lm(llama(), 4, 512, foreach=False),
    "llama_sgd": lambda: hf_lm(llama(), 4, 512, opt=lambda m: torch.optim.SGD(m.parameters(), 1e-3, momentum=0.9)),
    "llama_fused": lambda: hf_lm(llama(), 4, 512, opt=lambda m: torch.optim.AdamW(m.parameters(), fused=True)),
    "llama_generate": generate,
    "mixtral": moe,
    "bert": bert,
    "lora": lora,
    "vit_b16": lambda: timm_("vit_base_patch16_224", 32),
    "vit_b16_amp": lambda: timm_("vit_base_patch16_224", 64, BF),
    "convnext": lambda: timm_("convnext_tiny", 32),
    "effnet": lambda: timm_("efficientnet_b0", 64),
    "resnet50_b32": lambda: cnn("resnet50", 32),
    "resnet50_amp_cl": lambda: cnn("resnet50", 64, amp=HF, cl=True),
    "resnet50_bench": lambda: cnn("resnet50", 32, benchmark=True),
    "resnet18_b128": lambda: cnn("resnet18", 128, 160),
    "vgg16_b16": lambda: cnn("vgg16", 16),
    "densenet": lambda: cnn("densenet121", 16),
    "mobilenet": lambda: cnn("mobilenet_v3_large", 64),
    "unet": unet,
    "unet_amp": lambda: unet(16, amp=BF),
    "unet_bench": lambda: unet(benchmark=True),
    "lstm": lambda: rnn("LSTM"),
    "gru": lambda: rnn("GRU"),
    "encoder": encoder,
    "encoder_amp": lambda: encoder(BF, 64),
    "scaler": scaler_step,
    "compiled": compiled,
    "ddp_one": ddp,
    "frcnn_train": lambda: detector(True),
    "frcnn_eval": lambda: detector(False),
    "eigh_1024": lambda: linalg(lambda: torch.linalg.eigh(sym(1024, 1024))),
    "eigh_4096": lambda: linalg(lambda: torch.linalg.eigh(sym(4096, 4096))),
    "eigh_16384": lambda: linalg(lambda: torch.linalg.eigh(sym(16384, 16384))),
    "eigh_batch": lambda: linalg(lambda: torch.linalg.eigh(sym(30000, 16, 16))),
    "svd_1024": lambda: linalg(lambda: torch.linalg.svd(R(1024, 1024))),
    "svd_gesvd": lambda: linalg(lambda: torch.linalg.svd(R(2048, 1024), driver="gesvd")),
    "svd_gesvda": lambda: linalg(lambda: torch.linalg.svd(R(64, 512, 128), full_matrices=False, driver="gesvda")),
    "svd_batch": lambda: linalg(lambda: torch.linalg.svd(R(1000, 16, 16))),
    "qr_4096": lambda: linalg(lambda: torch.linalg.qr(R(4096, 4096))),
    "solve_4096": lambda: linalg(lambda: torch.linalg.solve(R(4096, 4096), R(4096, 64))),
    "chol_4096": lambda: linalg(
        lambda: torch.linalg.cholesky(R(4096, 4096) @ R(4096, 4096).mT * 0 + torch.eye(4096, device=DEV))
    ),
    "inv_4096": lambda: linalg(lambda: torch.linalg.inv(R(4096, 4096))),
    "eig_1024": lambda: linalg(lambda: torch.linalg.eig(R(1024, 1024))),
    "lstsq": lambda: linalg(lambda: torch.linalg.lstsq(R(4096, 512), R(4096, 64))),
    "fft_2e24": lambda: linalg(lambda: torch.fft.fft(R(1 << 24))),
    "fft_prime": lambda: linalg(lambda: torch.fft.fft(R(8, 1000003))),
    "fft2": lambda: linalg(lambda: torch.fft.rfft2(R(64, 1024, 1024))),
    "fft3": lambda: linalg(lambda: torch.fft.fftn(R(256, 256, 256))),
    "spgemm_600": lambda: sgemm_sparse(600, 1),
    "spgemm_5000": lambda: sgemm_sparse(5000, 0.02),
    "spgemm_20000": lambda: sgemm_sparse(20000, 0.002),
    "spmm": lambda: (torch.rand(8192, 8192, device=DEV) < 0.01).float().to_sparse_csr() @ R(8192, 256),
    "graph_1000": lambda: graph(1000),
    "graph_100000": lambda: graph(100000),
    "sort": lambda: R(1 << 26).sort(),
    "topk": lambda: R(64, 1 << 20).topk(50),
    "unique": lambda: torch.randint(0, 1000, (1 << 24,), device=DEV).unique(),
    "cumsum": lambda: R(1 << 26).cumsum(0),
    "multinomial": lambda: torch.multinomial(torch.rand(64, 32000, device=DEV), 1),
}
if name == "--list":
    print("\n".join(P))
    sys.exit()
import threading

total = torch.cuda.mem_get_info()[1]
f0 = free()
low = [f0]
stop = threading.Event()


def watch():
    while not stop.wait(0.001):
        low[0] = min(low[0], free())


if os.environ.get("WATCH"):
    threading.Thread(target=watch, daemon=True).start()
error = None
torch.manual_seed(0)
try:
    P[name]()
    torch.cuda.synchronize()
except torch.OutOfMemoryError as e:
    error = str(e)[:300]
stop.set()
s = torch.cuda.memory_stats()
f1 = free()
print(
    "RESULT "
    + json.dumps(
        {
            "name": name,
            "allocated": s["allocated_bytes.all.peak"],
            "reserved": s["reserved_bytes.all.peak"],
            "requested": s["requested_bytes.all.peak"],
            "allocated_end": s["allocated_bytes.all.current"],
            "reserved_end": s["reserved_bytes.all.current"],
            "used_start": total - f0,
            "used_end": total - f1,
            "used_peak": total - min(low[0], f1),
            "retries": s["num_alloc_retries"],
            "error": error,
        }
    ),
    flush=True,
)
