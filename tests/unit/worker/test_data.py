"""Keyed data order: a pure function of seed and epoch, the same on every machine and Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop_worker.data import KeyedBatches, order


@given(st.integers(1, 200), st.integers(0, 1000), st.integers(0, 50))
def test_each_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(size, seed, epoch)) == list(range(size))


@given(st.integers(1, 50), st.integers(1, 9), st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_batch_depends_on_its_step_alone(size: int, batch: int, steps: list[int]) -> None:
    if size < batch:
        size = batch
    walked = KeyedBatches(size, batch, seed=5)
    assert [walked.batch(s) for s in steps] == [KeyedBatches(size, batch, seed=5).batch(s) for s in steps]


def test_an_epoch_takes_no_item_twice_and_drops_the_short_batch() -> None:
    data = KeyedBatches(10, 3, seed=1)
    taken = [i for step in range(data.per_epoch) for i in data.batch(step)]
    assert data.per_epoch == 3
    assert len(set(taken)) == 9
    assert [data.batch(s) for s in range(3, 6)] != [data.batch(s) for s in range(3)]


def test_the_order_is_the_one_that_was_always_made() -> None:
    # A changed order would break every running job: these numbers may never change.
    assert order(10, 0, 0) == [7, 0, 1, 5, 4, 9, 2, 8, 6, 3]
    assert order(10, 3, 2) == [1, 2, 4, 9, 3, 8, 0, 7, 5, 6]
    assert KeyedBatches(12, 4, seed=3).batch(7) == [1, 9, 4, 11]


def test_another_size_batch_or_seed_is_refused_at_load() -> None:
    saved = KeyedBatches(10, 2, seed=1).state_dict()
    KeyedBatches(10, 2, seed=1).load_state_dict(saved)
    for other in (KeyedBatches(11, 2, seed=1), KeyedBatches(10, 5, seed=1), KeyedBatches(10, 2, seed=2)):
        with pytest.raises(ValueError, match="the data order was made with"):
            other.load_state_dict(saved)


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (3, 4), (5, 0), (5, -1)])
def test_less_than_one_batch_is_refused(size: int, batch: int) -> None:
    with pytest.raises(ValueError, match="at least one whole batch"):
        KeyedBatches(size, batch)
