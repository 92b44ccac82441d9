"""Packs: what is written is read back, each block checked; sizes are those of docs/format.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop_worker import checkpoint
from gpuhop_worker.checkpoint import BLOCK, PACK, Damaged, PackReader, PackWriter
from gpuhop_worker.wire import Manifest


def manifest_of(writer: PackWriter, folder: Path) -> Manifest:
    """As after a download: packs lie under the last part of their keys."""
    writer.close()
    packs = []
    for pack in writer.packs:
        key = f"t0001/{pack['key']}"
        (folder / pack["key"]).rename(folder / checkpoint.local_name(key))
        packs.append({"key": key, "size": pack["size"]})
    return Manifest("j", 1, 1, 1, "api", packs, writer.blocks)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=50), max_size=12), st.integers(1, 20), st.integers(1, 60))
def test_what_is_written_is_read_back(tmp_path_factory: Any, bodies: list[bytes], block: int, pack: int) -> None:
    folder = tmp_path_factory.mktemp("p")
    writer = PackWriter(str(folder), pack_size=pack, block_size=block)
    spans = [writer.add(body) for body in bodies]
    manifest = manifest_of(writer, folder)
    checkpoint.verify(manifest, str(folder))
    reader = PackReader(manifest, str(folder))
    assert [reader.whole(*span) for span in spans] == bodies
    reader.close()
    assert all(0 < row[3] <= block for row in manifest.blocks)
    assert all(p["size"] < pack + block for p in manifest.packs)


def test_blocks_are_cut_every_4_mib_from_the_tensors_own_start(tmp_path: Path) -> None:
    assert (BLOCK, PACK) == (4_194_304, 64 * 1024 * 1024)
    writer = PackWriter(str(tmp_path))
    writer.add(b"x" * 10)
    first, last = writer.add(bytes(2 * BLOCK + 5))
    assert [row[1:4] for row in writer.blocks[first:last]] == [
        [10, BLOCK, BLOCK],
        [10 + BLOCK, BLOCK, BLOCK],
        [10 + 2 * BLOCK, 5, 5],
    ]
    writer.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "swapped"])
def test_every_damage_is_seen_before_a_byte_is_used(tmp_path: Path, damage: str) -> None:
    writer = PackWriter(str(tmp_path), pack_size=100, block_size=50)
    writer.add(os.urandom(500))
    manifest = manifest_of(writer, tmp_path)
    path = tmp_path / checkpoint.local_name(manifest.packs[2]["key"])
    body = path.read_bytes()
    if damage == "flip":
        path.write_bytes(body[:70] + bytes([body[70] ^ 1]) + body[71:])
    elif damage == "cut":
        path.write_bytes(body[:-1])
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(body[50:] + body[:50])
    with pytest.raises(Damaged):
        checkpoint.verify(manifest, str(tmp_path))
    reader = PackReader(manifest, str(tmp_path))
    got = []
    with pytest.raises(Damaged):
        for piece in reader.blocks(0, 10):
            got.append(piece)
    reader.close()
    assert len(got) in (4, 5)


def test_an_unknown_codec_is_refused_by_name(tmp_path: Path) -> None:
    writer = PackWriter(str(tmp_path))
    writer.add(b"body")
    manifest = manifest_of(writer, tmp_path)
    manifest.blocks[0][4] = 99
    with pytest.raises(Damaged, match="99"):
        checkpoint.verify(manifest, str(tmp_path))


def test_a_snapshot_without_its_draft_is_none(tmp_path: Path) -> None:
    writer = PackWriter(str(tmp_path))
    writer.add(b"body")
    assert checkpoint.read_draft(str(tmp_path)) is None
    (tmp_path / f"{checkpoint.DRAFT}.tmp-1").write_bytes(b'{"half')
    assert checkpoint.read_draft(str(tmp_path)) is None
    checkpoint.write_draft(str(tmp_path), writer, {"step": 3})
    draft = checkpoint.read_draft(str(tmp_path))
    assert draft is not None and (draft["step"], draft["packs"]) == (3, [{"key": "pack-1", "size": 4}])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_can_be_left_behind(tmp_path: Path) -> None:
    (tmp_path / "pack-1").symlink_to("/dev/full")
    writer = PackWriter(str(tmp_path))
    writer.add(b"small enough for the buffer")
    with pytest.raises(OSError):
        writer.close()
    writer.abandon()
    writer = PackWriter(str(tmp_path))
    writer.add(b"small enough for the buffer")
    writer.abandon()
