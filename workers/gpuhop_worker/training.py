"""The two lines in the user's loop: `session.track(...)` and `for step in session.steps(...)`.

Runs inside the user's process. Saves are made here, between steps, onto the session's disk; the runner (another
process) ships them. Without gpuhop around it the same script runs as plain Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Optional

from gpuhop_worker import checkpoint, codec, files, plain_state
from gpuhop_worker.wire import Manifest

DRAINED = 75  # EX_TEMPFAIL: saved and left before the end; the runner expects it
REFUSED = 76  # the script does not fit its checkpoint, or its state cannot be saved
DISK_FULL = 78  # the last save did not fit on the session's disk


class Session:
    """What the user's loop talks to. One per process; get it with `gpuhop_worker.session()`."""

    def __init__(self, config: Optional[Dict[str, Any]] = None) -> None:
        self._config = config
        self._tracked: Dict[str, Any] = {}
        self._step = 0  # steps completed
        self._in_step = 0  # index of the step being made
        self._stop = False
        self._saver = _Saver(config) if config else None

    @property
    def active(self) -> bool:
        """True when gpuhop runs this script."""
        return self._config is not None

    @property
    def step(self) -> int:
        """Steps completed so far, over all sessions."""
        return self._step

    def track(self, **things: Any) -> None:
        """Name what makes up the training state: modules, optimizers, schedulers, scalers, generators, tensors,
        anything with state_dict() and load_state_dict(). Raises TypeError for anything else."""
        for title, thing in things.items():
            if title.startswith("~") or title in self._tracked:
                raise TypeError(f"the name {title!r} is taken")
            known = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
            if not known and not _is_torch_value(thing):
                raise TypeError(f"{title} has no state_dict() and load_state_dict()")
            self._tracked[title] = thing

    def steps(self, total: Optional[int] = None, *, per_epoch: Optional[int] = None) -> Iterator[int]:
        """Restore, then yield the index of each step still to be made; save on schedule; leave when told to.

        `total`: needed when the script runs without gpuhop; inside, it must agree with the job's target.
        `per_epoch`: steps per epoch, needed when the target is given in epochs. When the session must end, the
        state is saved between two steps and SystemExit(75) is raised: code after the loop does not run.
        """
        if self._config is None or self._saver is None:
            if total is None:
                raise TypeError("outside gpuhop say how many steps: session.steps(1000)")
            for self._in_step in range(total):
                yield self._in_step
                self._step = self._in_step + 1
            return
        goal = _goal(self._config, total, per_epoch)
        _on_sigterm(self._ask_to_stop)
        self._begin(self._saver)
        yield from self._loop(self._saver, goal)

    def _begin(self, saver: _Saver) -> None:
        try:
            saver.rehearse(self._tracked)
            self._step = saver.restore(self._tracked)
        except (codec.StateError, plain_state.RestoreMismatch, checkpoint.Damaged) as error:
            for line in getattr(error, "differences", None) or [str(error)]:
                print(f"gpuhop: {line}", file=sys.stderr)
            sys.exit(REFUSED)

    def _loop(self, saver: _Saver, goal: Optional[int]) -> Iterator[int]:
        saver.progress(self._step, goal, force=True)
        while goal is None or self._step < goal:
            if self._stop or saver.told_to_drain():
                saver.save_or_exit(self._tracked, self._step)
                saver.progress(self._step, goal, force=True)
                sys.exit(DRAINED)
            self._in_step = self._step
            yield self._in_step
            self._step += 1
            if saver.progress(self._step, goal) and saver.orphaned():
                sys.exit(DRAINED)
            if saver.due(self._step) and not (goal is not None and self._step >= goal):
                saver.save_or_skip(self._tracked, self._step)
        saver.save_or_exit(self._tracked, self._step)
        saver.progress(self._step, goal, done=True, force=True)

    def log(self, **values: Any) -> None:
        """Record numbers of the current step: session.log(loss=loss). Tensors of one element are read."""
        if self._saver is not None:
            self._saver.log(self._in_step, {k: v.item() if hasattr(v, "item") else v for k, v in values.items()})

    def _ask_to_stop(self) -> None:
        self._stop = True


