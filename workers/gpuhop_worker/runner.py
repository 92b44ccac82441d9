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
import sys
import tarfile
import threading
import time
import traceback
from typing import Callable, Dict, List, Optional, Tuple

from gpuhop_worker import files, outputs, plain_state, restore, wire
from gpuhop_worker.beat import Heart
from gpuhop_worker.folder import FolderWatch, put_in_place
from gpuhop_worker.logbook import Logbook
from gpuhop_worker.process import Command, exit_code
from gpuhop_worker.restore import Restored
from gpuhop_worker.retention import MeasuredFile
from gpuhop_worker.shipper import GrantUsedUp, Shipper
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.stepfinder import StepFinder
from gpuhop_worker.stopping import Stopping
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.streams import MetricsFile, SegmentStream
from gpuhop_worker.verdict import FENCED, Ended, session_code, verdict
from gpuhop_worker.wire import Beat, Control, Grant, Result

POLL_S = 0.05
FIRST_SLOT = "a"  # what a restored state is put into
SETTLE_S = 1.0  # a checkpoint folder must have been still for this long
LAST_PATIENCE_S = 20.0  # for the words of a session that could not reach its store


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
    """`bundle`: path of the zipapp or folder that holds this package, for the command's PYTHONPATH. `patience_s`: how
    long one store operation is tried again while the store is away."""

    def __init__(
        self, grant: Grant, folder: str, bundle: str, environ: Dict[str, str], patience_s: float = 120.0
    ) -> None:
        self.grant = grant
        self.folder = folder
        self.bundle = bundle
        self.environ = environ
        self.started = time.monotonic()
        self.store = GrantStore(grant.addresses, patience_s=patience_s)
        log = SegmentStream(self.store, numbered(self.store, grant, "log"), may_drop=True)
        self.log = Logbook(log, (environ.get(name, "") for name in grant.secrets))
        metrics = SegmentStream(self.store, numbered(self.store, grant, "metrics"), may_drop=False)
        metrics_path = self.path("ctl", "metrics.jsonl")
        self.metrics = MetricsFile(metrics_path, metrics)
        self.phase = "setup"
        self.order: Optional[Tuple[str, str]] = None  # (status word for the result, reason)
        self.fenced = False
        self.step = 0
        self.done = False
        self.finder = StepFinder(grant.progress, self.say)
        self.stopping = Stopping(grant, self.path("ctl", "drain"), self.elapsed, self.say)
        self._copy_after = 0.0
        self._ship_failure: Optional[Exception] = None
        self._ship_pause = 0.0
        self._ship_after = 0.0
        self._train_from: Optional[Tuple[float, int]] = None
        self.quick = GrantStore(grant.addresses, patience_s=0.0)
        period = max(grant.beat_s / grant.time_scale, 0.05)
        self.heart = Heart(self.quick, grant.job, grant.token, period, self._beat, self._obey, self.say)
        os.makedirs(folder, exist_ok=True)
        self.slots = SlotKeeper(folder, memory=grant.mode == "api")
        best = grant.keep_best
        measured = (lambda step: None) if best is None else MeasuredFile(metrics_path, best["metric"]).before
        self.shipper = Shipper(
            grant,
            self.store,
            self.path("spool"),
            self.slots,
            self._before_commit,
            self._still_ours,
            measured=measured,
        )

    # ------------------------------------------------------------ small helpers

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def elapsed(self) -> float:
        """Seconds of the session's clock since it began."""
        return (time.monotonic() - self.started) * self.grant.time_scale

    def say(self, text: str) -> None:
        self.log.say(text)

    # ------------------------------------------------------------ orders

    def stop_by_signal(self) -> None:
        self._set_order("drained", "signal")

    def _set_order(self, status: str, reason: str) -> None:
        if self.order is None:
            self.order = (status, reason)

    def _obey(self, control: Control) -> None:
        if control.token > self.grant.token:
            self.fenced = True
            self.store.hurry(0.0)
        elif control.token == self.grant.token and control.order in ("drain", "pause", "cancel"):
            reason = {"drain": "drained", "pause": "paused", "cancel": "cancelled"}[control.order]
            self._set_order("drained", reason)

    def _beat(self, seq: int) -> Optional[Beat]:
        if self.fenced:
            return None
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

    def _raise_if_fenced(self) -> None:
        if self.fenced:
            raise Fenced

    def _still_ours(self) -> bool:
        return self.heart.fresh() and not self.fenced

    def _stop_if_told(self) -> None:
        """Between the parts of the way to the command."""
        self._look_around()
        self._raise_if_fenced()
        if self.order is not None:
            raise Ended(*self.order)

    # ------------------------------------------------------------ the whole life

    def run(self) -> int:
        """The session from start to result. Returns the process's exit code (docs/exit-codes.md)."""
        if self._ran_before():
            print("gpuhop: this session has run already, and a session runs once", file=sys.stderr)
            return FENCED
        self.heart.start()
        stop_logs = self._every(self.grant.log_s / self.grant.time_scale, self._flush)
        try:
            return self._write_result(self._life(), stop_logs)
        except Fenced:
            return FENCED
        except BaseException:
            self.say("the worker failed, which is a bug of gpuhop:\n" + traceback.format_exc())
            self.store.hurry(LAST_PATIENCE_S)
            self._flush()
            raise
        finally:
            stop_logs()
            self.heart.stop()
            self.log.close()

    def _ran_before(self) -> bool:
        """True when a session of this token has been here: a notebook cell run twice, a machine restarted. Its keys
        were written, and writing them again with other bytes would break the one-writer rule (R10, R12)."""
        try:
            os.close(os.open(self.path("claimed"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return True
        except OSError:
            pass  # a full disk: it is told of later
        for key in (
            wire.beat_key(self.grant.job, self.grant.token),
            wire.result_key(self.grant.job, self.grant.token),
        ):
            try:
                if self.store.granted(key, "get"):
                    self.quick.get(key)
                    return True
            except StoreFailure:
                continue
        return False

    def _life(self) -> Ended:
        try:
            for name in ("spool", "ctl", "code"):
                os.makedirs(self.path(name), exist_ok=True)
            self._fetch_code()
            self._check_secrets()
            self._setup()
            restored = self._restore()
            self._stop_if_told()
            return self._train(restored)
        except Ended as end:
            return end
        except StoreFailure as failure:
            self.store.hurry(LAST_PATIENCE_S)
            return Ended("failed", "store_failed", str(failure))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return Ended("failed", "disk_full", "no space left on the session's disk")
            raise

    def _every(self, period: float, act: Callable[[], None]) -> Callable[[], None]:
        end = threading.Event()

        def loop() -> None:
            while not end.wait(max(0.05, period)):
                try:
                    act()
                except Exception as error:  # this thread must not end before it is told to
                    self.say(f"an error, tried again later: {error!r}")
                    end.wait(5.0)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()

        def stop() -> None:
            end.set()
            thread.join(timeout=60.0)

        return stop

    def _flush(self) -> None:
        """Logs and metrics, as far as they go; what does not is kept for the next time."""
        for ship in (self.log.flush, self.metrics.durable):
            try:
                if not self.fenced:
                    ship()
            except StoreFailure:
                continue

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
        command = Command(self.grant.setup, self.path("code"), self._child_env({}), self.log.output)
        try:
            while command.poll() is None:
                self._stop_if_told()
                time.sleep(POLL_S)
            code = exit_code(command.finish())
        finally:
            command.kill()
            self.log.output_ends()
        if code != 0:
            raise Ended("failed", "setup_failed", f"setup exited with {code}", code)

    def _restore(self) -> Optional[Restored]:
        self.phase = "restore"
        slot = self.slots.slot(FIRST_SLOT)
        try:
            restored = restore.fetch_newest(
                self.grant.parents, self.grant.job, self.store, slot, self.say, self._stop_if_told
            )
        except restore.NothingVerifies as error:
            raise Ended("failed", "restore_failed", str(error)) from error
        if restored is None:
            return None
        manifest = restored.manifest
        if self.grant.mode == "folder":
            put_in_place(restored, self._checkpoint_folder())
        else:
            files.write_atomic(self.path("ctl", "manifest.json"), manifest.to_bytes())
        self.step = manifest.step
        self.shipper.set_parent(restored)
        self.say(f"restored checkpoint t{manifest.token:04d}/{manifest.seq} at step {manifest.step}")
        return restored

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

    def _session_file(self, restored: Optional[Restored]) -> str:
        config = {
            "restore": self.path("ctl", "manifest.json") if restored is not None else None,
            "restored_slot": FIRST_SLOT if restored is not None else None,
            "offsets": restored.offsets if restored is not None else {},
            "slots": self.slots.paths,
            "spool": self.path("spool"),
            "metrics": self.path("ctl", "metrics.jsonl"),
            "progress": self.path("ctl", "progress.json"),
            "drain": self.path("ctl", "drain"),
            "every_steps": self.grant.every_steps,
            "every_s": self.grant.every_s,
            "every_auto": self.grant.every_auto,
            "mean_life_s": self.grant.mean_life_s,
            "target_steps": self.grant.target_steps,
            "target_epochs": self.grant.target_epochs,
            "time_scale": self.grant.time_scale,
            "runner": os.getpid(),
        }
        path = self.path("ctl", "session.json")
        files.write_atomic(path, json.dumps(config).encode("ascii"))
        return path

    def _train(self, restored: Optional[Restored]) -> Ended:
        self.phase = "train"
        extra = {"GPUHOP_JOB": self.grant.job, "GPUHOP_TOKEN": str(self.grant.token)}
        watch: Optional[FolderWatch] = None
        if self.grant.mode == "folder":
            os.makedirs(self._checkpoint_folder(), exist_ok=True)
            first = FIRST_SLOT if restored is not None else None
            folder = self._checkpoint_folder()
            watch = FolderWatch(folder, self.path("spool"), self.slots, first, SETTLE_S, self.say)
        else:
            extra["GPUHOP_SESSION"] = self._session_file(restored)
        command = Command(self.grant.run, self.path("code"), self._child_env(extra), self._output)
        stop_ships = self._every(POLL_S, self._ship_quietly)
        try:
            while not self._over(command):
                self._look_around()
                self._raise_if_fenced()
                if watch is not None:
                    self._watch_folder(watch, command.pid)
                if self.order is not None:
                    self.phase = "drain"
                    self.stopping.press(command, watch, wire.REASONS[self.order[1]])
                time.sleep(POLL_S)
            raw, ended_at = command.finish(), time.time()
        finally:
            command.kill()
            self._output_ends()
            stop_ships()
        self._raise_if_fenced()
        self._look_around()
        if watch is not None:
            return self._settle(exit_code(raw), watch, None if self.stopping.own_will(raw) else ended_at)
        return self._settle(exit_code(raw), None, None)

    def _over(self, command: Command) -> bool:
        """True when the command and, where only its shell died of a SIGTERM, its training have ended."""
        raw = command.poll()
        if raw is None:
            return False
        if self.stopping.lingers(command, raw):
            self._set_order("drained", "signal")
            return False
        return True

    def _look_around(self) -> None:
        """Budget and progress, read once per turn of the main loop."""
        if self.order is None and self.elapsed() >= self.grant.budget_s - self._lead():
            self._set_order("drained", "budget")
        try:
            progress = json.loads(files.read(self.path("ctl", "progress.json")))
        except FileNotFoundError:
            return
        if self._train_from is None and self.phase == "train":
            self._train_from = (self.elapsed(), progress["step"])
        self.step, self.done = progress["step"], progress["done"]

    def _lead(self) -> float:
        """How long before the end of its budget a session saves for the last time, so that it lands: as long as the
        last checkpoint took to ship and half again, but never most of the session."""
        return min(1.5 * self.shipper.ship_s * self.grant.time_scale, 0.3 * self.grant.budget_s)

    def _output(self, piece: bytes) -> None:
        self.log.output(piece)
        self.finder.feed(piece)
        self._found_step()

    def _output_ends(self) -> None:
        self.log.output_ends()
        self.finder.end()
        self._found_step()

    def _found_step(self) -> None:
        if self.finder.step is not None:
            self.step = self.finder.step

    def _watch_folder(self, watch: FolderWatch, group: int) -> None:
        """While the command runs: a snapshot when it is due, or when the command is about to be stopped."""
        now = time.monotonic()
        watch.look(now, group)
        due = watch.due(self.elapsed(), self.grant.every_s, self.step, self.grant.every_steps)
        if not (due or self.order is not None) or not watch.ready(now):
            return
        if now < self._copy_after or os.listdir(self.path("spool")):
            return
        try:
            watch.take(self.step, plain_state.fingerprint(), self.elapsed())
        except OSError as error:
            self.say(f"the checkpoint folder could not be copied, tried again later: {error.strerror}")
            self._copy_after = now + 30.0

    # ------------------------------------------------------------ shipping

    def _before_commit(self) -> int:
        """The last thing before a manifest: metrics durable, and the token still ours as far as one can know."""
        lines = self.metrics.durable()
        self.heart.fresh()
        self._raise_if_fenced()
        return lines

    def _ship_quietly(self) -> None:
        if self.fenced or time.monotonic() < self._ship_after or not os.listdir(self.path("spool")):
            return
        if self.order is not None and self.shipper.saved_seq and self.shipper.checkpoints_left <= 1:
            return  # the grant's last checkpoint is for the last state: what the command saves when it leaves
        try:
            self.heart.fresh()
            if not self.fenced and self.shipper.ship_newest():
                self._shipped()
                if self.shipper.checkpoints_left <= 1:
                    self._set_order("drained", "budget")
        except (StoreFailure, OSError) as failure:
            if self._ship_failure is None:
                self.say(f"a checkpoint waits on this disk: {failure}")
            self._ship_failure = failure
            self._ship_pause = min(30.0, max(0.5, 2 * self._ship_pause))
            self._ship_after = time.monotonic() + self._ship_pause
        except GrantUsedUp:
            self._set_order("drained", "budget")
        except Fenced:
            return

    def _shipped(self) -> None:
        self._ship_failure, self._ship_pause = None, 0.0
        ship = self.shipper
        share = f"{ship.shipped_bytes / 1e6:.1f} of {ship.raw_bytes / 1e6:.1f} MB shipped"
        self.say(f"saved step {ship.saved_step} (checkpoint {ship.saved_seq}, {share})")

    # ------------------------------------------------------------ after the command

    def _settle(self, status: int, watch: Optional[FolderWatch], died_at: Optional[float]) -> Ended:
        """The last snapshot goes out, then the verdict over the command."""
        self.phase = "ship"
        self.heart.fresh()
        self._raise_if_fenced()
        full = watch is not None and not self._take_last(watch, died_at)
        try:
            if self.shipper.ship_newest():
                self._shipped()
        except GrantUsedUp as error:
            self.say(str(error))
        self.metrics.durable()
        if full:
            return Ended(
                "failed", "disk_full", "the last state of the folder did not fit on the session's disk", status
            )
        return verdict(self.grant, status, self.step, self.done, self.order)

    def _take_last(self, watch: FolderWatch, died_at: Optional[float]) -> bool:
        """What the command left in its folder, beside a snapshot that may still wait. False: no space for it."""
        for _ in range(2):
            try:
                if watch.ready_at_end(died_at):
                    watch.take(self.step, plain_state.fingerprint(), self.elapsed())
                return True
            except OSError as error:
                self.say(f"the checkpoint folder could not be copied: {error.strerror}")
                self.shipper.ship_newest()  # what waits has space to give
        return False

    def _write_result(self, end: Ended, stop_logs: Callable[[], None]) -> int:
        self.phase = "ship"
        try:
            sent = self._ship_outputs(end)
            self.say(f"session ends: {end.message or wire.REASONS[end.reason]}")
            stop_logs()
            self._flush()
            self.heart.look()
            self._raise_if_fenced()
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
        except StoreFailure as failure:
            self.say(f"the result could not be written: {failure}")
            return session_code(Ended("failed", "store_failed"))
        return session_code(end)

    def _ship_outputs(self, end: Ended) -> List[str]:
        if end.status != "target":
            return []
        try:
            return outputs.ship(self.grant, self.store, self.path("code"), self.say)
        except OSError as error:
            self.say(f"the outputs could not be packed: {error}")
            return []
