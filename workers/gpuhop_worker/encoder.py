"""From a raw snapshot to blocks and packs: what the store holds already is referred to, the rest is coded.

A block is known by the hash of its raw bytes. Equal to a block of the last committed checkpoint: its row is taken
over and nothing is shipped. Otherwise a trial on a sample chooses the codec, per tensor. The base of a difference is
the block in the same place of the same tensor of that checkpoint, whose raw bytes still lie in the other slot.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from gpuhop_worker import codecs, hashing
from gpuhop_worker.checkpoint import BLOCK, base_of, depth, part_name
from gpuhop_worker.files import Data
from gpuhop_worker.slots import Slot
from gpuhop_worker.wire import Manifest

PACK = 32 * 1024 * 1024  # stored bytes after which a pack is handed on
FIRST_PACK = 8 * 1024 * 1024  # the same for the first of a checkpoint: the link has work while the rest is coded
MOST_BASES = 4  # differences in a row; then a block is stored whole again
LEAST_SHARED = 4096  # a smaller block alone keeps no old pack alive: it is shipped again
SMALL = 1024  # parts below this are too small for a trial: stored raw
PIECE = 64 * 1024  # shorter pieces of a pack are joined: each is a write of its own on the way out


class Known:
    """The last committed checkpoint. `slot` holds its raw bytes, each part's at `offsets[name]`; None: not here."""

    def __init__(
        self, manifest: Manifest, slot: Optional[Slot] = None, offsets: Optional[Dict[str, int]] = None
    ) -> None:
        self.manifest = manifest
        self._slot = slot
        self._offsets = offsets or {}
        self.by_hash = {row[5]: i for i, row in enumerate(manifest.blocks)}
        self._rows = _rows_by_place(manifest, self._offsets)

    def place(self, name: str, start: int, size: int) -> Optional[Tuple[int, memoryview]]:
        """(row, raw bytes) of the block of `size` bytes at `start` of the part of this name, while it is there."""
        index = self._rows.get((name, start))
        if index is None or self._slot is None or self.manifest.blocks[index][3] != size:
            return None
        return index, self._slot.view(self._offsets[name] + start, size)


def _rows_by_place(manifest: Manifest, names: Iterable[str]) -> Dict[Tuple[str, int], int]:
    """(part, where a block begins in it) -> row, for the parts of these names."""
    found = {}
    parts = {part_name(part): part for part in [*manifest.tensors, *manifest.files] if "alias" not in part}
    for name in names:
        place = 0
        for index in range(parts[name]["first"], parts[name]["last"]) if name in parts else ():
            found[name, place] = index
            place += manifest.blocks[index][3]
    return found


class _Row:
    """A row on its way: pack and base are known by reference until all rows have their place."""

    def __init__(self, pack: int, rest: List[Any], base: Optional[_Row]) -> None:
        self.pack = pack
        self.rest = rest  # offset, stored, raw, codec, hash
        self.base = base


