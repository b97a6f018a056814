#!/usr/bin/env python3
"""liger_programs.py CONFIG…: the baselines of Liger-Kernel's benchmarks, on cuda:0.

CONFIG is JSON: a row's configuration, its kernel, its mode and the value that the benchmark varies. As the benchmark does,
it makes its tensors and modules (Liger's, too, where they are alive meanwhile), then resets the peak, runs and notes the peak of
allocated bytes several times. Prints the median of each row as `RESULT {"peak": …}`.
"""

import gc
import json
import statistics
import sys

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda:0"
RUNS = 3


def ones(*sizes):
    return nn.Parameter(torch.ones(*sizes, device=DEVICE))


def forward_and_backward(forward):
    y = forward()
    y.backward(torch.randn_like(y), retain_graph=True)


def backward_only(forward, gradient_like=None):
    gradient = torch.randn_like(gradient_like) if gradient_like is not None else None
    y = forward()
    if gradient is None:
        gradient = torch.randn_like(y)
    return lambda: y.backward(gradient, retain_graph=True)


def by_mode(mode, forward, gradient_like=None):
    if mode == "forward":
        return forward
    if mode == "backward":
        return backward_only(forward, gradient_like)
    return lambda: forward_and_backward(forward)


def scalar_loss(forward, **options):
    def full():
        y = forward()
        y.backward(**options)

    return full


def norm(layers, row):
    """Layers of a row's weights: the baseline comes last. Liger's stand beside it."""
    x = torch.randn((row["M"], row["width"]), dtype=row["dtype"], device=DEVICE)
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def full():
        y = layers[-1](x)
        y.backward(dy, retain_graph=True)

    return full


class LlamaRmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = ones(width)
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class LlamaMlp(nn.Module):
    def __init__(self, width, inner, activation):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False, device=DEVICE)
        self.up = nn.Linear(width, inner, bias=False, device=DEVICE)
        self.down = nn.Linear(inner, width, bias=False, device=DEVICE)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