def _is_torch_value(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, (torch.Tensor, torch.Generator))


def _goal(config: Dict[str, Any], total: Optional[int], per_epoch: Optional[int]) -> Optional[int]:
    target: Optional[int] = config["target_steps"]
    if config["target_epochs"] is not None:
        if per_epoch is None:
            raise TypeError("the job's target is in epochs: session.steps(per_epoch=len(loader))")
        target = config["target_epochs"] * per_epoch
    if total is not None and target is not None and total != target:
        raise ValueError(f"job.yaml's target is {target} steps, the script asks for {total}")
    return target if target is not None else total


def _on_sigterm(ask: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: ask())


class _Saver:
    """Snapshots, metrics and progress on the session's disk, where the runner picks them up."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._metrics = -1
        self._scale = float(config["time_scale"])
        self._last_save = time.monotonic()
        self._last_step = 0
        self._last_progress = -1e9
        self._number = 0

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
            kind.restore(tracked, manifest.state, _tensor_source(kind, manifest, reader))
        finally:
            reader.close()
        self._last_step = manifest.step
        self._last_save = time.monotonic()
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
            ripe = (time.monotonic() - self._last_save) * self._scale >= every_s
        # Back-pressure: the next snapshot waits until the last one has left the disk.
        return ripe and not os.listdir(self._config["spool"])

    def save_or_skip(self, tracked: Dict[str, Any], step: int) -> None:
        """A save on schedule: with a full disk training goes on, and the next one is tried when it is due."""
        try:
            self._save(tracked, step)
        except OSError as error:
            print(f"gpuhop: the save at step {step} was skipped: {error.strerror}", file=sys.stderr)
            self._last_step, self._last_save = step, time.monotonic()

    def save_or_exit(self, tracked: Dict[str, Any], step: int) -> None:
        """The last save of a session. A state that was saved at this very step already is enough."""
        if step == self._last_step and step > 0:
            return
        try:
            self._save(tracked, step)
        except OSError as error:
            print(f"gpuhop: the last save (step {step}) failed: {error.strerror}", file=sys.stderr)
            sys.exit(DISK_FULL)

    def _save(self, tracked: Dict[str, Any], step: int) -> None:
        self._number += 1
        folder = os.path.join(self._config["spool"], f"snap-{self._number:06d}")
        os.makedirs(folder)
        try:
            self._write(folder, tracked, step)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._last_step, self._last_save = step, time.monotonic()

    def _write(self, folder: str, tracked: Dict[str, Any], step: int) -> None:
        kind = self._kind()
        body, found = kind.capture(tracked)
        writer = checkpoint.PackWriter(folder)
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
        try:
            os.kill(self._config["runner"], 0)
        except ProcessLookupError:
            return True
        return False

    def progress(self, step: int, goal: Optional[int], *, done: bool = False, force: bool = False) -> bool:
        """Tell the runner, at most ten times a second. True when it was told."""
        now = time.monotonic()
        if not force and now - self._last_progress < 0.1:
            return False
        self._last_progress = now
        body = json.dumps({"step": step, "goal": goal, "done": done})
        files.write_atomic(self._config["progress"], body.encode("ascii"))
        return True

    def log(self, step: int, values: Dict[str, Any]) -> None:
        if self._metrics < 0:
            self._metrics = os.open(self._config["metrics"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        row = {"step": step, **{k: codec.encode(v, path=k) for k, v in values.items()}}
        os.write(self._metrics, json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")


def _tensor_source(kind: Any, manifest: Manifest, reader: checkpoint.PackReader) -> Any:
    entries = {entry["name"]: entry for entry in manifest.tensors}

    def tensor(name: str) -> Any:
        entry = entries[name]
        entry = entries[entry["alias"]] if "alias" in entry else entry
        return kind.value_of(reader.whole(entry["first"], entry["last"]), entry)

    return tensor


def from_environment() -> Session:
    """The session that the runner set up, or a bare one."""
    path = os.environ.get("GPUHOP_SESSION")
    return Session(json.loads(files.read(path))) if path else Session()
