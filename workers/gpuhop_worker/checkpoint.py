"""Checkpoints on this machine's disk: blocks into packs, a draft that becomes a manifest, verified reading.

docs/format.md sections 3 and 4. Nothing here knows torch, and nothing here talks to the store.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from gpuhop_worker import files, wire
from gpuhop_worker.codec import StateError
from gpuhop_worker.wire import Manifest

BLOCK = 4 * 1024 * 1024
DRAFT = "draft.json"
SNAPSHOT = re.compile(r"^snap-(\d+)$")  # name of a snapshot in the spool
MOST_CHAIN = 16  # rows in a chain of differences that a reader follows


class Damaged(Exception):
    """Stored bytes that do not verify. `key`: the pack."""

    def __init__(self, key: str, fact: str) -> None:
        super().__init__(f"{key}: {fact}")
        self.key = key


def write_snapshot(folder: str, body: Dict[str, Any]) -> None:
    """Make a snapshot whose bytes lie in a slot complete. Raises StateError, OSError."""
    text = json.dumps(body).encode("ascii")
    check_size(len(text))
    files.write_atomic(os.path.join(folder, DRAFT), text)


def check_size(size: int) -> None:
    """Refuse a state of so many bytes of JSON, before a manifest is written that no reader takes (format.md R4). The
    manifest adds rows, of about the size of what it has."""
    most = wire.MAX_DOCUMENT // 2
    if size > most:
        fact = f"the state that is not in tensors or arrays is {size / 1e6:.0f} MB of JSON, over {most / 1e6:.0f} MB"
        raise StateError(f"{fact}: keep large lists of numbers as arrays")


def read_draft(folder: str) -> Optional[Dict[str, Any]]:
    """The draft of a complete snapshot, None while it is being written."""
    try:
        draft: Dict[str, Any] = json.loads(files.read(os.path.join(folder, DRAFT)))
    except FileNotFoundError:
        return None
    return draft


def whole_snapshots(spool: str, after: str = "") -> List[Tuple[str, Dict[str, Any]]]:
    """(name, draft) of every complete snapshot that waits, oldest first. `after`: the last one that was committed; what
    is not newer is left over from a disk that would not remove it, and its slot may hold another state by now."""
    names = sorted(name for name in os.listdir(spool) if SNAPSHOT.match(name) and name > after)
    found = [(name, read_draft(os.path.join(spool, name))) for name in names]
    return [(name, draft) for name, draft in found if draft is not None]


def check_shape(manifest: Manifest) -> None:
    """Refuse a manifest whose numbers or paths do not fit together, before anything is allocated. Raises Damaged."""
    name = f"manifest {manifest.seq} of t{manifest.token:04d}"
    try:
        if not isinstance(manifest.hash, str):
            raise TypeError("its hash has no name")
        _check_rows(manifest, name)
        _check_paths(manifest.files)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(name, f"it is not well formed: {error!r}") from error


def _check_rows(manifest: Manifest, name: str) -> None:
    for index, row in enumerate(manifest.blocks):
        if len(row) not in (6, 7) or not 0 <= row[0] < len(manifest.packs) or not 0 < row[3] <= BLOCK:
            raise Damaged(name, f"a block row is out of range: {row[:5]!r}")
        if not _bases_fit(manifest.blocks, index):
            raise Damaged(name, f"the bases of a block row do not end, or have another length: {row[:5]!r}")
        if row[1] < 0 or row[1] + row[2] > manifest.packs[row[0]]["size"]:
            raise Damaged(name, f"a block lies outside its pack: {row[:5]!r}")
    for part in list(manifest.tensors) + list(manifest.files):
        if "alias" not in part and not 0 <= part["first"] <= part["last"] <= len(manifest.blocks):
            raise Damaged(name, f"{part.get('name') or part.get('path')} refers to blocks that do not exist")
    for part in manifest.files:
        if "link" not in part and sum(row[3] for row in manifest.blocks[part["first"] : part["last"]]) != part["size"]:
            raise Damaged(name, f"the blocks of {part['path']} are not its {part['size']} bytes")
    names = {part["name"] for part in manifest.tensors if "alias" not in part}
    for part in manifest.tensors:
        if part.get("alias", part["name"]) not in names:
            raise Damaged(name, f"{part['name']} is another name of {part['alias']}, which is not there")


def part_name(part: Dict[str, Any]) -> str:
    """What a tensor or a file is called."""
    return str(part["name"] if "name" in part else part["path"])


def base_of(row: List[Any]) -> int:
    """Index of the row that a difference refers to, -1 for none. Rows of format 1 have none."""
    return int(row[6]) if len(row) > 6 else -1


def depth(rows: List[List[Any]], index: int) -> int:
    """How many differences lie under a row."""
    base, count = base_of(rows[index]), 0
    while base >= 0:
        base, count = base_of(rows[base]), count + 1
    return count


def _bases_fit(rows: List[List[Any]], index: int) -> bool:
    """A chain of differences is short, ends at a row that stands alone, and all its rows have the same length."""
    for _ in range(MOST_CHAIN):
        base = base_of(rows[index])
        if base < 0:
            return True
        if base >= len(rows) or rows[base][3] != rows[index][3]:
            return False
        index = base
    return False


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
