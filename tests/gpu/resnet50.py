#!/usr/bin/env python3
"""A training step of ResNet-50 on cuda:0, and what torch says of its memory, in the lines that measure_models prints.

The same network, batch and optimizer as `ResNet-50` of tests/gpu/training_step.cc, written as a user of torch writes them.
Adam works one tensor at a time, as LibTorch's C++ Adam does; --foreach takes Python's own default, which needs more at its peak.
"""

import sys

import torch
from torch import nn


class Bottleneck(nn.Module):
    EXPANSION = 4

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        out = channels * self.EXPANSION
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._layer(64, 64, blocks=3, stride=1)
        self.layer2 = self._layer(256, 128, blocks=4, stride=2)
        self.layer3 = self._layer(512, 256, blocks=6, stride=2)
        self.layer4 = self._layer(1024, 512, blocks=3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2048, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _layer(channels_in, channels, blocks, stride):
        first = Bottleneck(channels_in, channels, stride)
        width = channels * Bottleneck.EXPANSION
        return nn.Sequential(first, *(Bottleneck(width, channels, 1) for _ in range(blocks - 1)))

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def report(phase):
    torch.cuda.synchronize()
    requested = [torch.cuda.memory_stats()[f"requested_bytes.all.{which}"] for which in ("current", "peak")]
    figures = [
        torch.cuda.memory_allocated(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_reserved(),
    ]
    print("figures", "ResNet-50", phase, *figures, *requested, sep="\t", flush=True)
    torch.cuda.reset_peak_memory_stats()


def main():
    foreach = "--foreach" in sys.argv[1:]
    device = torch.device("cuda:0")
    images = torch.randn(16, 3, 224, 224, device=device)
    classes = torch.zeros(16, dtype=torch.long, device=device)
    net = ResNet50().to(device)
    adam = torch.optim.Adam(net.parameters(), foreach=foreach)
    report("build")
    loss = nn.functional.cross_entropy(net(images), classes)
    report("forward")
    loss.backward()
    report("backward")
    adam.step()
    report("step")
    adam.zero_grad()
    loss = nn.functional.cross_entropy(net(images), classes)
    loss.backward()
    adam.step()
    report("again")


if __name__ == "__main__":
    main()