class Encoder:
    """One snapshot on its way. `emit(pieces)` takes a full pack away and returns its key in the store. Pieces that were
    not coded are views into the slot, not copies: they stay as they are until the snapshot has been shipped."""

    def __init__(
        self,
        known: Optional[Known],
        emit: Callable[[List[Data]], str],
        *,
        code: bool = True,
        block: int = BLOCK,
        pack: int = PACK,
    ) -> None:
        self._known = known
        self._emit = emit
        self._code = code and codecs.available()
        self._block = block
        self._pack = pack
        self.hash = hashing.best() if known is None else known.manifest.hash
        self._digest = hashing.digest(self.hash)
        self._body: List[Data] = []
        self._size = 0  # bytes in _body
        self._packs: List[Dict[str, Any]] = []
        self._pack_of: Dict[str, int] = {}  # key of an older pack -> its index here
        self._open: Optional[int] = None  # index of the pack that `_body` will be
        self._rows: List[_Row] = []
        self._old: Dict[int, _Row] = {}  # row of the known manifest -> the same row here
        self._here: Dict[str, _Row] = {}
        self.raw_bytes = 0
        self.shipped_bytes = 0

    def add(self, name: str, data: memoryview, width: int = 1, is_float: bool = False, at: int = 0) -> Tuple[int, int]:
        """One tensor, or a piece of a file that begins at byte `at` of it; returns its rows (first, last). `width`:
        bytes per element, 1 for no numbers."""
        first, codec = len(self._rows), None
        for start in range(0, len(data), self._block):
            raw = data[start : start + self._block]
            digest = self._digest(raw)
            row = self._find(digest, len(raw))
            if row is None:
                place = self._base(name, at + start, len(raw)) if width > 1 else None
                if codec is None:
                    codec = self._choose(raw, width, is_float, place)
                row = self._store(raw, digest, codec, width, is_float, place)
            self._rows.append(row)
            self.raw_bytes += len(raw)
        return first, len(self._rows)

    def finish(self) -> Tuple[List[Dict[str, Any]], List[List[Any]]]:
        """(packs, blocks) for the manifest. Rows that only serve as bases come last."""
        self._flush()
        place = {id(row): i for i, row in reversed(list(enumerate(self._rows)))}
        for row in self._rows:  # grows while it is walked: bases of bases
            if row.base is not None and id(row.base) not in place:
                place[id(row.base)] = len(self._rows)
                self._rows.append(row.base)
        blocks = [[row.pack, *row.rest, -1 if row.base is None else place[id(row.base)]] for row in self._rows]
        return self._packs, blocks

    # -- one block

    def _find(self, digest: str, size: int) -> Optional[_Row]:
        if digest in self._here:
            return self._here[digest]
        index = -1 if self._known is None else self._known.by_hash.get(digest, -1)
        if self._known is None or index < 0:
            return None
        pack = self._known.manifest.packs[self._known.manifest.blocks[index][0]]["key"]
        if size < LEAST_SHARED and pack not in self._pack_of:
            return None
        return self._import(self._known, index)

    def _import(self, known: Known, index: int) -> _Row:
        """A row of the known manifest, with the rows under it."""
        if index not in self._old:
            row = known.manifest.blocks[index]
            base = base_of(row)
            pack = self._older_pack(known.manifest.packs[row[0]])
            self._old[index] = _Row(pack, list(row[1:6]), None if base < 0 else self._import(known, base))
        return self._old[index]

    def _older_pack(self, pack: Dict[str, Any]) -> int:
        key = str(pack["key"])
        if key not in self._pack_of:
            self._pack_of[key] = len(self._packs)
            self._packs.append({"key": key, "size": pack["size"]})
        return self._pack_of[key]

    def _base(self, name: str, start: int, size: int) -> Optional[Tuple[int, memoryview]]:
        found = self._known.place(name, start, size) if self._known is not None else None
        if found is None or self._known is None or depth(self._known.manifest.blocks, found[0]) >= MOST_BASES - 1:
            return None
        return found

    def _choose(self, raw: memoryview, width: int, is_float: bool, place: Optional[Tuple[int, memoryview]]) -> int:
        if not self._code or len(raw) < SMALL or len(raw) % width:  # a file may end in the middle of a number
            return codecs.RAW
        return codecs.choose(raw, width, is_float, place[1] if place else None)

    def _store(
        self,
        raw: memoryview,
        digest: str,
        codec: int,
        width: int,
        is_float: bool,
        place: Optional[Tuple[int, memoryview]],
    ) -> _Row:
        base: Optional[_Row] = None
        if codec == codecs.DIFF and place is None:
            codec = codecs.PLANES  # the chain has become long enough: whole again
        if len(raw) % max(1, width):
            codec = codecs.RAW
        under = place[1] if place is not None and codec == codecs.DIFF else None
        pieces = codecs.encode(codec, raw, width, is_float, under)
        stored = codecs.size_of(pieces)
        if codec and stored > codecs.GAIN * len(raw):
            codec, pieces, stored = codecs.RAW, [raw], len(raw)
        if codec == codecs.DIFF and place is not None and self._known is not None:
            base = self._import(self._known, place[0])
        if self._open is None:
            self._open = len(self._packs)
            self._packs.append({"key": "", "size": 0})
        row = _Row(self._open, [self._size, stored, len(raw), codec, digest], base)
        self._append(pieces, stored)
        self._here[digest] = row
        return row

    def _append(self, pieces: List[Data], size: int) -> None:
        for piece in pieces:
            if len(piece) >= PIECE:
                self._body.append(piece)
            elif self._body and isinstance(self._body[-1], bytearray):
                self._body[-1] += piece
            else:
                self._body.append(bytearray(piece))
        self._size += size
        if self._size >= (self._pack if self.shipped_bytes else min(self._pack, FIRST_PACK)):
            self._flush()

    def _flush(self) -> None:
        if self._open is None:
            return
        body, size = self._body, self._size
        self._body, self._size = [], 0
        self._packs[self._open].update(key=self._emit(body), size=size)
        self.shipped_bytes += size
        self._open = None
