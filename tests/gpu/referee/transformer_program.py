#!/usr/bin/env python3
"""transformer_program.py VOCABULARY WIDTH LAYERS HEADS INNER LENGTH CLASSES SAMPLES BATCH: one of GPUMemNet's Transformers
on cuda:0, as its program trains them. It ends after three epochs; the program that was measured trained for 60 s.
"""

import sys

import torch
from torch import nn

DEVICE = "cuda:0"
EPOCHS = 3


class Classifier(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, inner, length, classes):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=inner, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.tokens(x) + self.positions
        x = self.encoder(x)
        x = x.mean(dim=1)
        output = self.head(x)
        return output


def batches(vocabulary, length, classes, samples, batch):
    for begin in range(0, samples, batch):
        size = min(batch, samples - begin)
        yield torch.randint(0, vocabulary, (size, length)), torch.randint(0, classes, (size,))


def main():
    vocabulary, width, layers, heads, inner, length, classes, samples, batch = map(int, sys.argv[1:])
    model = Classifier(vocabulary, width, layers, heads, inner, length, classes).to(DEVICE)
    # The program tries a batch, and its summary another; the first one stays alive.
    example = torch.randint(0, vocabulary, (batch, length)).to(DEVICE)
    for _ in range(2):
        model(example)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model.train()
    for _ in range(EPOCHS):
        right = total = total_loss = 0
        for inputs, labels in batches(vocabulary, length, classes, samples, batch):
            inputs, labels = inputs.to(DEVICE), labels.to(DEVICE)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            _, predicted = torch.max(outputs, 1)
            right += (predicted == labels).sum().item()
            total += labels.size(0)


if __name__ == "__main__":
    main()
