"""Data order as a pure function of (seed, epoch): the position is one integer, so skipping is free and exact."""

from __future__ import annotations

import random
from typing import Any, Dict, List


class KeyedBatches:
    """Batches of indices 0..size-1, shuffled anew each epoch by f(seed, epoch). Stateless but for a cache.

    `batch(step)` gives the same list on every machine and Python (random.Random with a text seed and shuffle()
    keep their sequence over versions, as the `random` module's documentation promises for random() and our own
    Fisher-Yates below needs no more than that). The last, short batch of an epoch is dropped.
    """

    def __init__(self, size: int, batch_size: int, seed: int = 0) -> None:
        if batch_size < 1 or size < batch_size:
            raise ValueError(f"need at least one whole batch: {size} items, batches of {batch_size}")
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = -1
        self._order: List[int] = []

    @property
    def per_epoch(self) -> int:
        return self.size // self.batch_size

    def batch(self, step: int) -> List[int]:
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = order(self.size, self.seed, epoch)
            self._epoch = epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]

    def state_dict(self) -> Dict[str, Any]:
        """Nothing moves, but a changed size, batch or seed would silently change the order: so they are saved."""
        return {"size": self.size, "batch_size": self.batch_size, "seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if state != self.state_dict():
            raise ValueError(f"the data order was made with {state!r}, the script asks for {self.state_dict()!r}")


def order(size: int, seed: int, epoch: int) -> List[int]:
    """A permutation of 0..size-1 by Fisher-Yates over random.Random('<seed>/<epoch>').random()."""
    draw = random.Random(f"{seed}/{epoch}")  # noqa: S311  not for secrets
    items = list(range(size))
    for i in range(size - 1, 0, -1):
        j = int(draw.random() * (i + 1))
        items[i], items[j] = items[j], items[i]
    return items
