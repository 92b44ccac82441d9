"""Checkpoints on this machine's disk: blocks into packs, a draft that becomes a manifest, verified reading.

docs/format.md sections 3 and 4. Nothing here knows torch, and nothing here talks to the store.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from gpuhop_worker import files
from gpuhop_worker.wire import Manifest

BLOCK = 4 * 1024 * 1024
PACK = 64 * 1024 * 1024
CODEC_RAW = 0
DRAFT = "draft.json"

Bytes = Union[bytes, bytearray, memoryview]


class Damaged(Exception):
    """Stored bytes that do not verify. `key`: the pack."""

    def __init__(self, key: str, fact: str) -> None:
        super().__init__(f"{key}: {fact}")
        self.key = key


class PackWriter:
    """Collects blocks into numbered pack files of one folder (pack-1, pack-2, ...)."""

    def __init__(self, folder: str, pack_size: int = PACK, block_size: int = BLOCK) -> None:
        self._folder = folder
        self._pack_size = pack_size
        self._block_size = block_size
        self._out: Optional[Any] = None
        self._offset = 0
        self.packs: List[Dict[str, Any]] = []
        self.blocks: List[List[Any]] = []

    def add(self, data: Bytes) -> Tuple[int, int]:
        """Store the bytes; returns the rows (first, last) of `blocks` that hold them."""
        view = memoryview(data).cast("B")
        first = len(self.blocks)
        for start in range(0, len(view), self._block_size):
            self._block(view[start : start + self._block_size])
        return first, len(self.blocks)

    def _block(self, raw: memoryview) -> None:
        if self._out is None or self._offset >= self._pack_size:
            self._next_pack()
        assert self._out is not None
        digest = hashlib.sha256(raw).hexdigest()
        self._out.write(raw)
        self.blocks.append([len(self.packs) - 1, self._offset, len(raw), len(raw), CODEC_RAW, digest])
        self._offset += len(raw)
        self.packs[-1]["size"] = self._offset

    def _next_pack(self) -> None:
        self.close()
        name = f"pack-{len(self.packs) + 1}"
        self._out = open(os.path.join(self._folder, name), "wb")  # noqa: SIM115  closed by close()
        self._offset = 0
        self.packs.append({"key": name, "size": 0})

    def close(self) -> None:
        out, self._out = self._out, None
        if out is not None:
            out.close()

    def abandon(self) -> None:
        """Close what is open although it cannot be completed (a full disk refuses the rest of the buffer too)."""
        try:
            self.close()
        except OSError:
            pass


def write_draft(folder: str, writer: PackWriter, body: Dict[str, Any]) -> None:
    """Make a snapshot complete: the draft is renamed into place after all its packs are closed."""
    writer.close()
    draft = dict(body, packs=writer.packs, blocks=writer.blocks)
    files.write_atomic(os.path.join(folder, DRAFT), json.dumps(draft).encode("ascii"))


def read_draft(folder: str) -> Optional[Dict[str, Any]]:
    """The draft of a complete snapshot, None while it is being written."""
    try:
        draft: Dict[str, Any] = json.loads(files.read(os.path.join(folder, DRAFT)))
    except FileNotFoundError:
        return None
    return draft


class PackReader:
    """Verified reads from packs that lie in a local folder under the last part of their keys."""

    def __init__(self, manifest: Manifest, folder: str) -> None:
        self._manifest = manifest
        self._folder = folder
        self._open: Dict[int, Any] = {}

    def blocks(self, first: int, last: int) -> Iterator[bytes]:
        """The raw bytes of rows first..last-1, each checked before it is yielded (R20). Raises Damaged."""
        for row in self._manifest.blocks[first:last]:
            yield self._read(row)

    def whole(self, first: int, last: int) -> bytes:
        return b"".join(self.blocks(first, last))

    def _read(self, row: List[Any]) -> bytes:
        pack, offset, stored, raw, codec, digest = row
        key = str(self._manifest.packs[pack]["key"])
        if codec != CODEC_RAW:
            raise Damaged(key, f"block codec {codec!r} is not known to this worker")
        data: bytes = self._pread(pack, key, offset, stored)
        if len(data) != raw or hashlib.sha256(data).hexdigest() != digest:
            raise Damaged(key, f"the block at offset {offset} does not match its hash")
        return data

    def _pread(self, pack: int, key: str, offset: int, length: int) -> bytes:
        if pack not in self._open:
            try:
                self._open[pack] = open(os.path.join(self._folder, local_name(key)), "rb")  # noqa: SIM115
            except FileNotFoundError as error:
                raise Damaged(key, "the pack is missing") from error
        source = self._open[pack]
        source.seek(offset)
        data: bytes = source.read(length)
        return data

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()


def local_name(key: str) -> str:
    """A pack's file name in a local folder: unique over sessions (t0007-pack-000001)."""
    return "-".join(key.split("/")[-2:])


