"""From the store to this machine's memory: the newest checkpoint that verifies, and the reasons for those that do not.

Each stored byte is read once, in runs of neighbouring blocks, several at a time; every block is decoded and checked
against its hash before its bytes reach the slot (format.md R20). Differences come after what they differ from, which
then lies in the slot already. What lies in memory beside the state: a run and a block for each reader.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple

from gpuhop_worker import checkpoint, codecs, hashing, slots, wire
from gpuhop_worker.meter import Meter
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore, NotGranted, StoreFailure
from gpuhop_worker.wire import Manifest

RUN = 8 * 1024 * 1024  # stored bytes that one request asks for
GAP = 64 * 1024  # bytes between two blocks that are read along, rather than asked for around
READERS = 4


class NothingVerifies(Exception):
    """There are checkpoints, and none of them is whole: going on from zero would throw the work away."""


class CannotRead(NothingVerifies):
    """The newest may be whole, and another machine can tell: this one lacks what its codec or its hash needs."""


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
    meter: Optional[Meter] = None,
) -> Optional[Restored]:
    """Download and verify; falls back to the next older one, saying so (R32). None when the job has none yet.

    `between` is called between requests; what it raises ends the restore. `meter` tells how far it is. Raises
    NothingVerifies (CannotRead), and StoreFailure when the store itself is away (which proves nothing).
    """
    for key in parents:
        try:
            return _fetch(key, job, store, slot, between, meter or Meter())
        except codecs.Lacking as lacking:
            raise CannotRead(f"checkpoint {_short(key)}: {lacking}") from lacking
        except (checkpoint.Damaged, wire.WireError, NotGranted) as error:
            say(f"checkpoint {_short(key)} cannot be used: {error}; falling back to the one before")
        except StoreFailure as failure:
            if not failure.missing:
                raise
            say(f"checkpoint {_short(key)} is incomplete: {failure}; falling back to the one before")
    if parents:
        raise NothingVerifies(f"none of the job's {len(parents)} checkpoints verifies")
    return None


def _fetch(key: str, job: str, store: GrantStore, slot: Slot, between: Callable[[], None], meter: Meter) -> Restored:
    between()
    manifest = Manifest.from_bytes(store.get(key))
    if manifest.job != job or wire.manifest_place(key) != (manifest.token, manifest.seq):
        raise wire.WireError(f"it belongs to another place (job {manifest.job} t{manifest.token:04d})")
    checkpoint.check_shape(manifest)
    meter.begin(f"restoring step {manifest.step}", sum(row[2] for row in manifest.blocks))
    try:
        return fill(manifest, store, slot, between, meter)
    finally:
        meter.end()


def part_sizes(manifest: Manifest) -> List[Tuple[str, Dict[str, Any], int]]:
    """(name, part, raw bytes) of every part that has bytes of its own."""
    parts = [part for part in [*manifest.tensors, *manifest.files] if "alias" not in part]
    return [(checkpoint.part_name(p), p, sum(row[3] for row in manifest.blocks[p["first"] : p["last"]])) for p in parts]


def fill(
    manifest: Manifest,
    store: BlockSource,
    slot: Slot,
    between: Callable[[], None] = lambda: None,
    meter: Optional[Meter] = None,
) -> Restored:
    """All blocks of a checkpoint, verified, and the parts' bytes in the slot. Raises checkpoint.Damaged,
    codecs.Lacking, what the store raises, and OSError when there is no space."""
    parts = part_sizes(manifest)
    places, size = slots.layout([size for _, _, size in parts])
    starts = {name: place for (name, _, _), place in zip(parts, places)}
    slot.write([], size)
    slot.open()
    reader, meter = BlockReader(manifest, store), meter or Meter()
    with ThreadPoolExecutor(READERS) as pool:
        for wave in _waves(manifest, _targets(manifest, starts)):
            futures = [pool.submit(_one_run, reader, run, slot, size, between, meter) for run in _runs(wave)]
            try:
                for future in futures:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()
    return Restored(manifest, slot, starts)


def _targets(manifest: Manifest, starts: Dict[str, int]) -> Dict[int, List[int]]:
    """Row -> where in the slot its raw bytes are wanted: as a part's, or first as what a part's differ from. A row that
    is wanted nowhere is only checked."""
    found: Dict[int, List[int]] = {index: [] for index in range(len(manifest.blocks))}
    for name, part, _ in part_sizes(manifest):
        place = starts[name]
        for index in range(part["first"], part["last"]):
            under = index
            while under >= 0:
                found[under].append(place)
                under = checkpoint.base_of(manifest.blocks[under])
            place += manifest.blocks[index][3]
    return found


Wanted = Tuple[List[Any], List[int]]  # a row, and the places of its raw bytes


def _waves(manifest: Manifest, targets: Dict[int, List[int]]) -> Iterator[List[Wanted]]:
    """Rows that stand alone, then those that differ from them, and so on; each wave in the order of the store."""
    waves: Dict[int, List[Wanted]] = {}
    for index, places in targets.items():
        waves.setdefault(checkpoint.depth(manifest.blocks, index), []).append((manifest.blocks[index], places))
    for depth in sorted(waves):
        yield sorted(waves[depth], key=lambda wanted: (wanted[0][0], wanted[0][1]))


def _runs(wave: List[Wanted]) -> Iterator[List[Wanted]]:
    """Neighbours in one pack, of about RUN stored bytes."""
    run: List[Wanted] = []
    for wanted in wave:
        pack, offset, stored = wanted[0][:3]
        if run:
            first, last = run[0][0], run[-1][0]
            apart = pack != first[0] or offset - (last[1] + last[2]) > GAP
            if apart or offset + stored - first[1] > RUN:
                yield run
                run = []
        run.append(wanted)
    if run:
        yield run


def _one_run(
    reader: BlockReader, run: List[Wanted], slot: Slot, size: int, between: Callable[[], None], meter: Meter
) -> None:
    left = list(run)
    for last_try in (False, True):
        between()
        try:
            slot.write(_raw(reader, left, slot), size)
        except checkpoint.Damaged:  # perhaps on its way only
            if last_try:
                raise
    meter.add(sum(row[2] for row, _ in run))


def _raw(reader: BlockReader, left: List[Wanted], slot: Slot) -> Iterator[Tuple[int, memoryview]]:
    """(place in the slot, raw bytes) of the blocks of a run; what is done leaves `left`."""
    if not left:
        return
    first, last = left[0][0], left[-1][0]
    data = reader.stored(first[0], first[1], last[1] + last[2])
    while left:
        row, places = left[0]
        start = row[1] - first[1]
        if places and checkpoint.base_of(row) >= 0:
            raw = reader.decoded(row, data[start : start + row[2]], slot.view(places[0], row[3]))
        else:
            raw = reader.decoded(row, data[start : start + row[2]], reader.base(row))
        for place in places:
            yield place, raw
        # Not again: what it differs from has been overwritten by it.
        del left[0]


class BlockSource(Protocol):
    """What blocks are read from: a session's store, the scheduler's."""

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes start..stop-1; fewer where the object ends before."""


