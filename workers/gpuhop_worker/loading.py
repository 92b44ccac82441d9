"""Batches of a torch dataset whose order and augmentation depend on (seed, epoch, index) alone.

So the position is one integer, skipping costs nothing, workers may prefetch as far as they like, and their number, or
the number of ranks, may change from one session to the next (facts on exact resume: plain DataLoaders lose exactness
with worker-side randomness, persistent workers, or another number of workers).
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from gpuhop_worker.data import KeyedBatches


class KeyedLoader:
    """`loader.batch(step)` gives the batch of a step; steps that follow each other are prefetched by the workers.

    `batch_size` is the batch of all ranks together; rank `rank` of `world` gets its share of it. The dataset must be
    of the map kind (it has __getitem__ and __len__). Randomness inside __getitem__, by random, NumPy's global
    generator or torch, is made a function of (seed, epoch, index).
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        collate: Optional[Callable[[List[Any]], Any]] = None,
        pin: bool = False,
    ) -> None:
        if batch_size % world:
            raise ValueError(f"a batch of {batch_size} cannot be divided among {world} ranks")
        self.order = KeyedBatches(len(dataset), batch_size, seed)
        self._keyed = _Keyed(dataset, seed)
        self._workers = workers
        self._share = (rank, world)
        self._collate = collate
        self._pin = pin
        self._next = -1
        self._batches: Iterator[Any] = iter(())

    @property
    def per_epoch(self) -> int:
        return self.order.per_epoch

    def batch(self, step: int) -> Any:
        """The batch of this step, in this rank's share. Raises what the dataset raises."""
        if step != self._next:
            self._batches = iter(self._loader(step))
        self._next = step + 1
        return next(self._batches)

    def _loader(self, first: int) -> Any:
        return torch.utils.data.DataLoader(
            self._keyed,
            batch_sampler=_Shares(self.order, first, *self._share),
            num_workers=self._workers,
            collate_fn=self._collate,
            pin_memory=self._pin,
            # Without a generator of its own the loader would draw from the global one, and change the training.
            generator=torch.Generator().manual_seed(0),
        )

    def state_dict(self) -> Any:
        return self.order.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Raises ValueError when the order was made otherwise."""
        self.order.load_state_dict(state)


class _Shares:
    """An endless batch sampler: (epoch, index) pairs of each step from `first` on, one rank's share of each batch."""

    def __init__(self, order: KeyedBatches, first: int, rank: int, world: int) -> None:
        self._order = order
        self._first = first
        self._rank = rank
        self._world = world

    def __iter__(self) -> Iterator[List[Tuple[int, int]]]:
        step = self._first
        while True:
            epoch = step // self._order.per_epoch
            size = self._order.batch_size // self._world
            share = self._order.batch(step)[self._rank * size : (self._rank + 1) * size]
            yield [(epoch, index) for index in share]
            step += 1


class _Keyed(torch.utils.data.Dataset[Any]):
    """The dataset with its randomness keyed. The generators of the process are left as they were found."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: Tuple[int, int]) -> Any:
        epoch, index = place
        with keyed(f"{self._seed}/{epoch}/{index}"):
            return self._dataset[index]


@contextlib.contextmanager
def keyed(key: str) -> Iterator[int]:
    """Python's, NumPy's global and torch's CPU generator as f(key); then put back as they were. Gives a seed for
    generators that the caller has."""
    digest = hashlib.sha256(key.encode()).digest()
    numpy = sys.modules.get("numpy")
    kept = (random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None)
    random.seed(int.from_bytes(digest[:8], "little"))
    torch.default_generator.manual_seed(int.from_bytes(digest[8:15], "little"))  # the CPU's alone, no GPU's
    if numpy:
        numpy.random.seed(int.from_bytes(digest[16:20], "little"))
    try:
        yield int.from_bytes(digest[20:27], "little")
    finally:
        random.setstate(kept[0])
        torch.set_rng_state(kept[1])
        if numpy:
            numpy.random.set_state(kept[2])