def verify(manifest: Manifest, folder: str) -> None:
    """Check every block of a downloaded checkpoint. Raises Damaged at the first that fails."""
    check_shape(manifest)
    reader = PackReader(manifest, folder)
    try:
        for _ in reader.blocks(0, len(manifest.blocks)):
            pass
    finally:
        reader.close()


def check_shape(manifest: Manifest) -> None:
    """Refuse a manifest whose numbers or paths do not fit together, before anything is allocated. Raises Damaged."""
    name = f"manifest {manifest.seq} of t{manifest.token:04d}"
    try:
        _check_rows(manifest, name)
        _check_paths(manifest.files)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(name, f"it is not well formed: {error!r}") from error


def _check_rows(manifest: Manifest, name: str) -> None:
    for row in manifest.blocks:
        if len(row) != 6 or not 0 <= row[0] < len(manifest.packs) or not 0 < row[3] <= BLOCK:
            raise Damaged(name, f"a block row is out of range: {row[:5]!r}")
        if row[1] < 0 or row[1] + row[2] > manifest.packs[row[0]]["size"]:
            raise Damaged(name, f"a block lies outside its pack: {row[:5]!r}")
    for part in list(manifest.tensors) + list(manifest.files):
        if "alias" not in part and not 0 <= part["first"] <= part["last"] <= len(manifest.blocks):
            raise Damaged(name, f"{part.get('name') or part.get('path')} refers to blocks that do not exist")
    names = {part["name"] for part in manifest.tensors if "alias" not in part}
    for part in manifest.tensors:
        if part.get("alias", part["name"]) not in names:
            raise Damaged(name, f"{part['name']} is another name of {part['alias']}, which is not there")


def _check_paths(entries: List[Dict[str, Any]]) -> None:
    """Raises ValueError for a path that leaves the folder, by itself or through a link, or that is there twice."""
    leaves = {entry["path"] for entry in entries}
    if len(leaves) != len(entries):
        raise ValueError("a path is there twice")
    for entry in entries:
        parts = entry["path"].split("/")
        if any(part in ("", ".", "..") for part in parts) or "\x00" in entry["path"]:
            raise ValueError(f"{entry['path']!r} is no relative path")
        if any("/".join(parts[:i]) in leaves for i in range(1, len(parts))):
            raise ValueError(f"{entry['path']!r} lies below a file or a link")
        if "link" in entry and not link_stays(entry["path"], entry["link"]):
            raise ValueError(f"the link {entry['path']!r} leaves its folder")


def link_stays(path: str, target: str) -> bool:
    """True when the link at `path` points to a place in the same folder. A target that climbs after it has gone down
    could climb out through another link, so that is refused too."""
    parts = target.split("/")
    climbs = len(list(itertools.takewhile(lambda part: part == "..", parts)))
    plain = all(part not in ("", ".", "..") for part in parts[climbs:]) and "\x00" not in target
    return plain and climbs <= path.count("/")
