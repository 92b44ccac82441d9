"""Small models, each with something that a checkpoint can lose. All take (batch, 12) floats and give (batch, 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH, OUT = 12, 4


def tokens(x: torch.Tensor) -> torch.Tensor:
    """Numbers 0..15 made of the floats."""
    return (x * 7).long().remainder(16)


class Convolution(nn.Module):
    """BatchNorm's buffers change in the forward pass; channels-last weights have strides of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * WIDTH, OUT)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(torch.relu(self.norm(self.conv(x.view(-1, 1, 3, 4)))).flatten(1))


class Tied(nn.Module):
    """An embedding whose weight is the output's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(16, OUT)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.head(torch.tanh(self.embed(tokens(x)).mean(1))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(6, OUT)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.lstm(x.view(-1, 3, 4))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, OUT)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.layer(self.embed(tokens(x))).mean(1))


class Hidden(nn.Module):
    """Buffers that no state_dict holds, extra state, and a layer that takes part every second time only."""

    calls: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(WIDTH, OUT)
        self.side = nn.Linear(WIDTH, OUT)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.extra = 0

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.extra += int(x.shape[0])
        out = self.main(x - self.mean) * (1 + self.extra % 7)
        return out + self.side(x) if int(self.calls) % 2 else out


class Clamped(nn.Module):
    """Weights that the forward pass itself edits: an embedding with max_norm, and one scaled by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, max_norm=0.7)
        self.out = nn.Linear(8, OUT)

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.out.weight.data.mul_(0.999)
        return self.out(self.embed(tokens(x)).mean(1))


def mlp(*, drop: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 10), nn.Tanh(), nn.Dropout(drop), nn.Linear(10, OUT))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "dropout": lambda: mlp(drop=0.4),
    "bf16": lambda: mlp(drop=0.1).bfloat16(),
    "double": lambda: mlp().double(),
    "convolution": Convolution,
    "tied": Tied,
    "lstm": Recurrent,
    "transformer": Transformer,
    "hidden": Hidden,
    "clamped": Clamped,
}

NAMES = sorted(MODELS)  # of those that are drawn; the mutants' test adds one of its own