class BlockReader:
    """Verified blocks of one manifest. Thread-safe. Raises codecs.Lacking."""

    def __init__(self, manifest: Manifest, store: BlockSource) -> None:
        self._manifest = manifest
        self._store = store
        self._digest = hashing.digest(manifest.hash)

    def stored(self, pack: int, start: int, stop: int) -> memoryview:
        """Bytes start..stop-1 of a pack. Raises checkpoint.Damaged when it ends before, and StoreFailure."""
        entry = self._manifest.packs[pack]
        data = self._store.get_range(str(entry["key"]), start, stop)
        if len(data) != stop - start:
            raise checkpoint.Damaged(entry["key"], f"it ends at byte {start + len(data)}, not at {entry['size']}")
        return memoryview(data)

    def decoded(self, row: List[Any], stored: memoryview, base: Optional[Any]) -> memoryview:
        """The raw bytes of a row from its stored ones. Raises checkpoint.Damaged, codecs.Lacking."""
        pack, offset, _, length, codec, digest = row[:6]
        key = str(self._manifest.packs[pack]["key"])
        try:
            raw = codecs.decode(codec, stored, length, base)
        except ValueError as error:
            raise checkpoint.Damaged(key, f"the block at offset {offset} cannot be decoded: {error}") from error
        if self._digest(raw) != digest:
            raise checkpoint.Damaged(key, f"the block at offset {offset} does not match its hash")
        return raw

    def block(self, row: List[Any]) -> memoryview:
        """The raw bytes of a row, with what it differs from read first. Raises as the two above."""
        return self.decoded(row, self.stored(row[0], row[1], row[1] + row[2]), self.base(row))

    def base(self, row: List[Any]) -> Optional[memoryview]:
        """The raw bytes of what a row differs from."""
        index = checkpoint.base_of(row)
        return self.block(self._manifest.blocks[index]) if index >= 0 else None


def _short(key: str) -> str:
    return "/".join(key.split("/")[-2:])
