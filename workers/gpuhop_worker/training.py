"""The two lines in the user's loop: `session.track(...)` and `for step in session.steps(...)`.

Runs inside the user's process. Without gpuhop around it the same script runs as plain Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any, Dict, Iterator, List, NoReturn, Optional

from gpuhop_worker import checkpoint, codec, files, forking, plain_state
from gpuhop_worker.saving import Claimed, Saver

DRAINED = 75  # EX_TEMPFAIL: saved and left before the end; the runner expects it
REFUSED = 76  # the script does not fit its checkpoint, or its state cannot be saved
DISK_FULL = 78  # the last save did not fit on the session's disk
MACHINE_FAILED = 74  # EX_IOERR: the disk or the memory refused for another reason than space


class Session:
    """What the user's loop talks to. One per process; get it with `gpuhop_worker.session()`."""

    def __init__(self, config: Optional[Dict[str, Any]] = None) -> None:
        self._config = config
        self._tracked: Dict[str, Any] = {}
        self._step = 0  # steps completed
        self._in_step = 0  # index of the step being made
        self._begun = False
        self._early: List[Dict[str, Any]] = []  # logged before the first step, when its index is not known yet
        self._stop = False
        self._loaders = 0
        self._saver = Saver(config) if config else None

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
        if self._begun:
            raise RuntimeError("session.track() comes before session.steps(): the state is restored there")
        for title, thing in things.items():
            if not title.isidentifier() or title in self._tracked:
                raise TypeError(f"the name {title!r} is taken, or is no name")
            known = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
            if not known and not _is_torch_value(thing):
                raise TypeError(f"{title} has no state_dict() and load_state_dict()")
            self._tracked[title] = thing

    def loader(self, dataset: Any, batch_size: int, **options: Any) -> Any:
        """Batches whose order and augmentation are exact over hops: `loader.batch(step)`. Options: seed, workers,
        rank, world, collate, pin; see gpuhop_worker.loading.KeyedLoader."""
        from gpuhop_worker.loading import KeyedLoader

        return self._tracked_loader(KeyedLoader(dataset, batch_size, **options))

    def replay(self, loader: Any, seed: int = 0) -> Any:
        """Batches of a plain DataLoader, also over an iterable dataset, exact over hops: `next(batches)`. What the
        epoch gave before is read again; see gpuhop_worker.replaying.Replay."""
        from gpuhop_worker.replaying import Replay

        return self._tracked_loader(Replay(loader, seed))

    def _tracked_loader(self, made: Any) -> Any:
        self._loaders += 1
        self.track(**{f"loader{self._loaders}": made})
        return made

    def steps(self, total: Optional[int] = None, *, per_epoch: Optional[int] = None) -> Iterator[int]:
        """Restore, then yield the index of each step still to be made; save on schedule; leave when told to.

        `total`: needed when the script runs without gpuhop; inside, it must agree with the job's target.
        `per_epoch`: steps per epoch, needed when the target is given in epochs. When the session must end, the
        state is saved between two steps and SystemExit(75) is raised: code after the loop does not run.
        """
        if self._begun:
            raise RuntimeError("session.steps() runs once: it is the whole training")
        self._begun = True
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

    def _begin(self, saver: Saver) -> None:
        try:
            saver.claim()
            saver.rehearse(self._tracked)
            self._step = self._in_step = saver.restore(self._tracked)
            saver.hook(self._tracked)
        except (codec.StateError, plain_state.RestoreMismatch, checkpoint.Damaged, Claimed) as error:
            _refuse(error)
        except OSError as error:
            _unable("the session cannot begin", error)
        early, self._early = self._early, []
        for values in early:
            saver.log(self._step, values)

    def _loop(self, saver: Saver, goal: Optional[int]) -> Iterator[int]:
        saver.progress(self._step, goal, force=True)
        first = self._step + 1  # told at once: after a crash it is known that a step was made
        while goal is None or self._step < goal:
            if self._stop or saver.told_to_drain():
                self._last_save(saver)
                saver.progress(self._step, goal, force=True)
                sys.exit(DRAINED)
            self._in_step = self._step
            yield self._in_step
            self._step += 1
            if self._step == first:
                self._prepare(saver)
            if saver.progress(self._step, goal, force=self._step == first) and saver.orphaned():
                sys.exit(DRAINED)
            if saver.due(self._step) and not (goal is not None and self._step >= goal):
                self._save(saver)
        self._last_save(saver)
        failed = saver.tell_done(self._step, goal)
        if failed is not None:
            _unable("the end of the training cannot be noted", failed)

    def _prepare(self, saver: Saver) -> None:
        try:
            saver.prepare(self._tracked)
        except codec.StateError as error:
            _refuse(error)

    def _save(self, saver: Saver) -> None:
        """A save on schedule: with a full disk training goes on, and the next one is tried when it is due."""
        try:
            saver.save(self._tracked, self._step)
        except codec.StateError as error:
            _refuse(error)
        except OSError as error:
            print(f"gpuhop: the save at step {self._step} was skipped: {error.strerror}", file=sys.stderr)
            saver.skip(self._step)

    def _last_save(self, saver: Saver) -> None:
        """The last save of a session. A state that was saved at this very step already is enough."""
        saver.join()  # it may have to be dropped yet
        if self._step == saver.saved_step:
            return
        try:
            saver.save(self._tracked, self._step, last=True)
        except codec.StateError as error:
            _refuse(error)
        except OSError as error:
            _unable(f"the last save (step {self._step}) failed", error)

    def log(self, **values: Any) -> None:
        """Record numbers of the current step: session.log(loss=loss). Tensors of one element are read."""
        if self._saver is None:
            return
        if values.pop("step", self._in_step) != self._in_step or any(name.startswith("~") for name in values):
            raise TypeError("session.log() records the index of the step by itself, and takes no name with ~")
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in values.items()}
        if self._begun:
            self._saver.log(self._in_step, plain)
        else:
            self._early.append(plain)

    def _ask_to_stop(self) -> None:
        self._stop = True


def _refuse(error: Exception) -> None:
    for line in getattr(error, "differences", None) or [str(error)]:
        print(f"gpuhop: {line}", file=sys.stderr)
    sys.exit(REFUSED)


def _unable(what: str, error: OSError) -> NoReturn:
    """The machine does not let this go on."""
    print(f"gpuhop: {what}: {error.strerror}", file=sys.stderr)
    sys.exit(DISK_FULL if error.errno in files.NO_SPACE else MACHINE_FAILED)


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
        forking.forget_sigterm(signal.getsignal(signal.SIGTERM))


def from_environment() -> Session:
    """The session that the runner set up, or a bare one."""
    path = os.environ.get("GPUHOP_SESSION")
    if not path:
        return Session()
    try:
        config = json.loads(files.read(path))
    except OSError as error:
        _unable("the session cannot begin", error)
    return Session(config)
