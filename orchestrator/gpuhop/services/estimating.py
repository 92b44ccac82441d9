"""How long it still takes, from what was measured. Honest: no speed measured, no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpuhop.db.records import SessionRow
from gpuhop.domain.job import JobSpec


@dataclass(frozen=True)
class Left:
    """`steps` still to make and the seconds of training that they take at the measured speed; None: not known."""

    steps: int | None
    train_s: float | None


def left(spec: JobSpec, step: int, rows: Sequence[SessionRow]) -> Left:
    """Training time only: waiting for quota is not in it."""
    if spec.target.steps is None:
        return Left(None, None)
    steps = max(0, spec.target.steps - step)
    speeds = [row.speed for row in rows if row.speed > 0]
    return Left(steps, steps / median(speeds) if speeds else None)
