#!/usr/bin/env python3
"""peer_estimates.py: asks estimators from PyPI about networks; runs in their virtual environment.

Reads lines of JSON, {"row": …, "words": […]}, the words of the row's program, and prints for each
`RESULT {"row": "peers/…", "estimates": {"torchinfo": bytes, …}}`; null where an estimator cannot tell.
"""

import contextlib
import io
import json
import math
import pathlib
import re
import sys

import torch
from torch import nn

import transformer_program

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
    "identity": nn.Identity,
}
MAX_FILTERS = 2048
DENSE_GROWTH, DENSE_LAYERS = 32, 4


class Style:
    def __init__(self, activation, rate, batch_norm):
        self.activation, self.rate, self.batch_norm = activation, float(rate), batch_norm == "1"

    def block(self, layer, norm):
        modules = [layer] + ([norm] if self.batch_norm else []) + [ACTIVATIONS[self.activation]()]
        return nn.Sequential(*modules, *([nn.Dropout(self.rate)] if self.rate else []))


def mlp(words):
    width, output, depth = map(int, words[1:4])
    architecture, style = words[4], Style(*words[6:9])
    step = (width - output) // depth
    modules = []
    for _ in range(depth + (architecture == "bottleneck")):
        to = {"uniform": width, "gradual": max(width - step, output)}.get(architecture, max(width // 2, output))
        modules.append(style.block(nn.Linear(width, to), nn.BatchNorm1d(to)))
        width = to
    modules.append(nn.Linear(width, output))
    if output > 1:
        modules.append(nn.Softmax(dim=1))
    return nn.Sequential(*modules), (int(words[1]),), int(words[5]), torch.float32


class Residual(nn.Module):
    def __init__(self, style, channels, to, stride):
        super().__init__()
        self.first = convolve(style, channels, to, stride=stride)
        self.second = convolve(style, to, to)
        self.shortcut = nn.Identity()
        if channels != to or stride != 1:
            norm = nn.BatchNorm2d(to) if style.batch_norm else nn.Identity()
            self.shortcut = nn.Sequential(nn.Conv2d(channels, to, 1, stride), norm)

    def forward(self, x):
        return self.second(self.first(x)) + self.shortcut(x)


class Dense(nn.Module):
    def __init__(self, style, channels):
        super().__init__()
        self.layers = nn.ModuleList(
            convolve(style, channels + i * DENSE_GROWTH, DENSE_GROWTH) for i in range(DENSE_LAYERS)
        )

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Transition(nn.Module):
    def __init__(self, channels, batch_norm):
        super().__init__()
        self.convolution = convolve(Style("relu", 0, "1" if batch_norm else "0"), channels, channels // 2, size=1, padding=0)

    def forward(self, x):
        x = self.convolution(x)
        return nn.functional.avg_pool2d(x, 2) if min(x.shape[2:]) > 1 else x


def convolve(style, channels, to, size=3, stride=1, padding=1):
    return style.block(nn.Conv2d(channels, to, size, stride, padding), nn.BatchNorm2d(to))


def filters_of(architecture, filters, depth):
    def growth(power):
        return (MAX_FILTERS / filters) ** (1 / power)

    def of(i):
        if architecture == "uniform":
            return filters
        if architecture == "bottleneck":
            return 2 * filters if i == 0 else int(filters * (2 if depth <= 2 else growth(depth - 1)) ** (i - 1))
        if architecture == "hourglass":
            if i < depth // 2:
                return int(filters * growth(depth // 2) ** i)
            return max(int(filters * growth(depth - depth // 2) ** (depth - i - 1)), filters)
        return int(filters * growth(2 * depth if architecture == "gradual" else depth) ** i)

    return [min(of(i), MAX_FILTERS) for i in range(depth)]


def dense_blocks(style, channels, depth, size, coin):
    every = max(1, math.ceil(depth / max(1, int(math.log2(size // 7))))) if coin else 5
    modules = []
    for i in range(depth // 4):
        modules.append(Dense(style, channels))
        channels += DENSE_LAYERS * DENSE_GROWTH
        if i % every == 0 and i != depth // 4 - 1:
            modules.append(Transition(channels, style.batch_norm))
            channels //= 2
    return modules, channels


def residual_blocks(style, channels, depth, filters, size):
    modules = []
    for i in range(depth // 2):
        to = min(int(filters * ((MAX_FILTERS / filters) ** (1 / depth)) ** i), MAX_FILTERS)
        stride = 2 if i % 2 == 1 and size > 7 else 1
        modules.append(Residual(style, channels, to, stride))
        channels, size = to, size // stride
        if size <= 7:
            break
    return modules, channels


def cnn_of(words, coin):
    channels, classes, depth = map(int, words[1:4])
    architecture, filters, _, size = words[4], *map(int, words[5:8])
    style = Style(*words[8:11])
    if architecture == "dense":
        modules, channels = dense_blocks(style, channels, depth, size, coin)
    elif architecture == "residual":
        modules, channels = residual_blocks(style, channels, depth, filters, size)
    else:
        modules = []
        for to in filters_of(architecture, filters, depth):
            modules.append(convolve(style, channels, to))
            channels = to
    head = [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1), nn.Linear(channels, classes), nn.Softmax(dim=1)]
    return nn.Sequential(*modules, *head)


def cnn(words):
    channels, batch, size = int(words[1]), int(words[6]), int(words[7])
    for coin in (True, False):
        model = cnn_of(words, coin)
        # The data set does not count PReLU's slopes, of one element each.
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.numel() > 1)
        if words[11] in ("0", str(count)):
            return model, (channels, size, size), batch, torch.float32
    raise ValueError("the network has another number of parameters")


def transformer(words):
    vocabulary, width, layers, heads, inner, length, classes, _, batch = map(int, words[1:])
    model = transformer_program.Classifier(vocabulary, width, layers, heads, inner, length, classes)
    return model, (length,), batch, torch.long


NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer_program.py": transformer}


def megabytes(text):
    return float(re.search(r"Estimated Total Size \(MB\): ([\d.,]+)", text).group(1).replace(",", ""))


def torchinfo(network):
    import torchinfo as package

    model, sizes, batch, dtype = network()
    said = str(package.summary(model.to("cuda"), input_size=(batch, *sizes), dtypes=[dtype], device="cuda", verbose=0))
    return int(megabytes(said) * 1e6)


def torchsummary(network):
    import torchsummary as package

    model, sizes, batch, dtype = network()
    if dtype != torch.float32:
        return None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        package.summary(model.to("cuda"), sizes, batch_size=batch, device="cuda")
    return int(megabytes(said.getvalue()) * 2**20)


def kitsune(network):
    from kitsune.predict import predict_memory

    model, sizes, batch, dtype = network()
    if dtype != torch.float32:
        return None
    return predict_memory(model, input_shape=sizes, batch_size=batch, optimizer="adam").total_bytes


def mem_tracker(network):
    """torch's own, of two steps with Adam on tensors without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(), torch.device("cuda"):
        model, sizes, batch, dtype = network()
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        x = torch.zeros(batch, *sizes, dtype=dtype)
        labels = torch.zeros(batch, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, x, labels)
        with tracker:
            for _ in range(2):
                loss = nn.functional.cross_entropy(model(x), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
        peaks = tracker.get_tracker_snapshot("peak")
    return int(max(device["Total"] for device in peaks.values()))


PEERS = {
    "torchinfo 1.8.0": torchinfo,
    "torchsummary 1.5.1": torchsummary,
    "torch-kitsune 0.7.0": kitsune,
    "torch's MemTracker": mem_tracker,
}


def estimates_of(words):
    kind = pathlib.Path(words[0]).name
    found = {}
    for name, ask in PEERS.items():
        try:
            found[name] = ask(lambda: NETWORKS[kind](words))
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f"{name}, {' '.join(words)}: {type(error).__name__}: {error}", file=sys.stderr)
            found[name] = None
    return found


def main():
    for line in sys.stdin:
        question = json.loads(line)
        result = {"row": f"peers/{question['row']}", "estimates": estimates_of(question["words"])}
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
