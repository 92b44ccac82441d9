"""Snapshots, metrics and progress of the user's process, on the session's disk, where the runner picks them up."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpuhop_worker import checkpoint, codec, files, memory, pace, plain_state, slots, window
from gpuhop_worker.copier import Copier
from gpuhop_worker.wire import Manifest

# Bytes. To watch a smaller tensor, while it is copied beside the training, takes longer than to copy it.
LEAST_LATE = 4096
TOLD = 100e6  # bytes; the memory that smaller states take is not worth a word


class Claimed(Exception):
    """A second process, or the command's second start, asks for the same session."""


class Torn(Exception):
    """A tensor was edited by the script while it was copied. Told, and the snapshot dropped."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the script changed {name} while it was copied; later saves are done before training goes on")


class Saver:
    """`config`: the session file that the runner wrote."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._scale = float(config["time_scale"])
        self._last_save = time.monotonic()
        self._left_at: Optional[float] = None  # when the last snapshot was seen to have left the disk
        self._last_step = 0  # of the last save, done or skipped
        self._last_progress = -1e9
        self._number = int(config.get("snapshots", 0))  # a command that is started again uses no name twice
        self._metrics = MetricsWriter(config["metrics"])
        self._runner = files.process_birth(config["runner"])
        self._slots = {name: slots.Slot(path) for name, path in config["slots"].items()}
        self._picker = slots.Picker(config["restored_slot"], config.get("base_slot"))
        self._copier = Copier()
        self._hooked = False
        self._known_fingerprint: Optional[Dict[str, Any]] = None
        self.stall_s = 0.0  # of the last save: how long the training waited
        self.join_s = 0.0  # of the last save: how long an optimizer waited for the copy
        self.saved_step = 0  # of the last state that is whole on the disk, or was restored; 0: the script's own start

    def claim(self) -> None:
        """Snapshots and metrics of two processes in one session would be mixed up. Raises Claimed."""
        try:
            claimed = os.open(self._config["metrics"] + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            raise Claimed(
                "session.steps() ran in this session already, in another process: one process trains, once"
            ) from None
        try:
            os.write(claimed, claimant(os.getpid()))
        except OSError:
            pass  # a full disk: nobody then knows who claimed, and a crash is not followed by another start
        finally:
            os.close(claimed)

    # -- state

    def _kind(self) -> Any:
        if "torch" in sys.modules:
            from gpuhop_worker import torch_state

            return torch_state
        return plain_state

    def rehearse(self, tracked: Dict[str, Any]) -> None:
        """Fail before the first step, not at the first save, when something cannot be saved."""
        body, _ = self._kind().capture(tracked)
        checkpoint.check_size(len(json.dumps(body)))

    def restore(self, tracked: Dict[str, Any]) -> int:
        """Steps completed in the restored state, 0 for a fresh start."""
        path = self._config["restore"]
        if path is None:
            return 0
        manifest = Manifest.from_bytes(files.read(path))
        kind = self._kind()
        self._announce(kind, manifest)
        slot = self._slots[self._config["restored_slot"]]
        slot.open()
        kind.restore(tracked, manifest.state, tensor_source(kind, manifest, slot, self._config["offsets"]))
        self.saved_step = manifest.step
        self.skip(manifest.step)
        return manifest.step

    def _announce(self, kind: Any, manifest: Manifest) -> None:
        saved = manifest.fingerprint
        if "threads" in saved:
            kind.set_threads(saved["threads"])
        here = kind.fingerprint()
        changed = [f"{k} {saved.get(k)} -> {here.get(k)}" for k in sorted(here) if here[k] != saved.get(k)]
        if changed:
            print("gpuhop: exact resume downgraded to faithful: {}".format(", ".join(changed)), file=sys.stderr)

    def due(self, step: int) -> bool:
        """Back-pressure: the next snapshot waits until the last one has left the disk. It also waits for its turn where
        the grant's checkpoints become few."""
        try:
            gone = not os.listdir(self._config["spool"])
        except OSError:
            gone = True  # the save itself will tell
        now = time.monotonic()
        if gone and self._left_at is None:
            self._left_at = now
        ripe = gone and self._ripe(step, (now - self._last_save) * self._scale)
        return ripe and now >= pace.told(self._config["pace"])

    def _ripe(self, step: int, elapsed: float) -> bool:
        """`elapsed`: seconds of the session's clock since the last save."""
        every_steps, every_s = self._config["every_steps"], self._config["every_s"]
        if every_steps is not None:
            return bool(step - self._last_step >= every_steps or step % every_steps == 0)
        if self._config["every_auto"]:
            shipped = (self._left_at or self._last_save) - self._last_save
            return elapsed >= interval(self.stall_s * self._scale, shipped * self._scale, self._config["mean_life_s"])
        return bool(every_s is not None and elapsed >= every_s)

    def skip(self, step: int) -> None:
        """Count the interval to the next save from here."""
        self._last_step, self._last_save, self._left_at = step, time.monotonic(), None

    def save(self, tracked: Dict[str, Any], step: int, *, last: bool = False) -> None:
        """Take a snapshot of this very moment. What only the optimizers change is copied beside the next forward and
        backward pass, and joined before an optimizer changes it (`last`: all is done now).

        Raises OSError (nothing of the try is left behind) and StateError.
        """
        began = time.monotonic()
        self.join()
        self._metrics.flush()  # a checkpoint may not be ahead of its metrics
        name = self._picker.pick(waiting=bool(os.listdir(self._config["spool"])))
        self._number += 1
        folder = os.path.join(self._config["spool"], f"snap-{self._number:06d}")
        os.makedirs(folder)
        try:
            work = self._start(folder, name, tracked, step, last)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, MemoryError):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
            raise
        self._picker.took(name)
        self.saved_step = step
        self.skip(step)
        if work is not None:
            self._copier.start(work)
        self.stall_s = time.monotonic() - began

    def _start(
        self, folder: str, name: str, tracked: Dict[str, Any], step: int, last: bool
    ) -> Optional[Callable[[], None]]:
        """Copy what may change before the next optimizer step; returns the work that is left, None for a last save."""
        kind = self._kind()
        body, found = kind.capture(tracked)
        places, size = slots.layout(found.sizes)
        slot = self._slots[name]
        slot.reserve(size)
        still = found.still if self._hooked and not last else set()
        parts = list(zip(found.tensors, found.sizes, found.addresses, places))
        late = [part for part in parts if part[2] in still and part[1] >= LEAST_LATE and part[1] % 8 == 0]
        # Before anything is copied beside the training: the script may give a tensor another shape there.
        entries = [dict(kind.entry_of(*tensor), offset=place, size=length) for tensor, length, _, place in parts]
        entries += [{"name": title, "alias": target} for title, target in found.aliases]
        draft = dict(step=step, slot=name, state=body, fingerprint=self._fingerprint(kind), tensors=entries)

        waits = set(map(id, late))
        _copy(kind, slot, [part for part in parts if id(part) not in waits])
        marks = window.marks(kind, [(*tensor, length, address) for tensor, length, address, _ in late])

        def finish() -> None:
            _copy_late(kind, slot, late, marks)
            checkpoint.write_snapshot(folder, draft)

        def finish_or_drop() -> None:
            try:
                finish()
            except Exception as error:
                self._picker.dropped(name)
                self.saved_step = before
                self._dropped(folder, step, error)

        before = self.saved_step
        if not last:
            return finish_or_drop
        finish()
        return None

    def _dropped(self, folder: str, step: int, error: Exception) -> None:
        """A copy beside the training did not become whole: training goes on without it."""
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError):
            self._hooked = False  # all at once from now on: what fails then, fails where it is seen
        fact = error.strerror if isinstance(error, OSError) else str(error) or repr(error)
        if isinstance(error, MemoryError):
            fact = os.strerror(errno.ENOMEM)
        print(f"gpuhop: the save at step {step} was skipped: {fact}", file=sys.stderr)

    def _fingerprint(self, kind: Any) -> Dict[str, Any]:
        if self._known_fingerprint is None:
            self._known_fingerprint = kind.fingerprint()
        return self._known_fingerprint

    def hook(self, tracked: Dict[str, Any]) -> None:
        """Join before any tracked optimizer steps, so that the copy may run beside forward and backward."""
        self._hooked = self._kind().before_steps(tracked, self.join)

    def join(self) -> None:
        """Wait until the snapshot that is being copied is whole."""
        self.join_s = self._copier.join()

    def prepare(self, tracked: Dict[str, Any]) -> None:
        """Get the memory of the snapshots beside the training, once the state has its full size: after a step. Else the
        first two saves would wait for it (0.8 s per GB here). Raises StateError."""
        _, found = self._kind().capture(tracked)
        _, size = slots.layout(found.sizes)
        two = self._picker.next_two()
        more = sum(max(0, size - self._slots[name].size) for name in two)
        free = memory.available()
        short = free is not None and more > 0 and more + memory.SPARE > free
        if short:
            self._picker.use_disk()
        if short or size >= TOLD:
            where = f"disk: {(free or 0) / 1e6:.0f} MB of memory are left" if short else "memory"
            print(
                f"gpuhop: a state of {size / 1e6:.0f} MB; two snapshots of it lie in this machine's {where}",
                file=sys.stderr,
            )
        two = self._picker.next_two()

        def reserve() -> None:
            try:
                for name in two:
                    self._slots[name].reserve(size)
            except OSError:
                pass  # the save will tell

        self._copier.start(reserve)

    # -- signs

    def told_to_drain(self) -> bool:
        return os.path.exists(self._config["drain"])

    def orphaned(self) -> bool:
        """True when the runner is gone: nobody would ship what is trained from here on."""
        return files.process_birth(self._config["runner"]) != self._runner

    def progress(self, step: int, goal: Optional[int], *, force: bool = False) -> bool:
        """Tell the runner, at most ten times a second. True when it was told."""
        now = time.monotonic()
        if not force and now - self._last_progress < 0.1:
            return False
        self._last_progress = now
        try:
            self._note(step, goal, done=False)
        except OSError:
            return False  # a full disk stops no training; the next one may get through
        return True

    def tell_done(self, step: int, goal: Optional[int]) -> Optional[OSError]:
        """The last word to the runner; the error when it cannot be written."""
        try:
            self._note(step, goal, done=True)
        except OSError as error:
            return error
        return None

    def _note(self, step: int, goal: Optional[int], done: bool) -> None:
        body = json.dumps({"step": step, "goal": goal, "done": done})
        files.write_atomic(self._config["progress"], body.encode("ascii"))

    def log(self, step: int, values: Dict[str, Any]) -> None:
        row = {"step": step, **{k: codec.encode(v, path=k) for k, v in values.items()}}
        self._metrics.add(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")


Part = Tuple[Tuple[str, Any], int, int, int]  # (name, value), bytes, address or 0, place in the slot


def _copy(kind: Any, slot: slots.Slot, parts: List[Part]) -> None:
    for (_, value), length, address, place in parts:
        if address:
            slot.take(place, address, length)
        elif length:
            slots.copy(slot.view(place, length), kind.bytes_of(value))


def _copy_late(kind: Any, slot: slots.Slot, parts: List[Part], marks: List[window.Mark]) -> None:
    """The same for what was marked when the save began. Raises Torn."""
    for mark, part in zip(marks, parts):
        if not mark.there():
            raise Torn(mark.name)
        _copy(kind, slot, [part])
    for mark, (_, length, _, place) in zip(marks, parts):
        if not mark.holds(slot.view(place, length)):
            raise Torn(mark.name)


def claimant(pid: int) -> bytes:
    """What the claim of a process holds: its pid, and what tells it from a later one with the same pid."""
    return f"{pid} {files.process_birth(pid)}".encode("ascii")


def interval(stall_s: float, ship_s: float, mean_life_s: float) -> float:
    """Seconds between saves, in `every: auto`. Young's optimum for the cost of a save and the mean life of a session
    (J. W. Young, CACM 17, 1974), but never more often than the link carries snapshots away."""
    return max(ship_s, math.sqrt(2.0 * max(stall_s, 1e-3) * mean_life_s), 1.0)


class MetricsWriter:
    """Whole lines at the end of a file. What a full disk does not take waits in memory: no line is lost or torn."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = -1
        self._waiting = bytearray()

    def add(self, line: bytes) -> None:
        self._waiting += line
        try:
            self.flush()
        except OSError:
            pass

    def flush(self) -> None:
        """Raises OSError while something cannot be written."""
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        while self._waiting:
            del self._waiting[: os.write(self._handle, self._waiting)]


def tensor_source(kind: Any, manifest: Manifest, slot: slots.Slot, offsets: Dict[str, int]) -> plain_state.Source:
    """The saved tensors, from what lies in the slot. Names that shared memory when they were saved get one and the same
    tensor."""
    entries = {entry["name"]: entry for entry in manifest.tensors}
    shared = {entry["alias"] for entry in manifest.tensors if "alias" in entry}
    made: Dict[Tuple[str, bool], Any] = {}

    def tensor(name: str, own: bool) -> Any:
        entry = entries[name]
        entry = entries[entry["alias"]] if "alias" in entry else entry
        key = (entry["name"], own)
        if key in made:
            return made[key]
        size = sum(row[3] for row in manifest.blocks[entry["first"] : entry["last"]])
        value = kind.value_of(slot.view(offsets[entry["name"]], size), entry, own)
        if entry["name"] in shared:
            made[key] = value
        return value

    return tensor
