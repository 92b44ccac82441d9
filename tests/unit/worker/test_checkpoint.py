"""Drafts, and manifests whose numbers do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuhop_worker import checkpoint
from gpuhop_worker.checkpoint import BLOCK, Damaged
from gpuhop_worker.wire import Manifest

HASH = "0" * 64


def manifest(blocks: list[Any], **more: Any) -> Manifest:
    return Manifest("j", 1, 1, 1, "api", [{"key": "p", "size": 100}], blocks, **more)


def test_a_snapshot_without_its_draft_is_none(tmp_path: Path) -> None:
    assert checkpoint.read_draft(str(tmp_path)) is None
    checkpoint.write_snapshot(str(tmp_path), {"step": 3})
    assert checkpoint.read_draft(str(tmp_path)) == {"step": 3}


@pytest.mark.parametrize(
    "row",
    [
        [1, 0, 5, 5, 0, HASH, -1],
        [-1, 0, 5, 5, 0, HASH, -1],
        [0, -1, 5, 5, 0, HASH, -1],
        [0, 96, 5, 5, 0, HASH, -1],
        [0, 0, 5, 0, 0, HASH, -1],
        [0, 0, 5, BLOCK + 1, 0, HASH, -1],
        [0, 0, 5, 5, 0, HASH, 0],
        [0, 0, 5, 5, 0, HASH, 1],
        [0, 0, 5, 5, 0],
        ["0", 0, 5, 5, 0, HASH, -1],
        None,
        7,
    ],
)
def test_rows_that_cannot_be_are_refused(row: Any) -> None:
    with pytest.raises(Damaged):
        checkpoint.check_shape(manifest([row]))


def test_rows_of_both_formats_are_taken() -> None:
    checkpoint.check_shape(manifest([[0, 0, 5, 5, 0, HASH], [0, 5, 5, 5, 3, HASH, 0]]))


def test_a_long_chain_of_bases_is_refused() -> None:
    rows = [[0, 0, 5, 5, 3, HASH, n - 1] for n in range(40)]
    checkpoint.check_shape(manifest(rows[:10]))
    with pytest.raises(Damaged, match="bases"):
        checkpoint.check_shape(manifest(rows))


@pytest.mark.parametrize(
    "more",
    [
        {"tensors": [{"name": "a", "first": 0, "last": 2}]},
        {"tensors": [{"name": "a", "first": 1, "last": 0}]},
        {"tensors": [{"name": "a", "alias": "b"}]},
        {"tensors": [{"first": 0, "last": 1}]},
        {"files": [{"path": "a", "size": 4, "first": 0, "last": 1}]},
        {"files": [{"path": "a", "first": 0, "last": 1}]},
        {"files": ["a"]},
        {"hash": []},
        {"hash": None},
    ],
)
def test_parts_that_do_not_fit_the_rows_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Damaged):
        checkpoint.check_shape(manifest([[0, 0, 5, 5, 0, HASH, -1]], **more))
