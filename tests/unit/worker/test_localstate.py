"""The newest whole state on this machine, and what is left of a snapshot that was being copied."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuhop_worker import checkpoint, localstate
from gpuhop_worker.checkpoint import BLOCK
from gpuhop_worker.folder import put_in_place
from gpuhop_worker.localstate import Start
from gpuhop_worker.restore import Restored
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.slots import Slot
from gpuhop_worker.wire import Grant, Manifest

GRANT = Grant("j", 1, "s", "p", "run", "code", "sha", 60.0)
RESTORED = Start(Manifest("j", 0, 4, 10, "api", [], []), "a", {})


def draft(step: int, slot: str) -> dict[str, Any]:
    sizes = {"w": 3 * BLOCK + 8, "b": 16, "empty": 0}
    tensors = [
        {"name": name, "dtype": "uint8", "shape": [size], "stride": [1], "offset": place * 4 * BLOCK, "size": size}
        for place, (name, size) in enumerate(sizes.items())
    ]
    tied = {"name": "tied", "alias": "w"}
    return {"step": step, "slot": slot, "state": {"n": step}, "fingerprint": {"v": 1}, "tensors": [*tensors, tied]}


def spooled(spool: Path, number: int, body: dict[str, Any] | None) -> None:
    folder = spool / f"snap-{number:06d}"
    folder.mkdir()
    if body is not None:
        checkpoint.write_snapshot(str(folder), body)


def shipped(number: int = 0, body: dict[str, Any] | None = None) -> Shipper:
    return cast(Shipper, SimpleNamespace(last=None if body is None else (f"snap-{number:06d}", body)))


def test_what_waits_is_newer_than_what_was_shipped_than_what_was_restored(tmp_path: Path) -> None:
    spool = str(tmp_path)
    assert localstate.newest(GRANT, spool, shipped(), None) is None
    assert localstate.newest(GRANT, spool, shipped(), RESTORED) is RESTORED
    found = localstate.newest(GRANT, spool, shipped(1, draft(20, "b")), RESTORED)
    assert found is not None and (found.step, found.slot, found.number, found.base) == (20, "b", 1, None)
    spooled(tmp_path, 2, draft(30, "c"))
    spooled(tmp_path, 3, None)
    found = localstate.newest(GRANT, spool, shipped(1, draft(20, "b")), RESTORED)
    assert found is not None and (found.step, found.slot, found.number, found.base) == (30, "c", 2, "b")
    found = localstate.newest(GRANT, spool, shipped(), RESTORED)
    assert found is not None and found.base == "a"


def test_what_a_disk_would_not_remove_is_never_gone_back_to(tmp_path: Path) -> None:
    """Older than what was committed: its slot may hold another state by now."""
    for number in (1, 2):
        spooled(tmp_path, number, draft(10 * number, "b"))
    for last in (2, 3):
        found = localstate.newest(GRANT, str(tmp_path), shipped(last, draft(30, "a")), RESTORED)
        assert found is not None and (found.step, found.slot, found.number) == (30, "a", last)
    assert checkpoint.whole_snapshots(str(tmp_path), "snap-000002") == []


def test_its_manifest_says_where_each_part_lies(tmp_path: Path) -> None:
    spooled(tmp_path, 1, draft(30, "b"))
    found = localstate.newest(GRANT, str(tmp_path), shipped(), None)
    assert found is not None
    checkpoint.check_shape(found.manifest)
    manifest = Manifest.from_bytes(found.manifest.to_bytes())
    assert manifest.state == {"n": 30} and manifest.fingerprint == {"v": 1}
    sizes = {p["name"]: sum(r[3] for r in manifest.blocks[p["first"] : p["last"]]) for p in manifest.tensors[:3]}
    assert sizes == {"w": 3 * BLOCK + 8, "b": 16, "empty": 0}
    assert found.offsets == {"w": 0, "b": 4 * BLOCK, "empty": 8 * BLOCK}
    assert manifest.tensors[3] == {"name": "tied", "alias": "w"}


@pytest.mark.parametrize("torn", [[], [4], [2, 7]])
def test_torn_snapshots_are_removed_and_their_numbers_are_gone(tmp_path: Path, torn: list[int]) -> None:
    spooled(tmp_path, 3, draft(30, "b"))
    for number in torn:
        spooled(tmp_path, number, None)
        (tmp_path / f"snap-{number:06d}" / "draft.json.tmp-1").write_bytes(b"{")
    assert localstate.drop_torn(str(tmp_path)) == max([3, *torn])
    assert os.listdir(tmp_path) == ["snap-000003"]


def test_a_snapshot_of_a_folder_with_a_link_can_be_put_down_again(tmp_path: Path) -> None:
    """A script that links `latest` to its newest file, and crashes before it has left."""
    files = [
        {"path": "one.bin", "size": 3, "mode": 0o600, "mtime": 1, "offset": 0},
        {"path": "latest", "link": "one.bin"},
    ]
    body = {"step": 5, "slot": "b", "files": files, "fingerprint": {}}
    spool = tmp_path / "spool"
    spool.mkdir()
    spooled(spool, 1, body)
    found = localstate.newest(GRANT, str(spool), shipped(), None)
    assert found is not None
    slot = Slot(str(tmp_path / "slot"))
    slot.write([(0, b"abc")], 3)
    slot.open()
    put_in_place(Restored(found.manifest, slot, found.offsets), str(tmp_path / "folder"))
    assert (tmp_path / "folder" / "latest").read_bytes() == b"abc"
    assert os.readlink(tmp_path / "folder" / "latest") == "one.bin"
