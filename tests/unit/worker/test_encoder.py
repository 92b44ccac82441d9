"""Blocks known, coded, differenced; and everything read back from the packs alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import states
from tests.support.states import Shelf, load

from gpuhop_worker import checkpoint, codecs
from gpuhop_worker.checkpoint import BLOCK
from gpuhop_worker.encoder import MOST_BASES, PACK, Encoder, Known
from gpuhop_worker.slots import Slot
from gpuhop_worker.wire import Manifest

State = dict[str, np.ndarray]


def save(
    shelf: Shelf, state: State, known: Known | None, slot: Slot, **options: Any
) -> tuple[Manifest, Encoder, Known]:
    shape: dict[str, Any] = {"dtype": "x", "shape": [], "stride": []}
    parts: list[states.Part] = [
        ({"name": name, **shape}, value.tobytes(), value.itemsize, value.dtype.kind == "f")
        for name, value in state.items()
    ]
    return states.save(shelf, parts, known, slot, **options)


def floats(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


@pytest.fixture
def slots(tmp_path: Path) -> tuple[Slot, Slot]:
    return Slot(str(tmp_path / "a")), Slot(str(tmp_path / "b"))


def same(shelf: Shelf, manifest: Manifest, state: State) -> None:
    assert load(shelf, manifest) == {name: value.tobytes() for name, value in state.items()}


def test_many_packs_and_blocks(slots: tuple[Slot, Slot]) -> None:
    shelf = Shelf()
    state = {"big": np.frombuffer(random.Random(1).randbytes(PACK + BLOCK + 5), np.uint8), "empty": floats(1, 0)}
    state["small"] = floats(2, 3)
    manifest, _, _ = save(shelf, state, None, slots[0])
    assert len(manifest.packs) == 2
    assert [row[3] for row in manifest.blocks[:10]] == [BLOCK] * 9 + [5]
    same(shelf, manifest, state)


def test_what_did_not_change_is_not_shipped(slots: tuple[Slot, Slot]) -> None:
    shelf = Shelf()
    state = {"frozen": floats(1, 2 * BLOCK // 4), "live": floats(2, 100_000)}
    _, _, known = save(shelf, state, None, slots[0])
    manifest, encoder, known = save(shelf, state, known, slots[1])
    assert encoder.shipped_bytes == 0
    assert len(shelf.packs) == 1
    state["live"] = floats(3, 100_000)
    manifest, encoder, _ = save(shelf, state, known, slots[0])
    assert encoder.shipped_bytes <= 400_000
    same(shelf, manifest, state)


@pytest.mark.parametrize("tail", [1, 1025, 40_001])
def test_a_file_that_ends_in_the_middle_of_a_number_and_changes_only_there(slots: tuple[Slot, Slot], tail: int) -> None:
    shelf, body = Shelf(), floats(1, BLOCK // 4).tobytes()
    entry: dict[str, Any] = {"name": "f", "dtype": "x", "shape": [], "stride": []}
    known: Known | None = None
    for turn in range(2):
        raw = body + bytes([turn]) * tail
        manifest, _, known = states.save(shelf, [(entry, raw, 4, True)], known, slots[turn])
        assert load(shelf, manifest) == {"f": raw}


def test_equal_tensors_are_stored_once(slots: tuple[Slot, Slot]) -> None:
    shelf = Shelf()
    state = {"a": floats(1, 50_000), "b": floats(1, 50_000)}
    manifest, encoder, _ = save(shelf, state, None, slots[0], code=False)
    assert encoder.shipped_bytes == 200_000
    same(shelf, manifest, state)


def test_differences_chain_up_and_are_rebased(slots: tuple[Slot, Slot]) -> None:
    shelf, known = Shelf(), None
    weights = floats(1, 100_000)
    kinds = []
    for turn in range(2 * MOST_BASES):
        weights = weights + floats(100 + turn, 100_000) * np.float32(1e-3)
        manifest, _, known = save(shelf, {"w": weights}, known, slots[turn % 2])
        kinds.append(manifest.blocks[0][4])
        same(shelf, manifest, {"w": weights})
        assert len(manifest.blocks) <= MOST_BASES
    whole = [i for i, kind in enumerate(kinds) if kind == codecs.PLANES]
    assert whole == [0, MOST_BASES]
    assert set(kinds) == {codecs.PLANES, codecs.DIFF}


def test_a_tensor_that_changes_its_size_starts_anew(slots: tuple[Slot, Slot]) -> None:
    shelf = Shelf()
    _, _, known = save(shelf, {"w": floats(1, 100_000)}, None, slots[0])
    state = {"w": np.concatenate([floats(1, 100_000), floats(2, 5)])}
    manifest, _, _ = save(shelf, state, known, slots[1])
    same(shelf, manifest, state)


def test_small_blocks_hold_no_old_pack(slots: tuple[Slot, Slot]) -> None:
    """A reference to a few bytes would keep a whole old pack in the store."""
    shelf = Shelf()
    _, _, known = save(shelf, {"w": floats(1, 100_000), "step": floats(9, 1)}, None, slots[0], code=False)
    manifest, _, _ = save(shelf, {"w": floats(2, 100_000), "step": floats(9, 1)}, known, slots[1], code=False)
    assert [pack["key"] for pack in manifest.packs] == ["jobs/j/t0001/pack-000002"]


def test_a_random_history_comes_back_at_every_point(slots: tuple[Slot, Slot]) -> None:
    draw, shelf, known = random.Random(5), Shelf(), None
    state: State = {f"t{i}": floats(i, draw.choice([1, 2000, 40_000, BLOCK // 4 + 77])) for i in range(6)}
    for turn in range(12):
        for name in state:
            if draw.random() < 0.6:
                change = floats(1000 * turn + len(name), len(state[name])) * np.float32(draw.choice([1e-4, 1.0]))
                state[name] = (state[name] + change).astype(np.float32)
        manifest, _, known = save(shelf, state, known, slots[turn % 2], code=draw.random() < 0.8)
        same(shelf, manifest, state)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_every_damaged_byte_is_found(slots: tuple[Slot, Slot], place: str) -> None:
    shelf = Shelf()
    _, _, known = save(shelf, {"w": floats(1, 50_000)}, None, slots[0])
    manifest, _, _ = save(shelf, {"w": floats(1, 50_000) + np.float32(1e-5)}, known, slots[1])
    for key, whole in list(shelf.packs.items()):
        for at in {"first": range(12), "middle": range(5000, 5012), "last": range(len(whole) - 6, len(whole))}[place]:
            shelf.packs[key] = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
            with pytest.raises(checkpoint.Damaged):
                load(shelf, manifest)
        shelf.packs[key] = whole[:-1]
        with pytest.raises(checkpoint.Damaged):
            load(shelf, manifest)
        shelf.packs[key] = whole


def test_rows_that_go_in_circles_are_refused(slots: tuple[Slot, Slot]) -> None:
    manifest, _, _ = save(Shelf(), {"w": floats(1, 50_000)}, None, slots[0])
    for base in (0, 1, 5):
        manifest.blocks[0][6] = base
        with pytest.raises(checkpoint.Damaged):
            checkpoint.check_shape(manifest)


def test_neighbours_are_read_in_one_request(slots: tuple[Slot, Slot]) -> None:
    shelf = Shelf()
    state = {f"t{i}": floats(i, 5000) for i in range(300)}
    manifest, _, _ = save(shelf, state, None, slots[0])
    same(shelf, manifest, state)
    assert shelf.reads == 1


def test_each_stored_byte_is_read_once_also_below_differences(slots: tuple[Slot, Slot]) -> None:
    shelf, known = Shelf(), None
    state = {"w": floats(1, 50_000), "still": floats(2, 50_000)}
    for number in range(4):
        state = dict(state, w=state["w"] + np.float32(1e-5))
        manifest, _, known = save(shelf, state, known, slots[number % 2])
    assert max(checkpoint.depth(manifest.blocks, index) for index in range(len(manifest.blocks))) == 3
    shelf.read_bytes = 0
    same(shelf, manifest, state)
    assert shelf.read_bytes == sum(row[2] for row in manifest.blocks)


def test_equal_blocks_in_two_places_below_a_difference(slots: tuple[Slot, Slot]) -> None:
    """One row is a part's own bytes and, elsewhere, what another part's bytes differ from."""
    shelf = Shelf()
    first = {"a": floats(1, 50_000), "b": floats(1, 50_000)}
    _, _, known = save(shelf, first, None, slots[0])
    second = {"a": first["a"], "b": first["b"] + np.float32(1e-5)}
    manifest, _, known = save(shelf, second, known, slots[1])
    same(shelf, manifest, second)
    third = {"a": second["b"], "b": second["b"] + np.float32(1e-5)}
    manifest, _, _ = save(shelf, third, known, slots[0])
    same(shelf, manifest, third)
