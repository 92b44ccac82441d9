"""From the spool to the store: packs first, metrics up to the step, the manifest last (format.md R30)."""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from gpuhop_worker import checkpoint, containers, retention, wire
from gpuhop_worker.encoder import Encoder, Known
from gpuhop_worker.meter import Meter
from gpuhop_worker.restore import Restored
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.uploads import OtherBytes, Uploads
from gpuhop_worker.wire import Grant, Manifest

FAST_LINK = 150e6  # bytes per second; above, coding takes longer than it saves (facts on checkpoints, section 8)


class GrantUsedUp(Exception):
    """The grant has no key left for another checkpoint: the session must end and get a new one."""


class _Pending:
    """A snapshot on its way. Its numbers stay its own, so that a retry sends equal bytes to equal keys (R12)."""

    def __init__(self, name: str, seq: int, first_pack: int, code: bool) -> None:
        self.name = name
        self.seq = seq
        self.first_pack = first_pack
        self.code = code
        self.arrived: Set[str] = set()  # packs
        self.keys: List[str] = []  # of all packs
        self.coded: Optional[Dict[str, Any]] = None  # hash, packs, blocks, tensors, files; once all packs have arrived
        self.manifest: Optional[Manifest] = None


class Shipper:
    """Ships complete snapshots of one session, the newest first; older ones that wait behind it are dropped.

    `before_commit` runs between packs and manifest (it makes the metrics durable and returns their line count).
    `measured`: step -> what the job's metric was at or before it, for the best checkpoints.
    """

    def __init__(
        self,
        grant: Grant,
        store: GrantStore,
        spool: str,
        slots: SlotKeeper,
        before_commit: Callable[[], int],
        may_prune: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        measured: Callable[[int], Optional[Tuple[int, float]]] = lambda step: None,
    ) -> None:
        self._grant = grant
        self._store = store
        self._spool = spool
        self._slots = slots
        self._parent: Optional[List[int]] = None
        self._start_step = 0
        self._before_commit = before_commit
        self._may_prune = may_prune
        self._clock = clock
        self._measured = measured
        self._pack = 0  # numbers given out so far
        self._seq = 0
        self._pending: Optional[_Pending] = None
        self._known: Optional[Known] = None
        self._kept: List[
            Tuple[str, List[str], Manifest]
        ] = []  # own (manifest key, own pack keys, manifest), oldest first
        self._lock = threading.Lock()
        self._link = 0.0  # bytes per second, as measured
        self.last: Optional[Tuple[str, Dict[str, Any]]] = None  # (name, draft) of the last committed snapshot
        self.saved_step = 0
        self.saved_seq = 0
        self.ship_s = 0.0  # that the last checkpoint took
        self.meter = Meter()  # of what is on its way
        self.raw_bytes = 0  # of the last checkpoint
        self.shipped_bytes = 0

    def set_parent(self, restored: Restored) -> None:
        manifest = restored.manifest
        self._parent = [manifest.token, manifest.seq]
        self._start_step = manifest.step
        self._known = Known(manifest, restored.slot, restored.offsets)

    @property
    def progressed(self) -> bool:
        """True when this session made something durable beyond what it started from."""
        return self.saved_seq > 0 and (self._grant.mode == "folder" or self.saved_step > self._start_step)

    def ship_newest(self) -> bool:
        """Ship the newest complete snapshot, if any. Raises StoreFailure, GrantUsedUp; the snapshot stays then."""
        with self._lock:
            complete = checkpoint.whole_snapshots(self._spool, self.last[0] if self.last is not None else "")
            if not complete:
                return False
            name, draft = complete[-1]
            began = time.monotonic()
            self._ship(name, draft)
            self.ship_s = time.monotonic() - began
            for older, _ in complete:
                shutil.rmtree(os.path.join(self._spool, older), ignore_errors=True)
            self._prune()
            return True

    @property
    def checkpoints_left(self) -> int:
        """How many more checkpoints of the last one's size the grant has keys for."""
        return self._checkpoints(self._pack, self._seq)

    @property
    def checkpoints_in_all(self) -> int:
        """The same of the whole grant."""
        return self._checkpoints(0, 0)

    def _checkpoints(self, packs: int, manifests: int) -> int:
        per = max(1, len(self._kept[-1][1])) if self._kept else 1
        room = sum(1 for _ in self._granted("pack", packs)) // per
        return min(room, sum(1 for _ in self._granted("manifest", manifests)))

    def _granted(self, what: str, used: int) -> Iterator[int]:
        number = used + 1
        while self._store.granted(self._key(what, number), "put"):
            yield number
            number += 1

    def _key(self, what: str, number: int) -> str:
        return wire.numbered_key(self._grant.job, self._grant.token, what, number)

    def _next_key(self, what: str, number: int) -> str:
        key = self._key(what, number)
        if not self._store.granted(key, "put"):
            raise GrantUsedUp("no key is left for another checkpoint in this grant")
        return key

    # ------------------------------------------------------------ one checkpoint

    def _ship(self, name: str, draft: Dict[str, Any]) -> None:
        if self._pending is None or self._pending.name != name:
            # Numbers are not used again for another snapshot, even when this one never lands: a write whose answer
            # was lost may still have happened (R12).
            self._next_key("manifest", self._seq + 1)
            self._seq += 1
            self._pending = _Pending(name, self._seq, self._pack + 1, self._link < FAST_LINK)
        pending = self._pending
        if pending.coded is None:
            try:
                pending.coded = self._encode(pending, draft)
            except OtherBytes:
                self._pending = None  # those keys hold what nobody wrote: the next try takes others
                raise
        lines = self._before_commit()
        if pending.manifest is None:
            pending.manifest = self._manifest(pending, draft, lines)
        self._store.put_once(self._key("manifest", pending.seq), pending.manifest.to_bytes())
        self._committed(pending, draft)

    def _committed(self, pending: _Pending, draft: Dict[str, Any]) -> None:
        assert pending.manifest is not None
        self._pending = None
        self._kept.append((self._key("manifest", pending.seq), pending.keys, pending.manifest))
        offsets = {checkpoint.part_name(part): part["offset"] for part in _parts(draft)}
        self._known = Known(pending.manifest, self._slots.slot(draft["slot"]), offsets)
        self.last = (pending.name, draft)
        self.saved_step, self.saved_seq = draft["step"], pending.seq

    def _encode(self, pending: _Pending, draft: Dict[str, Any]) -> Dict[str, Any]:
        """Code and upload at the same time. Raises StoreFailure, GrantUsedUp."""
        slot = self._slots.opened(draft["slot"])
        self.meter.begin("shipping step {}".format(draft["step"]), sum(part["size"] for part in _parts(draft)))

        def key(number: int) -> str:
            self._pack = max(self._pack, pending.first_pack + number)
            return self._next_key("pack", pending.first_pack + number)

        try:
            with Uploads(self._store, key, pending.arrived, read_back=self._grant.read_back) as uploads:
                encoder = Encoder(self._known, uploads.add, code=pending.code)
                tensors = [self._tensor(encoder, slot, entry) for entry in draft.get("tensors", [])]
                found = [self._file(encoder, slot, entry) for entry in draft.get("files", [])]
                packs, blocks = encoder.finish()
        finally:
            self.meter.end()
        pending.keys = uploads.keys
        self._link = uploads.rate or self._link
        self.raw_bytes, self.shipped_bytes = encoder.raw_bytes, encoder.shipped_bytes
        return {"hash": encoder.hash, "packs": packs, "blocks": blocks, "tensors": tensors, "files": found}

    def _tensor(self, encoder: Encoder, slot: Any, entry: Dict[str, Any]) -> Dict[str, Any]:
        if "alias" in entry:
            return entry
        width, is_float = containers.number_of(entry["dtype"])
        first, last = encoder.add(entry["name"], slot.view(entry["offset"], entry["size"]), width, is_float)
        self.meter.add(entry["size"])
        kept = {k: v for k, v in entry.items() if k not in ("offset", "size")}
        return dict(kept, first=first, last=last)

    def _file(self, encoder: Encoder, slot: Any, entry: Dict[str, Any]) -> Dict[str, Any]:
        kept = {k: v for k, v in entry.items() if k != "offset"}
        if "link" in entry:
            return dict(kept, first=0, last=0)
        data = slot.view(entry["offset"], entry["size"])
        first = last = None
        for start, stop, width, is_float in containers.pieces(entry["path"], data):
            begin, last = encoder.add(entry["path"], data[start:stop], width, is_float, start)
            first = begin if first is None else first
            self.meter.add(stop - start)
        return dict(kept, first=first or 0, last=last or 0)

    def _manifest(self, pending: _Pending, draft: Dict[str, Any], lines: int) -> Manifest:
        assert pending.coded is not None
        return Manifest(
            job=self._grant.job,
            token=self._grant.token,
            seq=pending.seq,
            step=draft["step"],
            mode=self._grant.mode,
            **pending.coded,
            state=draft.get("state"),
            parent=self._parent,
            fingerprint=draft["fingerprint"],
            metrics_lines=lines,
            created_at=self._clock(),
        )

    def _prune(self) -> None:
        """Own checkpoints that no rule keeps, the oldest first: manifest, then packs that no kept one names (R34). What
        fails is swept by the scheduler later."""
        own = [manifest for _, _, manifest in self._kept]
        saved = [retention.Saved((one.token, one.seq), one.step, self._measured(one.step)) for one in own]
        stay = retention.chosen(saved, retention.of_grant(self._grant))
        for going in [row for row in self._kept if (row[2].token, row[2].seq) not in stay]:
            if not self._may_prune():
                return
            self._kept.remove(going)
            self._remove(*going)

    def _remove(self, manifest_key: str, keys: List[str], _: Manifest) -> None:
        gone = []
        for key in keys:
            heirs = (own for _, own, one in self._kept if any(pack["key"] == key for pack in one.packs))
            heir = next(heirs, None)
            if heir is None:
                gone.append(key)
            else:  # a kept checkpoint refers to it: it goes when that one goes
                heir.append(key)
        try:
            for key in [manifest_key, *gone]:
                if not self._may_prune():  # the machine may have slept since the last one
                    return
                self._store.delete(key)
        except StoreFailure:
            return


def _parts(draft: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [part for part in [*draft.get("tensors", []), *draft.get("files", [])] if "offset" in part]
