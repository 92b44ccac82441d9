"""A small byte-level transformer on real English text: the reference pages that Python itself ships.

Only the lines marked (gpuhop) are there for gpuhop; without it the script runs as it is.
"""

import random
import sys
import time
from pydoc_data.topics import topics

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import gpuhop_worker  # (gpuhop)
from gpuhop_worker.data import KeyedBatches

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 12

random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)

text = torch.tensor(list("\n".join(topics[key] for key in sorted(topics)).encode("ascii", "replace")))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (
            part.view(x.shape[0], CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.byte, self.place = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False)
        self.head.weight = self.byte.weight  # tied
        nn.init.normal_(self.byte.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.byte(x) + self.place(torch.arange(CONTEXT)))))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batches = KeyedBatches((len(text) - 1) // CONTEXT, BATCH, seed=0)


def train(step):
    starts = [CONTEXT * index for index in batches.batch(step)]
    x = torch.stack([text[s : s + CONTEXT] for s in starts])
    y = torch.stack([text[s + 1 : s + CONTEXT + 1] for s in starts])
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.item()


if "--measure" in sys.argv:  # how fast is this machine? prints milliseconds per step
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    train(0)
    began = time.perf_counter()
    for step in range(1, 41):
        train(step)
    print((time.perf_counter() - began) / 40 * 1000)
    sys.exit()

STEPS = int(sys.argv[1])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

session = gpuhop_worker.session()  # (gpuhop)
session.track(model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)  # (gpuhop)
for step in session.steps(STEPS):  # (gpuhop) without it: range(STEPS)
    loss = train(step)
    session.log(loss=loss)  # (gpuhop)
    if step % 100 == 0:
        print(f"step {step} loss {loss:.3f}")
