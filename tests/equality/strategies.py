"""Hypothesis strategies that draw Programs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.equality.programs.data import LOADERS
from tests.equality.programs.models import NAMES
from tests.equality.programs.optimizers import FUSED, OPTIMIZERS, SCHEDULES
from tests.equality.programs.spec import Kill, Program

KINDS = ("vanish", "crash", "drain")
DRAWS = ("python", "numpy", "torch", "own")
IMPLS = ("", "foreach", "forloop", "fused")
FOR_LOOP_ONLY = ("adafactor",)  # foreach is chosen by itself; it has no fused form

kills = st.lists(st.builds(Kill, st.integers(1, 5), st.sampled_from(KINDS)), min_size=1, max_size=3)


def most_often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * len(others) + list(others))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    model = draw(st.sampled_from(NAMES))
    optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
    loader = draw(st.sampled_from(sorted(LOADERS)))
    impl = draw(st.sampled_from(IMPLS if optimizer in FUSED else IMPLS[:3]))
    struck = tuple(draw(kills))
    # Processes that read data take a while to start: less than half of the cases have any.
    numbers = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 2, 3] if loader == "keyed" else [0, 0, 0, 0, 1, 2])
    count = len(struck) + 1 if loader == "keyed" else 1
    micro = draw(most_often(1, 2, 3))
    return Program(
        seed=draw(st.integers(0, 10_000)),
        model=model,
        optimizer=optimizer,
        schedule=draw(st.sampled_from(sorted(SCHEDULES))),
        loader=loader,
        impl=impl,
        groups=draw(st.integers(1, 3)),
        maximize=draw(most_often(False, True)),
        clip=draw(st.booleans()),
        accumulate=draw(most_often(1, 2, 3)),
        micro=micro,
        zero=draw(st.sampled_from(["before", "after", "zeros"])),
        scaler=model not in ("bf16", "double") and draw(most_often(False, True)),
        overflow=draw(st.booleans()),
        ema=draw(st.sampled_from(["", "averaged", "dict"])),
        draws=tuple(draw(st.sets(st.sampled_from(DRAWS)).map(sorted))),
        augment=draw(st.booleans()),
        frozen=draw(most_often(False, True)),
        steps=draw(st.integers(6, 12)),
        every=draw(st.sampled_from([1, 1, 2, 3, 5])),
        kills=struck,
        workers=tuple(draw(st.lists(numbers, min_size=count, max_size=count))),
    )
