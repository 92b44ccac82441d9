"""Runs one chunk: code, setup, restore, the user's command, saves on their way, result.

One Runner per session process. The main thread decides (every 50 ms); one thread beats, one ships snapshots, one
ships logs, one reads the command's output.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from gpuhop_worker import files, outputs, plain_state, restore, training, wire
from gpuhop_worker.beat import Heart
from gpuhop_worker.folder import FolderWatch, put_in_place
from gpuhop_worker.process import Command, exit_code
from gpuhop_worker.shipper import GrantUsedUp, Shipper
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.streams import SegmentStream
from gpuhop_worker.wire import Beat, Control, Grant, Manifest, Result

POLL_S = 0.05
SETTLE_S = 1.0  # a checkpoint folder must have been still for this long


class Ended(Exception):
    """The session ends here, for this reason (one of wire.REASONS)."""

    def __init__(self, status: str, reason: str, message: str = "", code: Optional[int] = None) -> None:
        super().__init__(message or wire.REASONS[reason])
        self.status = status
        self.reason = reason
        self.message = message
        self.code = code


class Fenced(Exception):
    """Another session holds the job now: stop and write nothing more."""


def numbered(store: GrantStore, grant: Grant, what: str) -> List[str]:
    """All keys of one kind that the grant allows to write, in order."""
    keys: List[str] = []
    while True:
        key = wire.numbered_key(grant.job, grant.token, what, len(keys) + 1)
        if not store.granted(key, "put"):
            return keys
        keys.append(key)


class Runner:
    """`bundle`: path of the zipapp or folder that holds this package, for the command's PYTHONPATH."""

    def __init__(self, grant: Grant, folder: str, bundle: str, environ: Dict[str, str]) -> None:
        self.grant = grant
        self.folder = folder
        self.bundle = bundle
        self.environ = environ
        self.started = time.monotonic()
        self.store = GrantStore(grant.addresses)
        self.log = SegmentStream(self.store, numbered(self.store, grant, "log"), may_drop=True)
        self.metrics = SegmentStream(self.store, numbered(self.store, grant, "metrics"), may_drop=False)
        self.phase = "setup"
        self.order: Optional[Tuple[str, str]] = None  # (status word for the result, reason)
        self.fenced = False
        self.step = 0
        self.done = False
        self._metrics_read = 0
        self._metrics_lines = 0
        self._metrics_lock = threading.Lock()
        self._line = b""
        self._told_at: Optional[float] = None
        self._killed = False
        self._ship_failure: Optional[Exception] = None
        self._train_from: Optional[Tuple[float, int]] = None
        quick = GrantStore(grant.addresses, patience_s=0.0)
        period = max(grant.beat_s / grant.time_scale, 0.05)
        self.heart = Heart(quick, grant.job, grant.token, period, self._beat, self._obey, self.say)
        self.shipper = Shipper(grant, self.store, self.path("spool"), self._metrics_durable)

    # ------------------------------------------------------------ small helpers

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def elapsed(self) -> float:
        """Seconds of the session's clock since it began."""
        return (time.monotonic() - self.started) * self.grant.time_scale

    def say(self, text: str) -> None:
        self._append((f"gpuhop: {text}\n").encode("utf-8", "replace"))

    def _append(self, data: bytes) -> None:
        for secret in self._secret_values():
            data = data.replace(secret, b"***")
        self.log.append(data)
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def _secret_values(self) -> List[bytes]:
        values = [self.environ.get(name, "") for name in self.grant.secrets]
        return [value.encode() for value in values if len(value) >= 4]

    # ------------------------------------------------------------ orders

    def stop_by_signal(self) -> None:
        self._set_order("drained", "signal")

    def _set_order(self, status: str, reason: str) -> None:
        if self.order is None:
            self.order = (status, reason)

    def _obey(self, control: Control) -> None:
        if control.token > self.grant.token:
            self.fenced = True
        elif control.token == self.grant.token and control.order in ("drain", "pause", "cancel"):
            reason = {"drain": "drained", "pause": "paused", "cancel": "cancelled"}[control.order]
            self._set_order("drained", reason)

    def _beat(self, seq: int) -> Beat:
        speed = 0.0
        if self._train_from is not None:
            began, first = self._train_from
            speed = (self.step - first) / max(1e-6, self.elapsed() - began)
        return Beat(
            token=self.grant.token,
            seq=seq,
            phase=self.phase,
            step=self.step,
            saved_step=self.shipper.saved_step,
            saved_seq=self.shipper.saved_seq,
            train_s=self.elapsed(),
            speed=speed,
            note=str(self._ship_failure or ""),
        )

    # ------------------------------------------------------------ the whole life

    def run(self) -> int:
        """The session from start to result. Returns the process's exit code (docs/exit-codes.md)."""
        for name in ("spool", "ctl", "restore", "code"):
            os.makedirs(self.path(name), exist_ok=True)
        self.heart.start()
        stop_logs = self._every(self.grant.log_s / self.grant.time_scale, self._flush_log)
        try:
            end = self._life()
        except Fenced:
            return 14
        finally:
            stop_logs()
            self.heart.stop()
        return self._write_result(end)

    def _life(self) -> Ended:
        try:
            self._fetch_code()
            self._check_secrets()
            self._setup()
            manifest = self._restore()
            return self._train(manifest)
        except Ended as end:
            return end
        except StoreFailure as failure:
            return Ended("failed", "store_failed", str(failure))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return Ended("failed", "disk_full", "no space left on the session's disk")
            raise

    def _every(self, period: float, act: Callable[[], None]) -> Callable[[], None]:
        end = threading.Event()

        def loop() -> None:
            while not end.wait(max(0.05, period)):
                act()

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()

        def stop() -> None:
            end.set()
            thread.join(timeout=60.0)

        return stop

    def _flush_log(self) -> None:
        if self.fenced:
            return
        try:
            self.log.flush()
            self._metrics_durable()
        except StoreFailure:
            pass  # kept, and tried again at the next flush

    # ------------------------------------------------------------ before the command

    def _fetch_code(self) -> None:
        archive = self.store.get(self.grant.code_key)
        if hashlib.sha256(archive).hexdigest() != self.grant.code_sha256:
            raise Ended("failed", "code_damaged")
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar.getmembers():
                files.inside(self.path("code"), member.name)
            tar.extractall(self.path("code"))  # noqa: S202  our own archive, its hash and its names checked

    def _check_secrets(self) -> None:
        missing = [name for name in self.grant.secrets if not self.environ.get(name)]
        if missing:
            raise Ended("failed", "secret_missing", "not set here: {}".format(", ".join(missing)))

    def _setup(self) -> None:
        if not self.grant.setup:
            return
        self.say("setup")
        command = Command(self.grant.setup, self.path("code"), self._child_env({}), self._append)
        while command.poll() is None:
            self._look_around()
            if self.order is not None or self.fenced:
                command.kill()
                self._raise_if_fenced()
                assert self.order is not None
                raise Ended(*self.order)
            time.sleep(POLL_S)
        code = exit_code(command.finish())
        if code != 0:
            raise Ended("failed", "setup_failed", f"setup exited with {code}", code)

    def _restore(self) -> Optional[Manifest]:
        self.phase = "restore"
        try:
            manifest = restore.fetch_newest(
                self.grant.parents, self.grant.job, self.store, self.path("restore"), self.say
            )
        except restore.NothingVerifies as error:
            raise Ended("failed", "restore_failed", str(error)) from error
        if manifest is None:
            return None
        self.step = manifest.step
        self.shipper.set_parent(manifest)
        self.say(f"restored checkpoint t{manifest.token:04d}/{manifest.seq} at step {manifest.step}")
        if manifest.mode == "folder":
            put_in_place(manifest, self.path("restore"), self._checkpoint_folder())
        else:
            files.write_atomic(self.path("restore", "manifest.json"), manifest.to_bytes())
        return manifest

    def _checkpoint_folder(self) -> str:
        return files.inside(self.path("code"), self.grant.folder or ".")

    # ------------------------------------------------------------ the command

    def _child_env(self, extra: Dict[str, str]) -> Dict[str, str]:
        env = dict(self.environ)
        env.update(self.grant.env)
        env.update(extra)
        env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env.get("PATH", os.defpath)
        env["PYTHONPATH"] = os.pathsep.join(p for p in (self.bundle, env.get("PYTHONPATH", "")) if p)
        env["PYTHONUNBUFFERED"] = "1"
        # Without a fixed seed the order of sets differs from process to process, and with it the training.
        env.setdefault("PYTHONHASHSEED", "0")
        # cuBLAS is deterministic only with a fixed workspace (NVIDIA cuBLAS manual, "Results reproducibility").
        env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return env

    def _session_file(self, manifest: Optional[Manifest]) -> str:
        config = {
            "restore": self.path("restore", "manifest.json") if manifest is not None else None,
            "packs": self.path("restore"),
            "spool": self.path("spool"),
            "metrics": self.path("ctl", "metrics.jsonl"),
            "progress": self.path("ctl", "progress.json"),
            "drain": self.path("ctl", "drain"),
            "every_steps": self.grant.every_steps,
            "every_s": self.grant.every_s,
            "target_steps": self.grant.target_steps,
            "target_epochs": self.grant.target_epochs,
            "time_scale": self.grant.time_scale,
            "runner": os.getpid(),
        }
        path = self.path("ctl", "session.json")
        files.write_atomic(path, json.dumps(config).encode("ascii"))
        return path

    def _train(self, manifest: Optional[Manifest]) -> Ended:
        self.phase = "train"
        extra = {"GPUHOP_JOB": self.grant.job, "GPUHOP_TOKEN": str(self.grant.token)}
        watch: Optional[FolderWatch] = None
        if self.grant.mode == "folder":
            os.makedirs(self._checkpoint_folder(), exist_ok=True)
            watch = FolderWatch(self._checkpoint_folder(), self.path("spool"), SETTLE_S)
        else:
            extra["GPUHOP_SESSION"] = self._session_file(manifest)
        command = Command(self.grant.run, self.path("code"), self._child_env(extra), self._output)
        ship = self._every(POLL_S, self._ship_quietly)
        try:
            while command.poll() is None:
                self._look_around()
                if self.fenced:
                    command.kill()
                    raise Fenced
                self._press(command)
                if watch is not None:
                    self._watch_folder(watch, command.pid)
                time.sleep(POLL_S)
            status = exit_code(command.finish())
        finally:
            ship()
            command.kill()
        self._raise_if_fenced()
        self._look_around()
        return self._settle(status, watch)

    def _look_around(self) -> None:
        """Budget and progress, read once per turn of the main loop."""
        if self.order is None and self.elapsed() >= self.grant.budget_s:
            self._set_order("drained", "budget")
        try:
            progress = json.loads(files.read(self.path("ctl", "progress.json")))
        except FileNotFoundError:
            return
        if self._train_from is None and self.phase == "train":
            self._train_from = (self.elapsed(), progress["step"])
        self.step, self.done = progress["step"], progress["done"]

    def _press(self, command: Command) -> None:
        """Hand an order to the command: first as a wish, after the grace for good."""
        if self.order is None:
            return
        now = self.elapsed()
        if self._told_at is None:
            self._told_at = now
            self.phase = "drain"
            self.say(f"stopping: {wire.REASONS[self.order[1]]}")
            if self.grant.mode == "folder":
                command.signal(signal.SIGTERM)
            else:
                files.write_atomic(self.path("ctl", "drain"), b"")
        elif now - self._told_at > self.grant.grace_s and not self._killed:
            self._killed = True
            self.say(f"the command did not leave within {self.grant.grace_s:.0f} s of being asked: killing it")
            command.signal(signal.SIGKILL)

    def _output(self, piece: bytes) -> None:
        self._append(piece)
        if self.grant.progress is None:
            return
        lines = (self._line + piece).split(b"\n")
        self._line = lines.pop()[-10000:]
        for line in lines:
            found = re.search(self.grant.progress, line.decode("utf-8", "replace"))
            if found:
                try:
                    self.step = int(found.group(1))
                except ValueError:
                    continue

    def _watch_folder(self, watch: FolderWatch, group: Optional[int]) -> None:
        if os.listdir(self.path("spool")):
            return
        due = watch.due(self.elapsed(), self.grant.every_s, self.step, self.grant.every_steps)
        if (due or group is None) and watch.ready(time.monotonic(), group):
            watch.take(self.step, plain_state.fingerprint(), self.elapsed())

    # ------------------------------------------------------------ shipping

    def _metrics_durable(self) -> int:
        """All metrics written so far are in the store when this returns; their number of lines."""
        with self._metrics_lock:
            try:
                with open(self.path("ctl", "metrics.jsonl"), "rb") as source:
                    source.seek(self._metrics_read)
                    data = source.read()
            except FileNotFoundError:
                return 0
            data = data[: data.rfind(b"\n") + 1]
            self._metrics_read += len(data)
            self._metrics_lines += data.count(b"\n")
            if data:
                self.metrics.append(data)
            self.metrics.flush()
            return self._metrics_lines

    def _ship_quietly(self) -> None:
        if self.fenced:
            return
        try:
            if os.listdir(self.path("spool")):
                self.heart.look_if_stale()
            if not self.fenced and self.shipper.ship_newest():
                self._ship_failure = None
                self.say(f"saved step {self.shipper.saved_step} (checkpoint {self.shipper.saved_seq})")
                if self.shipper.checkpoints_left <= 1:
                    self._set_order("drained", "budget")
        except (StoreFailure, OSError) as failure:
            if self._ship_failure is None:
                self.say(f"a checkpoint waits on this disk: {failure}")
            self._ship_failure = failure
        except GrantUsedUp:
            self._set_order("drained", "budget")

    # ------------------------------------------------------------ after the command

    def _settle(self, status: int, watch: Optional[FolderWatch]) -> Ended:
        """The last snapshot goes out, then the verdict over the command."""
        self.phase = "ship"
        if watch is not None:
            shutil.rmtree(self.path("spool"), ignore_errors=True)
            os.makedirs(self.path("spool"))
            self._watch_folder(watch, None)
        try:
            self.heart.look_if_stale()
            self._raise_if_fenced()
            self.shipper.ship_newest()
        except GrantUsedUp as error:
            self.say(str(error))
        self._metrics_durable()
        return verdict(self.grant, status, self.step, self.done, self.order)

    def _raise_if_fenced(self) -> None:
        if self.fenced:
            raise Fenced

    def _write_result(self, end: Ended) -> int:
        sent: List[str] = []
        try:
            if end.status == "target":
                sent = outputs.ship(self.grant, self.store, self.path("code"), self.say)
            self.say(f"session ends: {end.message or wire.REASONS[end.reason]}")
            self.log.flush()
            self._look_before_result()
            result = Result(
                token=self.grant.token,
                status=end.status,
                reason=end.reason,
                step=self.step,
                saved_step=self.shipper.saved_step,
                saved_seq=self.shipper.saved_seq,
                train_s=self.elapsed(),
                exit_code=end.code,
                message=end.message,
                outputs=sent,
                progressed=self.shipper.progressed,
            )
            self.store.put_once(wire.result_key(self.grant.job, self.grant.token), result.to_bytes())
        except Fenced:
            return 14
        except StoreFailure as failure:
            self.say(f"the result could not be written: {failure}")
            return 15
        return CODES.get(end.reason, 0 if end.status != "failed" else 13)

    def _look_before_result(self) -> None:
        self.heart.look()
        self._raise_if_fenced()


