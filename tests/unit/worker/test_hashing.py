"""A job's blocks keep the hash of its first checkpoint; what cannot be computed here is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.support.states import Shelf, load, save

from gpuhop_worker import codecs, hashing, restore
from gpuhop_worker.encoder import Known
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore
from gpuhop_worker.wire import Manifest

# The first vectors of the BLAKE3 test suite (github.com/BLAKE3-team/BLAKE3, test_vectors.json): bytes i % 251.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
}


def state(seed: int) -> bytes:
    return np.random.default_rng(seed).normal(0, 0.02, 30_000).astype(np.float32).tobytes()


def checkpoint(shelf: Shelf, seed: int, known: Known | None, slot: Slot) -> tuple[Manifest, Known, int]:
    entry = {"name": "w", "dtype": "float32", "shape": [30_000], "stride": [1]}
    manifest, encoder, known = save(shelf, [(entry, state(seed), 4, True)], known, slot)
    return manifest, known, encoder.shipped_bytes


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without blake3."""
    monkeypatch.setattr(hashing, "blake3", None)


@pytest.mark.parametrize("size", VECTORS)
def test_blake3_is_blake3(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    assert hashing.digest("blake3")(memoryview(data)) == VECTORS[size]
    assert hashing.digest("sha256")(data) == hashlib.sha256(data).hexdigest()


def test_a_job_keeps_its_first_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    with monkeypatch.context() as poor:
        poor.setattr(hashing, "blake3", None)
        first, known, _ = checkpoint(shelf, 1, None, Slot(str(tmp_path / "a")))
    assert first.hash == "sha256"
    second, known, shipped = checkpoint(shelf, 1, known, Slot(str(tmp_path / "b")))
    assert (second.hash, shipped) == ("sha256", 0), "the same bytes are found again"
    third, _, _ = checkpoint(shelf, 2, known, Slot(str(tmp_path / "a")))
    assert third.hash == "sha256"
    assert load(shelf, third) == {"w": state(2)}


def test_a_new_job_takes_the_best_there_is(tmp_path: Path) -> None:
    assert checkpoint(Shelf(), 1, None, Slot(str(tmp_path / "a")))[0].hash == "blake3" == hashing.best()


def test_what_is_lacking_is_named_and_ends_the_restore(tmp_path: Path, poor: None) -> None:
    with pytest.raises(codecs.Lacking, match=r"'blake3' needs the package blake3 \(pip install blake3\)"):
        hashing.digest("blake3")
    with pytest.raises(codecs.Lacking, match="'md5' is not known"):
        hashing.digest("md5")
    key = "jobs/golden/t0001/manifest-000001.json"
    root = Path(__file__).parents[2] / "golden" / "v3"
    addresses = {str(p.relative_to(root)): {"get": p.as_uri()} for p in (root / "jobs").rglob("*-*")}
    with pytest.raises(restore.NothingVerifies, match="pip install blake3"):
        restore.fetch_newest([key], "golden", GrantStore(addresses), Slot(str(tmp_path / "slot")), print)
