"""Snapshots, metrics and progress of the user's process, on the session's disk, where the runner picks them up."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from gpuhop_worker import checkpoint, codec, files, plain_state
from gpuhop_worker.wire import Manifest


class Claimed(Exception):
    """A second process, or the command's second start, asks for the same session."""


class Saver:
    """`config`: the session file that the runner wrote."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._scale = float(config["time_scale"])
        self._last_save = time.monotonic()
        self._last_step = 0  # of the last save, done or skipped
        self._last_progress = -1e9
        self._number = 0
        self._metrics = MetricsWriter(config["metrics"])
        self._runner = files.process_birth(config["runner"])
        self.saved_step = 0  # of the last state that is whole on the disk, or was restored; 0: the script's own start

    def claim(self) -> None:
        """Snapshots and metrics of two processes in one session would be mixed up. Raises Claimed."""
        try:
            os.close(os.open(self._config["metrics"] + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise Claimed(
                "session.steps() ran in this session already, in another process: one process trains, once"
            ) from None

    # -- state

    def _kind(self) -> Any:
        if "torch" in sys.modules:
            from gpuhop_worker import torch_state

            return torch_state
        return plain_state

    def rehearse(self, tracked: Dict[str, Any]) -> None:
        """Fail before the first step, not at the first save, when something cannot be saved."""
        self._kind().capture(tracked)

    def restore(self, tracked: Dict[str, Any]) -> int:
        """Steps completed in the restored state, 0 for a fresh start."""
        path = self._config["restore"]
        if path is None:
            return 0
        manifest = Manifest.from_bytes(files.read(path))
        kind = self._kind()
        self._announce(kind, manifest)
        reader = checkpoint.PackReader(manifest, self._config["packs"])
        try:
            kind.restore(tracked, manifest.state, tensor_source(kind, manifest, reader))
        finally:
            reader.close()
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
        every_steps, every_s = self._config["every_steps"], self._config["every_s"]
        if every_steps is not None:
            ripe = step - self._last_step >= every_steps or step % every_steps == 0
        else:
            ripe = every_s is not None and (time.monotonic() - self._last_save) * self._scale >= every_s
        # Back-pressure: the next snapshot waits until the last one has left the disk.
        return ripe and not os.listdir(self._config["spool"])

    def skip(self, step: int) -> None:
        """Count the interval to the next save from here."""
        self._last_step, self._last_save = step, time.monotonic()

    def save(self, tracked: Dict[str, Any], step: int) -> None:
        """Raises OSError (nothing of the try is left behind) and StateError."""
        self._metrics.flush()  # a checkpoint may not be ahead of its metrics
        self._number += 1
        folder = os.path.join(self._config["spool"], f"snap-{self._number:06d}")
        os.makedirs(folder)
        writer = checkpoint.PackWriter(folder)
        try:
            self._write(folder, writer, tracked, step)
        except BaseException:
            writer.abandon()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.saved_step = step
        self.skip(step)

    def _write(self, folder: str, writer: checkpoint.PackWriter, tracked: Dict[str, Any], step: int) -> None:
        kind = self._kind()
        body, found = kind.capture(tracked)
        tensors: List[Dict[str, Any]] = []
        for name, value in found.tensors:
            first, last = writer.add(kind.bytes_of(value))
            tensors.append(dict(kind.entry_of(name, value), first=first, last=last))
        tensors += [{"name": name, "alias": target} for name, target in found.aliases]
        draft = {"step": step, "tensors": tensors, "state": body, "fingerprint": kind.fingerprint()}
        checkpoint.write_draft(folder, writer, draft)

    # -- signs

    def told_to_drain(self) -> bool:
        return os.path.exists(self._config["drain"])

    def orphaned(self) -> bool:
        """True when the runner is gone: nobody would ship what is trained from here on."""
        return files.process_birth(self._config["runner"]) != self._runner

    def progress(self, step: int, goal: Optional[int], *, done: bool = False, force: bool = False) -> bool:
        """Tell the runner, at most ten times a second. True when it was told."""
        now = time.monotonic()
        if not force and now - self._last_progress < 0.1:
            return False
        self._last_progress = now
        body = json.dumps({"step": step, "goal": goal, "done": done})
        try:
            files.write_atomic(self._config["progress"], body.encode("ascii"))
        except OSError:
            return False  # a full disk stops no training; the next one may get through
        return True

    def log(self, step: int, values: Dict[str, Any]) -> None:
        row = {"step": step, **{k: codec.encode(v, path=k) for k, v in values.items()}}
        self._metrics.add(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")


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


def tensor_source(kind: Any, manifest: Manifest, reader: checkpoint.PackReader) -> Callable[[str], Any]:
    """name -> the saved tensor. Names that shared memory when they were saved get one and the same tensor."""
    entries = {entry["name"]: entry for entry in manifest.tensors}
    shared = {entry["alias"] for entry in manifest.tensors if "alias" in entry}
    made: Dict[str, Any] = {}

    def tensor(name: str) -> Any:
        entry = entries[name]
        entry = entries[entry["alias"]] if "alias" in entry else entry
        if entry["name"] in made:
            return made[entry["name"]]
        value = kind.value_of(reader.whole(entry["first"], entry["last"]), entry)
        if entry["name"] in shared:
            made[entry["name"]] = value
        return value

    return tensor
