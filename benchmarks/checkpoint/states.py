"""Models with their AdamW state: filled at once for tests of speed, really trained for tests of size."""

from __future__ import annotations

import math
import pydoc_data.topics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {
    "tiny": {"width": 64, "depth": 1, "heads": 2},
    "3M": {"width": 256, "depth": 4, "heads": 4},
    "10M": {"width": 384, "depth": 6, "heads": 6},
    "25M": {"width": 512, "depth": 8, "heads": 8},
    "125M": {"width": 768, "depth": 12, "heads": 12, "vocab": 50257, "context": 1024},
}
CACHE = Path("/tmp/gpuhop-bench-states")
STEPS, APART = 400, 50


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        shape = (rows, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        wide: torch.Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + wide


class Gpt(nn.Module):
    """GPT-2's shape, with tied weights. `forward(x, y)` is the loss."""

    def __init__(self, width: int, depth: int, heads: int, vocab: int = 256, context: int = 256) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            z = block(z)
        logits: torch.Tensor = self.head(self.norm(z))
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


class Training:
    """A model, its optimizer and one fixed batch."""

    def __init__(self, shape: str, dtype: torch.dtype = torch.float32, *, moments: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Gpt(**SHAPES[shape]).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randint(0, 256, (1, 64))
        if moments:
            self.fill()

    def fill(self) -> None:
        """Moments of a plausible size, at once."""
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def pass_(self) -> None:
        """Forward and backward."""
        self.model(self.x, self.x).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tracked(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def state(self) -> dict[str, Any]:
        """As everybody gives it to torch.save."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def flat(self) -> dict[str, torch.Tensor]:
        """Every tensor once, by name."""
        found = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer.{name}.{key}"] = value
        return found

    def size(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.flat().values())


# ---------------------------------------------------------------- real training


def trained(kind: str) -> tuple[Path, Path]:
    """Files of a state and of the one APART steps later. `kind`: fp32 (autocast) or bf16. Trains both at once when
    they are not in the cache: one to three minutes."""
    wanted = [CACHE / f"{kind}-{step}.pt" for step in (STEPS - APART, STEPS)]
    if not all(path.exists() for path in wanted):
        CACHE.mkdir(parents=True, exist_ok=True)
        run = [sys.executable, str(Path(__file__).with_name("run.py")), "--internal", "train"]
        children = [subprocess.Popen([*run, each]) for each in ("fp32", "bf16")]
        if any([child.wait() != 0 for child in children]):
            raise RuntimeError("the training that makes the real states failed")
    return wanted[0], wanted[1]


def train(kind: str) -> None:
    """Make both files of one kind."""
    torch.set_num_threads(1)
    training = Training("10M", torch.bfloat16 if kind == "bf16" else torch.float32, moments=False)
    generator = torch.Generator().manual_seed(2)
    text = corpus()
    for group in training.optimizer.param_groups:
        group.update(betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, STEPS + 1):
        warm = min(1.0, step / 40)
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * max(0, step - 40) / (STEPS - 40)))
        training.optimizer.param_groups[0]["lr"] = 6e-4 * min(warm, decay)
        x, y = batch(text, generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "fp32"):
            loss = training.model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.update()
        if step in (STEPS - APART, STEPS):
            temp = CACHE / f".{kind}-{step}.tmp"
            torch.save(training.state(), temp)
            temp.rename(CACHE / f"{kind}-{step}.pt")
            print(f"  trained {kind} to step {step}, loss {loss.item():.2f}", file=sys.stderr, flush=True)


def corpus() -> torch.Tensor:
    """Text that every Python has: its manual and its standard library."""
    parts = ["\n".join(pydoc_data.topics.topics.values()).encode()]
    parts += [path.read_bytes() for path in _sources()]
    return torch.frombuffer(bytearray(b"\n".join(parts)), dtype=torch.uint8)


def _sources() -> Iterator[Path]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from sorted(path for pattern in ("*.py", "[a-rt-z]*/*.py") for path in folder.glob(pattern))


def batch(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - 129, (4,), generator=generator).tolist()
    rows = torch.stack([text[start : start + 129] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]
