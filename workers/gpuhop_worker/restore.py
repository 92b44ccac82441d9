"""From the store to this machine's memory: the newest checkpoint that verifies, and the reasons for those that do not.

Packs are read in segments, several at once; every block is decoded and checked against its hash before its bytes reach
the slot (format.md R20). What lies in memory at once beside the state: the segments in the cache.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpuhop_worker import checkpoint, codecs, slots, wire
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore, NotGranted, StoreFailure
from gpuhop_worker.wire import Manifest

SEGMENT = 8 * 1024 * 1024
CACHED = 6  # segments
READERS = 4


class NothingVerifies(Exception):
    """There are checkpoints, and none of them is whole: going on from zero would throw the work away."""


class Restored:
    """A verified checkpoint: its raw bytes lie in `slot`, each part's at `offsets[name or path]`."""

    def __init__(self, manifest: Manifest, slot: Slot, offsets: Dict[str, int]) -> None:
        self.manifest = manifest
        self.slot = slot
        self.offsets = offsets


def fetch_newest(
    parents: List[str],
    job: str,
    store: GrantStore,
    slot: Slot,
    say: Callable[[str], None],
    between: Callable[[], None] = lambda: None,
) -> Optional[Restored]:
    """Download and verify; falls back to the next older one, saying so (R32). None when the job has none yet.

    `between` is called between blocks; what it raises ends the restore. Raises NothingVerifies, and StoreFailure when
    the store itself is away (which proves nothing).
    """
    for key in parents:
        try:
            return _fetch(key, job, store, slot, between)
        except codecs.Lacking as lacking:
            raise NothingVerifies(f"checkpoint {_short(key)}: {lacking}") from lacking
        except (checkpoint.Damaged, wire.WireError, NotGranted) as error:
            say(f"checkpoint {_short(key)} cannot be used: {error}; falling back to the one before")
        except StoreFailure as failure:
            if not failure.missing:
                raise
            say(f"checkpoint {_short(key)} is incomplete: {failure}; falling back to the one before")
    if parents:
        raise NothingVerifies(f"none of the job's {len(parents)} checkpoints verifies")
    return None


def _fetch(key: str, job: str, store: GrantStore, slot: Slot, between: Callable[[], None]) -> Restored:
    between()
    manifest = Manifest.from_bytes(store.get(key))
    if manifest.job != job or wire.manifest_place(key) != (manifest.token, manifest.seq):
        raise wire.WireError(f"it belongs to another place (job {manifest.job} t{manifest.token:04d})")
    checkpoint.check_shape(manifest)
    try:
        return _fill(manifest, store, slot, between)
    except checkpoint.Damaged:
        return _fill(manifest, store, slot, between)  # once more: it may have been damaged on its way


def part_sizes(manifest: Manifest) -> List[Tuple[str, Dict[str, Any], int]]:
    """(name, part, raw bytes) of every part that has bytes of its own."""
    parts = [part for part in [*manifest.tensors, *manifest.files] if "alias" not in part]
    return [(checkpoint.part_name(p), p, sum(row[3] for row in manifest.blocks[p["first"] : p["last"]])) for p in parts]


def _fill(manifest: Manifest, store: GrantStore, slot: Slot, between: Callable[[], None]) -> Restored:
    parts = part_sizes(manifest)
    places, size = slots.layout([size for _, _, size in parts])
    slot.reserve(size)
    work: List[Tuple[List[Any], int]] = []  # (row, where its raw bytes go; -1: nowhere, it is only checked)
    used = {checkpoint.base_of(row) for row in manifest.blocks}
    for (_, part, _), place in zip(parts, places):
        used.update(range(part["first"], part["last"]))
        for row in manifest.blocks[part["first"] : part["last"]]:
            work.append((row, place))
            place += row[3]
    work += [(row, -1) for index, row in enumerate(manifest.blocks) if index not in used]
    # A reader takes all blocks that begin in one segment: so as many segments are on their way as there are readers.
    groups: Dict[Tuple[int, int], List[Tuple[List[Any], int]]] = {}
    for row, place in sorted(work, key=lambda item: (item[0][0], item[0][1])):
        groups.setdefault((row[0], row[1] // SEGMENT), []).append((row, place))
    reader = BlockReader(manifest, store)

    def some(group: List[Tuple[List[Any], int]]) -> None:
        for row, place in group:
            between()
            body = reader.block(row)
            if place >= 0:
                slots.copy(slot.view(place, row[3]), body)

    with ThreadPoolExecutor(READERS) as pool:
        futures = [pool.submit(some, group) for group in groups.values()]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
    return Restored(manifest, slot, {name: place for (name, _, _), place in zip(parts, places)})


class BlockReader:
    """Verified blocks of one manifest, straight from the store. Thread-safe."""

    def __init__(self, manifest: Manifest, store: Any) -> None:
        self._manifest = manifest
        self._store = store
        self._cache: OrderedDict[Tuple[int, int], Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def block(self, row: List[Any]) -> bytes:
        """The raw bytes of a row. Raises checkpoint.Damaged, codecs.Lacking, StoreFailure."""
        pack, offset, stored, raw, codec, digest = row[:6]
        key = str(self._manifest.packs[pack]["key"])
        base = checkpoint.base_of(row)
        under = self.block(self._manifest.blocks[base]) if base >= 0 else None
        data = self._read(pack, offset, stored)
        try:
            data = codecs.decode(codec, memoryview(data), raw, under)
        except ValueError as error:
            raise checkpoint.Damaged(key, f"the block at offset {offset} cannot be decoded: {error}") from error
        if len(data) != raw or hashlib.sha256(data).hexdigest() != digest:
            raise checkpoint.Damaged(key, f"the block at offset {offset} does not match its hash")
        return data

    def _read(self, pack: int, offset: int, length: int) -> bytes:
        pieces = []
        end = offset + length
        for number in range(offset // SEGMENT, (end + SEGMENT - 1) // SEGMENT):
            segment = self._segment(pack, number)
            start = number * SEGMENT
            pieces.append(segment[max(0, offset - start) : end - start])
        return b"".join(pieces)

    def _segment(self, pack: int, number: int) -> bytes:
        with self._lock:
            future = self._cache.get((pack, number))
            mine = future is None
            if future is None:
                future = self._cache[pack, number] = Future()
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
            self._cache.move_to_end((pack, number))
        if mine:
            try:
                future.set_result(self._get(pack, number * SEGMENT))
            except BaseException as error:
                with self._lock:
                    self._cache.pop((pack, number), None)
                future.set_exception(error)
        return future.result()

    def _get(self, pack: int, start: int) -> bytes:
        entry = self._manifest.packs[pack]
        stop = min(start + SEGMENT, entry["size"])
        data: bytes = self._store.get_range(str(entry["key"]), start, stop)
        if len(data) != stop - start:
            raise checkpoint.Damaged(entry["key"], f"it ends at byte {start + len(data)}, not at {entry['size']}")
        return data


def _short(key: str) -> str:
    return "/".join(key.split("/")[-2:])
