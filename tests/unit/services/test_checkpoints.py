"""Checkpoints that this Python cannot read are no damaged ones, and damaged ones are told as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import states
from tests.support.states import Shelf

from gpuhop.errors import MissingExtra, StoreError
from gpuhop.services import checkpoints
from gpuhop.stores.local import LocalStore
from gpuhop_worker import codecs, hashing
from gpuhop_worker.slots import Slot
from gpuhop_worker.wire import Manifest


def saved(folder: Path) -> tuple[LocalStore, Manifest]:
    """A store with one checkpoint of coded floats, known by BLAKE3."""
    shelf = Shelf()
    floats = b"".join((0x3F800000 + n % 7).to_bytes(4, "little") for n in range(50_000))
    entry: dict[str, Any] = {"name": "w", "dtype": "float32", "shape": [50_000], "stride": [1]}
    manifest, _, _ = states.save(shelf, [(entry, floats, 4, True)], None, Slot(str(folder / "slot")))
    store = LocalStore(folder / "store")
    for key, body in shelf.packs.items():
        store.put(key, body)
    assert (manifest.hash, manifest.blocks[0][4]) == (hashing.BLAKE3, codecs.PLANES)
    return store, manifest


@pytest.mark.parametrize(("module", "name"), [(hashing, "blake3"), (codecs, "zstandard"), (codecs, "numpy")])
def test_what_is_not_installed_here_is_said_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    store, manifest = saved(tmp_path)
    assert checkpoints.verify(store, manifest) == []
    monkeypatch.setattr(module, name, None)
    with pytest.raises(MissingExtra, match=name) as told:
        checkpoints.verify(store, manifest)
    assert told.value.hint == "pip install 'gpuhop[torch]'"
    with pytest.raises(MissingExtra, match=name):
        list(checkpoints.tensors(store, manifest))


def test_a_damaged_one_is_not_exported_and_says_so(tmp_path: Path) -> None:
    store, manifest = saved(tmp_path)
    key = manifest.packs[0]["key"]
    store.put(key, bytes(manifest.packs[0]["size"]))
    with pytest.raises(StoreError, match="at offset 0"):
        list(checkpoints.tensors(store, manifest))
