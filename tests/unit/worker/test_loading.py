"""The two loaders whose position is exact: KeyedLoader (session.loader) and Replay (session.replay)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from gpuhop_worker.data import KeyedBatches
from gpuhop_worker.loading import KeyedLoader
from gpuhop_worker.replaying import Replay
from gpuhop_worker.training import Session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # fork beside other threads of the test run


class Noisy(Dataset[Any]):
    """Each item draws from all three generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(numpy.random.rand()), torch.rand(2)


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in range(5):
            yield 100 * self.epoch + number


def plain(batches: list[Any]) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def generators() -> str:
    return repr((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()))


# ---------------------------------------------------------------- session.loader


def keyed(**options: Any) -> KeyedLoader:
    return KeyedLoader(Noisy(), 3, seed=5, **options)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_keyed_batch_depends_on_its_step_alone_whatever_the_workers(workers: int) -> None:
    want = plain([keyed().batch(step) for step in range(8)])
    walked = keyed(workers=workers)
    assert plain([walked.batch(step) for step in range(8)]) == want
    assert plain([walked.batch(step) for step in (5, 6, 2)]) == [want[5], want[6], want[2]]


def test_a_keyed_loader_leaves_the_generators_of_the_process_alone() -> None:
    before = generators()
    keyed().batch(4)
    assert generators() == before


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_the_ranks_together_give_the_batch_of_one(world: int) -> None:
    whole = KeyedLoader(Noisy(), 6, seed=1)
    ranks = [KeyedLoader(Noisy(), 6, seed=1, rank=rank, world=world) for rank in range(world)]
    for step in range(3):
        parts = [rank.batch(step) for rank in ranks]
        joined = [torch.cat(columns).tolist() for columns in zip(*parts, strict=True)]
        assert joined == [column.tolist() for column in whole.batch(step)]


def test_a_batch_that_the_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 6 cannot be divided among 4 ranks"):
        KeyedLoader(Noisy(), 6, world=4)


# ---------------------------------------------------------------- session.replay


def shuffled(workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), 3, shuffle=True, num_workers=workers, **options)


def weighted(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Noisy(), 3, sampler=WeightedRandomSampler([1.0] * 10, 10), num_workers=workers)


def own_sampler(workers: int = 0) -> DataLoader[Any]:
    inner: Any = torch.utils.data.RandomSampler(Noisy(), generator=torch.Generator())
    return DataLoader(
        Noisy(), batch_sampler=torch.utils.data.BatchSampler(inner, 3, drop_last=True), num_workers=workers
    )


LOADERS = {
    "shuffled": shuffled,
    "own generator": lambda workers=0: shuffled(workers, generator=torch.Generator()),
    "weighted": weighted,
    "own sampler": own_sampler,
}


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in LOADERS), ("shuffled", 2), ("own sampler", 1)])
@pytest.mark.parametrize("given", [1, 4, 6])
def test_a_replayed_loader_goes_on_where_it_was(kind: str, workers: int, given: int) -> None:
    torch.manual_seed(1)
    first = Replay(LOADERS[kind](workers), seed=2)
    list(itertools.islice(first, given))
    state, kept = first.state_dict(), (random.getstate(), numpy.random.get_state(), torch.get_rng_state())
    want = plain(list(itertools.islice(first, 6)))
    after = generators()
    second = Replay(LOADERS[kind](workers), seed=2)
    second.load_state_dict(state)
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    assert plain(list(itertools.islice(second, 6))) == want
    assert generators() == after


def test_each_epoch_has_an_order_of_its_own() -> None:
    batches = Replay(shuffled(), seed=2)
    epochs = [[i for batch in itertools.islice(batches, 4) for i in batch[0].tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [i for batch in itertools.islice(Replay(shuffled(), seed=3), 4) for i in batch[0].tolist()] != epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_told_its_epoch(workers: int) -> None:
    batches = Replay(DataLoader(Stream(), 5, num_workers=workers))
    assert [sorted(set(next(batches).tolist()))[0] for _ in range(3 + 3 * (workers > 0))][-1] >= 100
    assert batches.state_dict()["epoch"] >= 2


def test_another_number_of_workers_or_seed_is_refused() -> None:
    state = Replay(shuffled(2), seed=1).state_dict()
    for other in (Replay(shuffled(), seed=1), Replay(shuffled(2), seed=2)):
        with pytest.raises(ValueError, match="the loader was made with"):
            other.load_state_dict(state)


def test_persistent_workers_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"leave it out, or use session\.loader"):
        Replay(shuffled(2, persistent_workers=True))
    Replay(shuffled(0))


def test_a_loader_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no batch"):
        next(Replay(DataLoader(Noisy(), batch_size=11, drop_last=True)))


def test_a_session_tracks_its_loaders() -> None:
    session = Session()
    session.loader(Noisy(), 3)
    session.replay(shuffled())
    assert [type(thing) for thing in session._tracked.values()] == [KeyedLoader, Replay]


def test_the_keyed_order_is_that_of_keyed_batches() -> None:
    loader = keyed()
    order = KeyedBatches(10, 3, 5)
    assert [loader.batch(step)[0].tolist() for step in range(5)] == [order.batch(step) for step in range(5)]
