"""A comparison that calls two different runs equal would be worth nothing: each kind of difference is found."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from gpuhop.services.comparing import compare
from gpuhop_worker.wire import Manifest

MANIFEST = Manifest(
    job="a",
    token=1,
    seq=1,
    step=3,
    mode="api",
    packs=[{"key": "p", "size": 12}],
    blocks=[[0, 0, 4, 4, 0, "aa"], [0, 4, 4, 4, 0, "bb"], [0, 8, 4, 4, 0, "cc"]],
    tensors=[
        {"name": "model.w", "dtype": "float32", "shape": [1], "stride": [1], "first": 0, "last": 1},
        {"name": "opt.state.w.exp_avg", "dtype": "float32", "shape": [1], "stride": [1], "first": 1, "last": 2},
        {"name": "~rng.torch", "dtype": "uint8", "shape": [4], "stride": [1], "first": 2, "last": 3},
        {"name": "model.tied", "alias": "model.w"},
    ],
    state={"opt": {"lr": 0.1}, "~rng": {"python": 1}},
)
LOG: list[dict[str, Any]] = [{"step": 0, "loss": 0.5, "~token": 1}, {"step": 1, "loss": 0.25, "~token": 2}]


def other_block(index: int) -> Manifest:
    blocks = deepcopy(MANIFEST.blocks)
    blocks[index][5] = "dd"
    return replace(MANIFEST, blocks=blocks)


def different(b: Manifest = MANIFEST, log: list[dict[str, Any]] = LOG) -> dict[str, tuple[str, ...]]:
    return {row.what: row.different for row in compare(MANIFEST, b, LOG, log) if not row.equal}


def test_the_same_run_is_equal_whoever_made_it() -> None:
    b = replace(MANIFEST, job="b", token=9, seq=4, packs=[{"key": "q", "size": 12}])
    assert different(b, [{**row, "~token": 5} for row in LOG]) == {}


@pytest.mark.parametrize(
    ("b", "what", "name"),
    [
        (other_block(0), "weights and buffers", "model.w"),
        (other_block(1), "optimizer moments", "opt.state.w.exp_avg"),
        (other_block(2), "random generators", "~rng.torch"),
        (replace(MANIFEST, state={"opt": {"lr": 0.2}, "~rng": {"python": 1}}), "other state", "opt"),
        (replace(MANIFEST, state={"opt": {"lr": 0.1}, "~rng": {"python": 2}}), "random generators", "~rng"),
        (replace(MANIFEST, tensors=MANIFEST.tensors[:3]), "weights and buffers", "model.tied"),
    ],
)
def test_each_difference_is_named(b: Manifest, what: str, name: str) -> None:
    assert different(b) == {what: (name,)}


def test_a_value_that_differs_in_the_last_bit_or_is_missing() -> None:
    assert different(log=[LOG[0], {"step": 1, "loss": 0.25000000000000006}]) == {"logged values": ("step 1",)}
    assert different(log=LOG[:1]) == {"logged values": ("step 1",)}


def test_nothing_to_compare_is_not_equal() -> None:
    empty = replace(MANIFEST, tensors=[], state={})
    assert not any(row.equal for row in compare(empty, empty, [], []))
