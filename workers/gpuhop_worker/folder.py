"""Folder mode: a script that writes checkpoints into a folder and can resume from it, unchanged.

A snapshot is taken only when the whole folder has been still for a while, no process of the command holds one of
its files open for writing, and known containers are complete; a file that changes while it is read voids the try.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
import time
import zipfile
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from gpuhop_worker import checkpoint, files, slots
from gpuhop_worker.process import group_members
from gpuhop_worker.restore import Restored

# Names that writers use while they write. Other dot files are carried: `.metadata` is what commits a torch DCP save.
_TEMPORARY = re.compile(
    r"(\.tmp)|(\.part(ial)?$)|(\.incomplete$)|(~$)|(\.lock$)|(\.sw[a-z]$)|(^\.nfs)|(^\.~)|(^tmp)", re.IGNORECASE
)
_ZIP = (".pt", ".pth", ".ckpt", ".bin", ".zip", ".npz", ".keras")

LOOK_S = 0.2

Signature = Tuple[Tuple[Any, ...], ...]


def scan(folder: str) -> Signature:
    """(path, size, mtime in ns, inode, mode) of every file and link that is not temporary, sorted. Raises OSError for
    a folder that cannot be read: what lies in it would be missing from the checkpoint."""
    rows: List[Tuple[Any, ...]] = []
    for root, folders, names in os.walk(folder, onerror=_tell):
        folders[:] = sorted(f for f in folders if not _TEMPORARY.search(f))
        linked = [f for f in folders if os.path.islink(os.path.join(root, f))]
        for name in [*names, *linked]:
            if _TEMPORARY.search(name):
                continue
            path = os.path.join(root, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                relative = os.path.relpath(path, folder).replace(os.sep, "/")
                rows.append((relative, found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode))
    return tuple(sorted(rows))


def _tell(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):  # removed meanwhile
        raise error


def open_for_writing(folder: str, group: int) -> bool:
    """True when a process of the group holds a file under folder open for writing (Linux; elsewhere False)."""
    root = os.path.realpath(folder) + os.sep
    for pid in group_members(group):
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
                if target.startswith(root) and _writes(pid, handle):
                    return True
            except OSError:
                continue
    return False


def _writes(pid: int, handle: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{handle}", "rb") as source:
        for line in source:
            if line.startswith(b"flags:"):
                return bool(int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    return False


def whole(path: str) -> bool:
    """False when a known container is cut: a torch or NumPy zip without its directory, short safetensors."""
    if path.endswith(".safetensors"):
        return _whole_safetensors(path)
    if path.endswith(_ZIP):
        with open(path, "rb") as source:
            if source.read(2) != b"PK":
                return os.path.getsize(path) > 0
        return zipfile.is_zipfile(path)
    return True


def _whole_safetensors(path: str) -> bool:
    # safetensors: u64 little-endian header length, JSON header, data; the last data_offsets end = data length.
    size = os.path.getsize(path)
    with open(path, "rb") as source:
        head = source.read(8)
        if len(head) < 8:
            return False
        (length,) = struct.unpack("<Q", head)
        if length > size - 8:
            return False
        try:
            header = json.loads(source.read(length))
        except ValueError:
            return False
    ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
    return bool(size == 8 + length + (max(ends) if ends else 0))


class FolderWatch:
    """Decides when the folder may be taken, and takes it into the spool. `say`: told once of what is left out."""

    def __init__(
        self,
        folder: str,
        spool: str,
        keeper: slots.SlotKeeper,
        restored: Optional[str],
        settle_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._slots = keeper
        self._picker = slots.Picker(restored)
        self._say = say
        self._told: Set[str] = set()
        self._folder = folder
        self._spool = spool
        self._settle_s = settle_s
        self._ahead = time.time() - time.monotonic()
        self._steady = float("-inf")  # since when the wall clock has not jumped
        self._seen: Signature = ()
        self._since = 0.0
        self._open = False  # at the last look a file was open for writing
        self._next_look = 0.0
        self._taken: Signature = scan(folder) if os.path.isdir(folder) else ()
        self._taken_at = 0.0
        self._taken_step = 0
        self._number = 0

    def due(self, elapsed: float, every_s: Optional[float], step: int, every_steps: Optional[int]) -> bool:
        """True when the job's `every` has gone by since the last snapshot."""
        if every_steps is not None:
            return step - self._taken_step >= every_steps
        # `auto`: whenever the script has written something new and the last snapshot has left.
        return elapsed - self._taken_at >= (every_s or 0.0)

    def look(self, now: float, group: int) -> None:
        """At the folder while the command (a process group) runs: a few times a second, at a twentieth of its cost."""
        if now < self._next_look:
            return
        began = time.monotonic()
        self._watch_clock()
        signature = scan(self._folder)
        if signature != self._seen:
            self._seen, self._since = signature, now
        self._open = signature != self._taken and open_for_writing(self._folder, group)
        self._next_look = now + max(LOOK_S, 20 * (time.monotonic() - began))

    def rebuilt(self) -> None:
        """The folder was put back to an earlier snapshot: what lies there now is nothing new."""
        self._taken = self._seen = scan(self._folder)
        self._open = False

    def look_soon(self) -> None:
        self._next_look = 0.0

    def ready(self, now: float) -> bool:
        """True when the last look found something new that has been still for settle_s and is whole, with none of its
        files open for writing."""
        if self.settled() or self._open or now - self._since < self._settle_s:
            return False
        return self._complete(self._seen)

    def settled(self) -> bool:
        """True when the last look found nothing that was not taken."""
        return not self._seen or self._seen == self._taken

    def ready_at_end(self, died_at: Optional[float]) -> bool:
        """After the command: True when there is something new and it is whole. `died_at`: the wall clock's time when
        the command was cut off; then a file that it had just touched, or had open, may be torn: nothing is taken."""
        if died_at is not None and self._open:
            return False
        self._seen = scan(self._folder)
        if not self._seen or self._seen == self._taken or not self._complete(self._seen):
            return False
        if died_at is None:
            return True
        self._watch_clock()  # times of files say nothing about what was written around a jump
        newest = max(row[2] for row in self._seen) / 1e9
        return died_at - max(float(newest), self._steady + self._ahead) >= self._settle_s

    def _watch_clock(self) -> None:
        ahead = time.time() - time.monotonic()
        if abs(ahead - self._ahead) > self._settle_s / 4:
            self._steady = time.monotonic()
            self._ahead = ahead

    def _complete(self, signature: Signature) -> bool:
        try:
            torn = [
                row[0] for row in signature if stat.S_ISREG(row[4]) and not whole(os.path.join(self._folder, row[0]))
            ]
        except OSError:
            return False
        for path in torn:
            self._say_once(path, f"{path} is not whole: the checkpoint folder cannot be saved while it is like that")
        return not torn

    def take(self, step: int, fingerprint: Dict[str, Any], elapsed: float) -> bool:
        """Copy the folder into a new snapshot. False, and nothing left behind, when it changed meanwhile."""
        before = self._seen
        self._number += 1
        target = os.path.join(self._spool, f"snap-{self._number:06d}")
        name = self._picker.pick(waiting=bool(os.listdir(self._spool)))
        os.makedirs(target)
        try:
            rows = self._copy(self._slots.slot(name), before)
            if scan(self._folder) != before:
                raise _Changed
            draft = {"step": step, "slot": name, "files": rows, "fingerprint": fingerprint}
            checkpoint.write_snapshot(target, draft)
        except (FileNotFoundError, _Changed):
            shutil.rmtree(target, ignore_errors=True)
            return False
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            raise
        self._picker.took(name)
        self._taken, self._taken_at, self._taken_step = before, elapsed, step
        return True

    def _copy(self, slot: slots.Slot, rows: Signature) -> List[Dict[str, Any]]:
        """The files' bytes into the slot, and their entries."""
        entries = [entry for entry in (self._entry(row) for row in rows) if entry is not None]
        places, size = slots.layout([entry.get("size", 0) for entry in entries])
        slot.reserve(size)
        for entry, place in zip(entries, places):
            if "link" not in entry:
                entry["offset"] = place
                _read_into(os.path.join(self._folder, entry["path"]), slot.view(place, entry["size"]))
        return entries

    def _entry(self, row: Tuple[Any, ...]) -> Optional[Dict[str, Any]]:
        path, size, mtime, _, mode = row
        if stat.S_ISLNK(mode):
            return self._link(path, os.readlink(os.path.join(self._folder, path)))
        # With its time: many scripts resume from the file that was changed last.
        return {"path": path, "size": size, "mode": stat.S_IMODE(mode), "mtime": mtime}

    def _link(self, path: str, target: str) -> Optional[Dict[str, Any]]:
        """Relative, also where the script made it absolute: the folder lies elsewhere in the next session."""
        here = os.path.realpath(os.path.join(self._folder, os.path.dirname(path)))
        if os.path.isabs(target):
            target = os.path.relpath(
                os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target)), here
            )
        target = os.path.normpath(target)
        if checkpoint.link_stays(path, target):
            return {"path": path, "link": target}
        self._say_once(path, f"the link {path} leads out of the checkpoint folder, so it is not carried")
        return None

    def _say_once(self, path: str, text: str) -> None:
        if path not in self._told:
            self._told.add(path)
            self._say(text)