def mlp(row):
    activations = {"gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}
    batch = row.get("bsz", row.get("B"))
    x = torch.randn(batch, row["T"], row["hidden_size"], device=DEVICE, dtype=row["dtype"], requires_grad=True)
    layer = LlamaMlp(row["hidden_size"], row["intermediate_size"], activations[row["hidden_act"]])
    layer = layer.to(row["dtype"])
    return by_mode(row["mode"], lambda: layer(x), x)


def cross_entropy(row):
    x = torch.randn(row["B"] * row["T"], row["V"], requires_grad=True, device=DEVICE)
    target = torch.randint(row["V"], (row["B"] * row["T"], 1), device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss()
    return scalar_loss(lambda: loss(x, target))


def fused_linear_cross_entropy(row):
    heads = [nn.Linear(row["H"], row["V"], bias=False, dtype=row["dtype"], device=DEVICE) for _ in range(2)]
    x = torch.randn(row["BT"], row["H"], requires_grad=True, dtype=row["dtype"], device=DEVICE)
    target = torch.randint(row["V"], (row["BT"], 1), dtype=torch.long, device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss(ignore_index=-100, reduction="mean")

    def forward():
        logits = heads[0](x)
        return loss(logits, target)

    return scalar_loss(forward)


def layer_norm(row):
    row["width"] = row["N"]
    return norm([nn.LayerNorm(row["N"], eps=row["eps"]).to(DEVICE) for _ in range(2)], row)


def rms_norm(row):
    row["width"] = row["H"]
    return norm([LlamaRmsNorm(row["H"], row["eps"]) for _ in range(2)], row)


def group_norm(row):
    channels = row["C"]
    layers = [nn.GroupNorm(channels // row["channels_per_group"], channels, eps=row["eps"]).to(DEVICE) for _ in range(2)]
    x = torch.randn((row["M"], channels, row["H"]), dtype=row["dtype"], device=DEVICE)
    if row["mode"] == "full":
        dy = torch.randn_like(x)
    x.requires_grad_(True)

    def full():
        y = layers[1](x)
        y.backward(dy, retain_graph=True)

    return full if row["mode"] == "full" else by_mode(row["mode"], lambda: layers[1](x))


def fused_add_rms_norm(row):
    width, eps = row["H"], row["eps"]
    weights = [ones(width) for _ in range(4)]  # of three modules, one of which has two
    x, residual = (torch.randn((row["M"], width), dtype=row["dtype"], device=DEVICE) for _ in range(2))
    dy, ds = torch.randn_like(x), torch.randn_like(residual)
    x.requires_grad_(True)
    residual.requires_grad_(True)

    def forward(x, residual):
        dtype = x.dtype
        x = x.to(torch.float32)
        residual = residual.to(torch.float32)
        x = x + residual
        residual = x
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + eps)
        return weights[0] * x.to(dtype), residual.to(dtype)

    def full():
        y, s = forward(x, residual)
        torch.autograd.backward((y, s), (dy, ds))

    return full


def megatron_rms_norm(row):
    layer = nn.RMSNorm(row["H"], eps=1e-6).to(DEVICE).to(torch.bfloat16)
    x = torch.randn(row["S"], row["B"], row["H"], device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def full():
        y = layer(x)
        y.sum().backward()

    return full


def megatron_swiglu(row):
    sizes = (row["S"], row["B"], 2 * row["ffn_local"])
    x = torch.randn(*sizes, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def swiglu(y):
        gate, up = torch.chunk(y, 2, -1)
        return F.silu(gate) * up

    def full():
        x.grad = None
        y = swiglu(x)
        y.sum().backward()

    return full


def rotate_half(x):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((-second, first), dim=-1)


def queries_and_keys(row):
    width = row["H"] if "H" in row else row["hidden_size"]
    length = row["T"] if "T" in row else row["seq_len"]
    per_head = width // row["num_q_heads"]
    heads = (row["num_q_heads"], row["num_kv_heads"])
    both = [
        torch.randn((1, length, count, per_head), device=DEVICE, requires_grad=True, dtype=row["dtype"]) for count in heads
    ]
    positions = torch.arange(length, device=DEVICE, dtype=torch.long).unsqueeze(0)
    frequencies = 1 / 10000 ** (torch.arange(0, per_head, 2, device=DEVICE).float() / per_head)
    return both, positions, frequencies


def angles_of(positions, frequencies):
    return (frequencies[None, :, None].float().expand(1, -1, 1) @ positions[:, None, :].float()).transpose(1, 2)


def gradients_of_rotation(rotate, q, k, dq, dk):
    def full():
        rotated = rotate(q, k)
        torch.autograd.grad(rotated, (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    return full


def rope(row):
    (q, k), positions, frequencies = queries_and_keys(row)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    dq, dk = torch.randn_like(q), torch.randn_like(k)

    def tables():
        angles = angles_of(positions, frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(row["dtype"]), angles.sin().to(row["dtype"])

    cosine, sine = tables()

    def rotate(q, k):
        c, s = cosine.unsqueeze(1), sine.unsqueeze(1)
        rotated_q = (q * c) + (rotate_half(q) * s)
        rotated_k = (k * c) + (rotate_half(k) * s)
        return rotated_q, rotated_k

    full = gradients_of_rotation(rotate, q, k, dq, dk)
    full.keep = frequencies, positions  # alive in the benchmark, too
    return full


def llama4_rope(row):
    (q, k), positions, frequencies = queries_and_keys(row)
    dq, dk = torch.randn_like(q), torch.randn_like(k)

    def table():
        angles = angles_of(positions, frequencies)
        return torch.polar(torch.ones_like(angles), angles) * 1.0

    turns = table()

    def rotate(q, k):
        complex_q = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        complex_k = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
        rotated_q = torch.view_as_real(complex_q * turns[:, :, None, :]).flatten(3)
        rotated_k = torch.view_as_real(complex_k * turns[:, :, None, :]).flatten(3)
        return rotated_q.type_as(q), rotated_k.type_as(k)

    full = gradients_of_rotation(rotate, q, k, dq, dk)
    full.keep = frequencies, positions
    return full


def distributions(row, of_input, of_target):
    rows = row["BT"] if "BT" in row else row["B"] * row["T"]
    width = row["V"] if "V" in row else row["vocab_size"]
    x = of_input(torch.randn(rows, width, requires_grad=True, device=DEVICE), dim=-1)
    target = of_target(torch.randn(rows, width, device=DEVICE), dim=-1)
    return x, target


def kl_div(row):
    x, target = distributions(row, torch.log_softmax, torch.softmax)
    loss = nn.KLDivLoss(reduction="batchmean")
    return scalar_loss(lambda: loss(x, target), retain_graph=True)


def tvd(row):
    x, target = distributions(row, torch.softmax, torch.softmax)

    def forward(p, q):
        distance = torch.abs(p - q) / 2.0
        return torch.sum(distance) / p.size(0)

    return scalar_loss(lambda: forward(x, target), retain_graph=True)


def jensen_shannon(log_q, log_p):
    divergence = nn.KLDivLoss(reduction="batchmean", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    mean = torch.lerp(torch.exp(log_p), torch.exp(log_q), 0.5)
    return 0.5 * divergence(torch.log(mean), log_p) + (1 - 0.5) * divergence(torch.log(mean), log_q)


def jensen_shannon_by_row(log_q, log_p):
    divergence = nn.KLDivLoss(reduction="none", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    mean = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    loss = 0.5 * divergence(torch.log(mean), log_p).sum(dim=-1) + (1 - 0.5) * divergence(torch.log(mean), log_q).sum(dim=-1)
    loss = (loss / log_q.shape[0]).sum()
    return loss


def jsd(row):
    x, target = distributions(row, torch.log_softmax, torch.log_softmax)
    if "BT" in row:  # since 0.8
        return by_mode("full", lambda: jensen_shannon_by_row(x, target))
    return scalar_loss(lambda: jensen_shannon(x, target), retain_graph=True)


def fused_linear_jsd(row):
    dtype = row["dtype"]
    student, teacher = (nn.Linear(row["H"], row["V"], bias=False, dtype=dtype, device=DEVICE) for _ in range(2))
    x = torch.rand(row["BT"], row["H"], requires_grad=True, dtype=dtype, device=DEVICE)
    teachers_x = torch.rand(row["BT"], row["H"], dtype=dtype, device=DEVICE)

    def forward(x, teachers_x):
        logits = student(x)
        teachers_logits = teacher(teachers_x)
        students_log = torch.log_softmax(logits / 1.0, dim=-1)
        teachers_log = torch.log_softmax(teachers_logits / 1.0, dim=-1)
        return jensen_shannon(students_log, teachers_log).to(dtype)

    return scalar_loss(lambda: forward(x, teachers_x))


def sparsemax_of(x):
    width = x.size(-1)
    ordered, _ = torch.sort(x, dim=-1, descending=True)
    sums = torch.cumsum(ordered, dim=-1)
    numbers = torch.arange(1, width + 1, device=x.device, dtype=x.dtype).view(1, width)
    bound = 1 + numbers * ordered
    support = bound > sums
    count = support.sum(dim=-1, keepdim=True).clamp(min=1)
    support_sum = (ordered * support).sum(dim=-1, keepdim=True)
    threshold = (support_sum - 1) / count
    return torch.clamp(x - threshold, min=0)


def with_gradient(forward, x):
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def full():
        y = forward(x)
        y.backward(dy, retain_graph=True)

    return full


def sparsemax(row):
    return with_gradient(sparsemax_of, torch.randn((row["B"] * row["T"], row["V"]), dtype=row["dtype"], device=DEVICE))


def elementwise(row, forward):
    # The benchmark takes the row's N for the whole shape.
    x = torch.randn(row["N"], device=DEVICE, dtype=row["dtype"], requires_grad=True)

    def full():
        y = forward(x)
        y.backward(torch.ones_like(y), retain_graph=True)

    return full


def softmax(row):
    return elementwise(row, nn.Softmax(dim=-1))


def relu_squared(row):
    def forward(x):
        positive = F.relu(x)
        return torch.square(positive)

    return elementwise(row, forward)


def convolved_attention(row, probabilities, compute_dtype):
    """Attention's scores, masked, made probabilities and convolved; Liger's module stands beside the baseline."""
    sizes = (row["C_out"], row["C_in"] // row["groups"], row["K"], row["K"])
    layers = [
        (ones(*sizes).to(row["dtype"]).detach(), ones(row["C_out"]).to(row["dtype"]).detach()) for _ in range(2)
    ]
    weight, bias = (tensor.requires_grad_(True) for tensor in layers[1])
    length = row["L"]

    def forward(scores):
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=DEVICE)).view(1, 1, length, length)
        infinity = torch.tensor(-1e9, device=DEVICE, dtype=compute_dtype)
        zero = torch.tensor(0.0, device=DEVICE, dtype=compute_dtype)
        computed = scores.to(compute_dtype)
        masked = computed.masked_fill(~mask, infinity)
        weights = probabilities(masked)
        own_weight, own_bias = weight.to(compute_dtype), bias.to(compute_dtype)
        out = F.conv2d(weights, own_weight, own_bias, stride=1, padding=row["K"] // 2, groups=row["groups"])
        return out.masked_fill(~mask, zero).to(scores.dtype)

    full = with_gradient(forward, torch.randn((row["B"], row["C_in"], length, length), dtype=row["dtype"], device=DEVICE))
    full.keep = layers
    return full


def multi_token_attention(row):
    return convolved_attention(row, lambda scores: F.softmax(scores, dim=-1), row["dtype"])


def sparse_multi_token_attention(row):
    def probabilities(z):
        ordered, _ = torch.sort(z, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        numbers = torch.arange(1, row["L"] + 1, device=z.device, dtype=z.dtype).view(1, 1, 1, row["L"])
        positive = ordered > -1e8
        condition = (1 + numbers * ordered > sums) & positive
        count = torch.sum(condition, dim=-1, keepdim=True)
        safe = torch.max(count, torch.ones_like(count))
        picked = torch.gather(sums, dim=-1, index=safe.long() - 1)
        threshold = (picked - 1) / safe.to(z.dtype)
        threshold = torch.where(count == 0, torch.full_like(threshold, float("inf")), threshold)
        return torch.clamp(z - threshold, min=0)

    return convolved_attention(row, probabilities, torch.float32)


def fused_neighborhood_attention(row):
    width, heads, length, batch = row["hidden_size"], row["num_heads"], row["seq_len"], row["batch_size"]
    layers = [[nn.Linear(width, width, device=DEVICE) for _ in range(4)] for _ in range(2)]
    query, key, value, out = layers[1]
    per_head = width // heads

    def neighbours():
        mask = torch.zeros(length, length, device=DEVICE, dtype=torch.bool)
        half, step = row["kernel_size"] // 2, row["dilation"]
        for offset in range(-half * step, half * step + 1, step):
            mask.diagonal(offset).fill_(True)
        return mask

    def forward(x):
        q, k, v = query(x), key(x), value(x)
        q = q.view(batch, length, heads, per_head).transpose(1, 2)
        k = k.view(batch, length, heads, per_head).transpose(1, 2)
        v = v.view(batch, length, heads, per_head).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) * per_head**-0.5
        mask = neighbours()
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        context = torch.matmul(weights, v)
        context = context.transpose(1, 2).contiguous().view(batch, length, width)
        output = out(context)
        return output

    full = with_gradient(forward, torch.randn((batch, length, width), dtype=row["dtype"], device=DEVICE))
    full.keep = layers
    return full


def fused_moe(row):
    tokens, experts, top, dtype = row["T"], row["E"], row["K"], row["dtype"]
    width, inner = row["H"], row["intermediate_dim"]

    def leaf(*sizes):
        return torch.randn(*sizes, dtype=dtype, device=DEVICE, requires_grad=True)

    x = leaf(tokens, width)
    gate_and_up = leaf(experts, 2 * inner, width) * 0.02
    down = leaf(experts, width, inner) * 0.02
    logits = torch.randn(tokens, experts, device=DEVICE)
    index = torch.topk(logits, top, dim=-1).indices.to(torch.int32)
    weights = torch.softmax(torch.gather(logits, 1, index.long()), dim=-1).to(dtype).requires_grad_(True)

    def forward(x):
        final = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(index.long(), num_classes=experts)
            mask = mask.permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for one in hit:
            expert = one[0]
            place, token = torch.where(mask[expert])
            current = x[token]
            gate, up = F.linear(current, gate_and_up[expert]).chunk(2, dim=-1)
            current = F.silu(gate) * up
            current = F.linear(current, down[expert])
            current = current * weights[token, place, None]
            final.index_add_(0, token, current.to(final.dtype))
        return final

    return by_mode(row["mode"], lambda: forward(x))


def weights_of_heads(row, count):
    options = {"bias": False, "dtype": row["dtype"], "device": DEVICE}
    return [nn.Linear(row["H"], row["V"], **options).weight for _ in range(count)]


def alignment(row):
    """ORPO, CPO and SimPO: half of a batch was chosen, the other half rejected."""
    weights = weights_of_heads(row, 2)
    x = torch.randn(row["B"], row["T"], row["H"], requires_grad=True, dtype=row["dtype"], device=DEVICE)
    target = torch.randint(row["V"], (row["B"], row["T"]), dtype=torch.long, device=DEVICE)
    cross_entropy_loss = nn.CrossEntropyLoss(ignore_index=-100)

    def log_probabilities(logits):
        mask = target != -100
        labels = torch.where(target == -100, 0, target)
        of_tokens = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (of_tokens * mask).sum(-1) / mask.sum(-1)

    def forward(x):
        chosen = x.shape[0] // 2
        outputs = x @ weights[0].t()
        logits = outputs.float()
        likelihood = cross_entropy_loss(logits[:chosen].view(-1, row["V"]), target[:chosen].view(-1))
        each = log_probabilities(logits)
        odds = (each[:chosen] - each[chosen:]) - (
            torch.log1p(-torch.exp(each[:chosen])) - torch.log1p(-torch.exp(each[chosen:]))
        )
        return likelihood - (0.1 * F.logsigmoid(odds)).mean()

    return scalar_loss(lambda: forward(x))


def grpo(row):
    weights = weights_of_heads(row, 4)

    def states(**options):
        return torch.randn(row["B"], row["T"], row["H"], dtype=row["dtype"], device=DEVICE, **options)

    x = states(requires_grad=True)
    chosen = torch.randint(0, row["V"], (row["B"], row["T"]), dtype=torch.long, device=DEVICE)
    mask = torch.ones(row["B"], row["T"], device=DEVICE)
    advantages = torch.randn(row["B"], dtype=row["dtype"], device=DEVICE)
    reference_x = states()

    def of_tokens(log_probabilities):
        return log_probabilities.gather(dim=-1, index=chosen.unsqueeze(-1)).squeeze(-1)

    def forward(x):
        logits = x @ weights[0].t()
        log_probabilities = F.log_softmax(logits.float(), dim=-1)
        policy = of_tokens(log_probabilities)
        with torch.no_grad():
            reference_logits = reference_x @ weights[1].t()
            reference_log_probabilities = F.log_softmax(reference_logits.float(), dim=-1)
            reference = of_tokens(reference_log_probabilities)
        ratio = policy - policy.detach()
        if row["importance_sampling_level"] == "sequence":
            ratio = ((ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
        ratio = torch.exp(ratio)
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = -torch.min(ratio * advantages.unsqueeze(1), clipped * advantages.unsqueeze(1))
        divergence = torch.exp(reference - policy) - (reference - policy) - 1.0
        loss = loss + 0.1 * divergence
        return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)

    return scalar_loss(lambda: forward(x))


PROGRAMS = {
    "cross_entropy": cross_entropy,
    "fused_add_rms_norm": fused_add_rms_norm,
    "fused_linear_cpo_loss": alignment,
    "fused_linear_cross_entropy": fused_linear_cross_entropy,
    "fused_linear_grpo_loss_sequence": grpo,
    "fused_linear_grpo_loss_token": grpo,
    "fused_linear_jsd": fused_linear_jsd,
    "fused_linear_orpo_loss": alignment,
    "fused_linear_simpo_loss": alignment,
    "fused_moe": fused_moe,
    "fused_neighborhood_attention": fused_neighborhood_attention,
    "geglu": mlp,
    "group_norm": group_norm,
    "jsd": jsd,
    "kl_div": kl_div,
    "layer_norm": layer_norm,
    "llama4_rope": llama4_rope,
    "megatron_rms_norm": megatron_rms_norm,
    "megatron_swiglu": megatron_swiglu,
    "multi_token_attention": multi_token_attention,
    "relu_squared": relu_squared,
    "rms_norm": rms_norm,
    "rope": rope,
    "softmax": softmax,
    "sparse_multi_token_attention": sparse_multi_token_attention,
    "sparsemax": sparsemax,
    "swiglu": mlp,
    "tiled_geglu": mlp,
    "tiled_swiglu": mlp,
    "tvd": tvd,
}


def row_of(config):
    row = json.loads(config)
    for key, value in row.items():
        if isinstance(value, float) and value.is_integer():
            row[key] = int(value)
    if "dtype" in row:
        row["dtype"] = getattr(torch, row["dtype"].removeprefix("torch."))
    return row


def peak_of(row):
    measured = PROGRAMS[row["kernel"]](row)
    peaks = []
    for _ in range(RUNS):
        torch.cuda.reset_peak_memory_stats()
        measured()
        peaks.append(torch.cuda.max_memory_allocated())
    return int(statistics.median(peaks))


def main():
    for config in sys.argv[1:]:
        row = row_of(config)
        try:
            result = {"peak": peak_of(row)}
        except Exception as error:  # pylint: disable=broad-exception-caught
            result = {"failed": f"{type(error).__name__}: {error}"}
        # Each row begins as in a process of its own.
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # pylint: disable=protected-access
        torch.cuda.empty_cache()
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
