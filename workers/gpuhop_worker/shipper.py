"""From the spool to the store: packs first, metrics up to the step, the manifest last (format.md R30)."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpuhop_worker import checkpoint, files, wire
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.wire import Grant, Manifest

_SNAP = re.compile(r"^snap-\d+$")


class GrantUsedUp(Exception):
    """The grant has no key left for another checkpoint: the session must end and get a new one."""


class _Pending:
    """A snapshot on its way: the numbers it was given, and its manifest once made (a retry sends equal bytes)."""

    def __init__(self, name: str, packs: List[str], seq: int) -> None:
        self.name = name
        self.packs = packs
        self.seq = seq
        self.manifest: Optional[Manifest] = None


class Shipper:
    """Ships complete snapshots of one session, the newest first; older ones that wait behind it are dropped.

    `before_commit` runs between packs and manifest (it makes the metrics durable and returns their line count).
    `may_prune`: asked before anything is removed; a session that lost its token must not remove what its successor
    may be reading.
    """

    def __init__(
        self,
        grant: Grant,
        store: GrantStore,
        spool: str,
        before_commit: Callable[[], int],
        may_prune: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._grant = grant
        self._store = store
        self._spool = spool
        self._parent: Optional[List[int]] = None
        self._start_step = 0
        self._before_commit = before_commit
        self._may_prune = may_prune
        self._clock = clock
        self._pack = 0  # numbers given out so far
        self._seq = 0
        self._pending: Optional[_Pending] = None
        self._kept: List[Tuple[str, List[str]]] = []  # own (manifest key, pack keys), oldest first
        self._lock = threading.Lock()
        self.saved_step = 0
        self.saved_seq = 0

    def set_parent(self, manifest: Manifest) -> None:
        self._parent = [manifest.token, manifest.seq]
        self._start_step = manifest.step

    @property
    def progressed(self) -> bool:
        """True when this session made something durable beyond what it started from."""
        return self.saved_seq > 0 and (self._grant.mode == "folder" or self.saved_step > self._start_step)

    def ship_newest(self) -> bool:
        """Ship the newest complete snapshot, if any. Raises StoreFailure, GrantUsedUp; the snapshot stays then."""
        with self._lock:
            waiting = sorted(name for name in os.listdir(self._spool) if _SNAP.match(name))
            ready = [(n, checkpoint.read_draft(os.path.join(self._spool, n))) for n in waiting]
            complete = [(name, draft) for name, draft in ready if draft is not None]
            if not complete:
                return False
            name, draft = complete[-1]
            self._ship(name, draft)
            for older, _ in complete:
                shutil.rmtree(os.path.join(self._spool, older), ignore_errors=True)
            self._prune()
            return True

    @property
    def checkpoints_left(self) -> int:
        """How many more checkpoints of the last one's size the grant has keys for."""
        per = max(1, len(self._kept[-1][1])) if self._kept else 1
        packs = sum(1 for _ in self._granted("pack", self._pack))
        return min(packs // per, sum(1 for _ in self._granted("manifest", self._seq)))

    def _granted(self, what: str, used: int) -> Any:
        number = used + 1
        while self._store.granted(self._key(what, number), "put"):
            yield number
            number += 1

    def _key(self, what: str, number: int) -> str:
        return wire.numbered_key(self._grant.job, self._grant.token, what, number)

    def _ship(self, name: str, draft: Dict[str, Any]) -> None:
        if self._pending is None or self._pending.name != name:
            self._pending = self._assign(name, draft)
        pending = self._pending
        for key, pack in zip(pending.packs, draft["packs"]):
            self._store.put_once(key, files.read(os.path.join(self._spool, name, pack["key"])))
        lines = self._before_commit()
        if pending.manifest is None:
            pending.manifest = self._manifest(pending, draft, lines)
        self._store.put_once(self._key("manifest", pending.seq), pending.manifest.to_bytes())
        self._pending = None
        self._kept.append((self._key("manifest", pending.seq), pending.packs))
        self.saved_step, self.saved_seq = draft["step"], pending.seq

    def _assign(self, name: str, draft: Dict[str, Any]) -> _Pending:
        """Numbers for one snapshot. They are not used again for another one, even when this one never lands:
        a write whose answer was lost may still have happened (R12)."""
        keys = [self._key("pack", self._pack + 1 + i) for i in range(len(draft["packs"]))]
        if not all(self._store.granted(key, "put") for key in [*keys, self._key("manifest", self._seq + 1)]):
            raise GrantUsedUp("no key is left for another checkpoint in this grant")
        self._pack += len(keys)
        self._seq += 1
        return _Pending(name, keys, self._seq)

    def _manifest(self, pending: _Pending, draft: Dict[str, Any], lines: int) -> Manifest:
        return Manifest(
            job=self._grant.job,
            token=self._grant.token,
            seq=pending.seq,
            step=draft["step"],
            mode=self._grant.mode,
            packs=[{"key": key, "size": pack["size"]} for key, pack in zip(pending.packs, draft["packs"])],
            blocks=draft["blocks"],
            tensors=draft.get("tensors", []),
            files=draft.get("files", []),
            state=draft.get("state"),
            parent=self._parent,
            fingerprint=draft["fingerprint"],
            metrics_lines=lines,
            created_at=self._clock(),
        )

    def _prune(self) -> None:
        """Own old checkpoints: manifest first, then packs (R34). What fails is swept by the scheduler later."""
        while len(self._kept) > self._grant.keep and self._may_prune():
            manifest_key, keys = self._kept.pop(0)
            try:
                for key in [manifest_key, *keys]:
                    self._store.delete(key)
            except StoreFailure:
                continue
