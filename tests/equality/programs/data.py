"""The data of the programs, and the ways that the documentation tells a user to read it (docs/exact-resume.md)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from tests.equality.programs.models import WIDTH
from tests.equality.programs.spec import Program
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from gpuhop_worker.data import KeyedBatches

SIZE, BATCH = 14, 4
Batch = tuple[torch.Tensor, torch.Tensor]  # (numbers of the items, their floats)


def item(index: int) -> torch.Tensor:
    return torch.sin(torch.arange(1.0, WIDTH + 1) * (index + 1))


def augmented(x: torch.Tensor) -> torch.Tensor:
    """Drawn from all three generators, as augmentation libraries do."""
    noise = torch.from_numpy(numpy.random.randn(WIDTH).astype(numpy.float32))
    return x * random.uniform(0.5, 1.5) + 0.1 * torch.randn(WIDTH) + 0.05 * noise


class Items(Dataset[Any]):
    def __init__(self, augment: bool) -> None:
        self.augment = augment

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, augmented(item(index)) if self.augment else item(index)


class Stream(IterableDataset[Any]):
    """Shuffled in the worker, each worker its share."""

    def __init__(self, augment: bool) -> None:
        self.augment = augment
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        info = get_worker_info()
        share = list(range(SIZE))[info.id :: info.num_workers] if info else list(range(SIZE))
        random.Random(self.epoch).shuffle(share)
        for index in share:
            yield index, augmented(item(index)) if self.augment else item(index)


class Slices:
    """A batch sampler of the user's own: the batches of one epoch from a step on."""

    def __init__(self, order: KeyedBatches) -> None:
        self.order = order
        self.first = 0

    def __iter__(self) -> Iterator[list[int]]:
        after = (self.first // self.order.per_epoch + 1) * self.order.per_epoch
        return (self.order.batch(step) for step in range(self.first, after))


Source = Callable[[int], list[Batch]]  # step -> the batches of this step


def keyed(program: Program, session: Any, workers: int) -> Source:
    loader = session.loader(Items(program.augment), BATCH, seed=program.seed, workers=workers)
    count = program.accumulate
    return lambda step: [loader.batch(step * count + place) for place in range(count)]


def persistent(program: Program, session: Any, workers: int) -> Source:
    """Workers that stay over the epochs, and draw nothing."""
    order = KeyedBatches(SIZE, BATCH, seed=program.seed)
    session.track(order=order)
    slices = Slices(order)
    loader: Any = DataLoader(
        Items(False), batch_sampler=slices, num_workers=workers, persistent_workers=workers > 0,
        generator=torch.Generator(),
    )  # fmt: skip

    state: dict[str, Any] = {}

    def source(step: int) -> list[Batch]:
        if not state:
            state["next"] = _epochs(loader, slices, step * program.accumulate)
        return list(itertools.islice(state["next"], program.accumulate))

    return source


def _epochs(loader: Any, slices: Slices, first: int) -> Iterator[Batch]:
    while True:
        slices.first = first
        for batch in loader:
            yield batch
            first += 1


def replayed(loader: Any, program: Program, session: Any) -> Source:
    batches = session.replay(loader, seed=program.seed)
    return lambda step: list(itertools.islice(batches, program.accumulate))


def shuffled(program: Program, session: Any, workers: int) -> Source:
    own = torch.Generator().manual_seed(program.seed)
    loader: Any = DataLoader(Items(program.augment), BATCH, shuffle=True, generator=own, num_workers=workers)
    return replayed(loader, program, session)


def weighted(program: Program, session: Any, workers: int) -> Source:
    """A sampler that draws from the process's own generator."""
    sampler: Any = torch.utils.data.WeightedRandomSampler([1.0 + n % 3 for n in range(SIZE)], SIZE)
    loader: Any = DataLoader(Items(program.augment), BATCH, sampler=sampler, num_workers=workers)
    return replayed(loader, program, session)


def iterable(program: Program, session: Any, workers: int) -> Source:
    return replayed(DataLoader(Stream(program.augment), BATCH, num_workers=workers), program, session)


LOADERS: dict[str, Callable[[Program, Any, int], Source]] = {
    "keyed": keyed,
    "persistent": persistent,
    "shuffled": shuffled,
    "weighted": weighted,
    "iterable": iterable,
}