class _Changed(Exception):
    """The file became shorter while it was read."""


def _read_into(path: str, view: memoryview) -> None:
    with open(path, "rb", buffering=0) as source:
        place = 0
        while place < len(view):
            count = source.readinto(view[place : place + checkpoint.BLOCK])
            if not count:
                raise _Changed
            place += count


def put_in_place(restored: Restored, folder: str) -> None:
    """Rebuild the saved folder beside its place, then swap it in. Raises checkpoint.Damaged for paths that lead out."""
    checkpoint.check_shape(restored.manifest)
    fresh = folder.rstrip(os.sep) + ".gpuhop-restoring"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    # A machine whose clock is behind: files that the script writes from now on must be newer than these.
    newest = max((entry["mtime"] for entry in restored.manifest.files if "link" not in entry), default=0)
    back = max(0, newest - time.time_ns())
    for entry in restored.manifest.files:
        _rebuild(restored, entry, fresh, back)
    if os.path.islink(folder):
        os.unlink(folder)
    elif os.path.lexists(folder):
        shutil.rmtree(folder)
    os.rename(fresh, folder)


def _rebuild(restored: Restored, entry: Dict[str, Any], root: str, back: int) -> None:
    """`back`: nanoseconds that its time is put back by."""
    path = files.inside(root, entry["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if "link" in entry:
        os.symlink(entry["link"], path)
        return
    view = restored.slot.view(restored.offsets[entry["path"]], entry["size"])
    with open(path, "wb") as out:
        for start in range(0, len(view), checkpoint.BLOCK):
            out.write(view[start : start + checkpoint.BLOCK])
    os.chmod(path, entry["mode"])
    os.utime(path, ns=(entry["mtime"] - back, entry["mtime"] - back))
