"""Another number of ranks in each session: the batches of all ranks together are those of one, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.equality.driver import Job, unchanged_process
from tests.equality.programs.data import Items

from gpuhop_worker.training import Session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BATCH, STEPS = 6, 12  # two batches an epoch
WORLDS = [(1, 3, 2), (3, 1, 2), (2, 6, 1, 3)]


class Rank:
    """One rank's script: gradients are averaged over the ranks by hand. Rank 0 is the one that saves."""

    def __init__(self, session: Session, rank: int, world: int, workers: int, augment: bool) -> None:
        self.loader = session.loader(
            Items(augment), BATCH, seed=9, rank=rank, world=world, workers=workers if rank == 0 else 0
        )
        self.session = session


def ranks(session: Session, world: int, workers: int, augment: bool) -> list[Rank]:
    return [Rank(session if rank == 0 else Session(), rank, world, workers, augment) for rank in range(world)]


def global_batch(members: list[Rank], step: int) -> list[Any]:
    """What the ranks read at this step, joined in the order of the ranks: [numbers, floats]."""
    parts = [member.loader.batch(step) for member in members]
    return [torch.cat(column).tolist() for column in zip(*parts, strict=True)]


def unbroken(augment: bool) -> list[Any]:
    (only,) = ranks(Session(), 1, 0, augment)
    return [global_batch([only], step) for step in range(STEPS)]


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("worlds", WORLDS, ids=str)
def test_the_global_order_is_the_same_when_the_world_changes(
    tmp_path: Path, worlds: tuple[int, ...], augment: bool
) -> None:
    job, seen = Job(tmp_path), dict[int, Any]()
    with unchanged_process():
        for number, world in enumerate(worlds):
            last = number == len(worlds) - 1
            with job.session(every=1) as running:
                members = ranks(running.session, world, number, augment)
                made = 0
                try:
                    for step in running.session.steps(STEPS):
                        assert step not in seen
                        seen[step] = global_batch(members, step)
                        made += 1
                        if made == 3 and not last:
                            running.drain.touch()
                except SystemExit:
                    assert made == 3
                running.end("drain")
    assert [seen[step] for step in range(STEPS)] == unbroken(augment)
    assert len({tuple(batch[0]) for batch in seen.values()}) > STEPS / 2  # each epoch has an order of its own


def test_a_changed_global_batch_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path)
    with unchanged_process():
        with job.session(every=1) as running:
            running.session.loader(Items(False), BATCH, seed=9)
            for _ in running.session.steps(2):
                pass
            running.end("drain")
        with job.session(every=1) as running:
            running.session.loader(Items(False), 2 * BATCH, seed=9, world=2)
            with pytest.raises(SystemExit) as left:
                next(iter(running.session.steps(3)))
            assert left.value.code == 76
    assert "the data order was made with" in capfd.readouterr().err