CODES = {
    "setup_failed": 12,
    "restore_failed": 11,
    "restore_refused": 11,
    "store_failed": 15,
    "disk_full": 16,
    "code_damaged": 17,
    "secret_missing": 18,
}
"""Exit codes of a session by reason; 0: ended as planned, 13: the command failed, 14: fenced (docs/exit-codes.md)."""


def verdict(grant: Grant, status: int, step: int, done: bool, order: Optional[Tuple[str, str]]) -> Ended:
    """What the command's exit means. `status`: exit code, negative for a signal. Pure."""
    if grant.mode == "api" and status == training.REFUSED:
        return Ended("failed", "restore_refused", "see the end of the log", status)
    if grant.mode == "api" and status == training.DISK_FULL:
        return Ended("failed", "disk_full", "the last save did not fit on the session's disk", status)
    if status == 0 and done:
        return Ended("target", "target_reached", "", 0)
    goal = grant.target_steps or grant.target_epochs
    if grant.mode == "folder" and goal is not None and status == 0 and step >= goal:
        return Ended("target", "target_reached", "", 0)
    if order is not None:
        return Ended(order[0], order[1], "", status)
    if status == training.DRAINED and grant.mode == "api":
        return Ended("drained", "signal", "the command got a SIGTERM", status)
    if status == 0:
        return _exited_early_or_done(grant, step)
    if status < 0:
        return Ended("failed", "script_killed", f"the command was killed by signal {-status}", status)
    return Ended("failed", "script_failed", f"the command exited with {status}", status)


def _exited_early_or_done(grant: Grant, step: int) -> Ended:
    """`step` counts what the target counts; in folder mode it is the number that `progress` found in the log."""
    if grant.target_steps is None and grant.target_epochs is None:
        return Ended("target", "exited_0", "", 0)
    goal = f"{grant.target_steps} steps" if grant.target_steps else f"{grant.target_epochs} epochs"
    return Ended("failed", "ended_early", f"the command exited 0 at step {step} of {goal}", 0)
