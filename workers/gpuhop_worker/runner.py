"""Runs one chunk: code, setup, restore, the user's command, saves on their way, result.

One Runner per session process: it makes the parts and takes them through the session. The main thread decides (every
50 ms); one thread beats, one ships snapshots, one ships logs, one reads the command's output.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Callable, Dict, List, Optional, Sequence

from gpuhop_worker import child, files, lastword, localstate, preparing, restarts, wire
from gpuhop_worker.beat import Heart
from gpuhop_worker.commanding import Commanding, End, lead_s
from gpuhop_worker.folder import FolderWatch
from gpuhop_worker.lives import Lives
from gpuhop_worker.localstate import FIRST_SLOT
from gpuhop_worker.logbook import Logbook
from gpuhop_worker.meter import Meter
from gpuhop_worker.orders import Fenced, Orders
from gpuhop_worker.places import Places
from gpuhop_worker.process import POLL_S
from gpuhop_worker.progress import Progress
from gpuhop_worker.restore import Restored
from gpuhop_worker.retention import MeasuredFile
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.shipping import Shipping
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.stepfinder import StepFinder
from gpuhop_worker.stopping import Stopping
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.streams import MetricsFile, SegmentStream
from gpuhop_worker.threads import every
from gpuhop_worker.verdict import FENCED, Ended, of_machine, session_code, verdict
from gpuhop_worker.watching import SETTLE_S, Watching
from gpuhop_worker.wire import Beat, Grant

LAST_PATIENCE_S = 20.0  # for the words of a session that could not reach its store


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
    long one store operation is tried again while the store is away. `spent_s`: real seconds that the session has worked
    already; `notes`: what it did in them, for the log."""

    def __init__(
        self,
        grant: Grant,
        places: Places,
        bundle: str,
        environ: Dict[str, str],
        patience_s: float = 120.0,
        spent_s: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        self._grant = grant
        self._bundle = bundle
        self._environ = environ
        self._began = time.monotonic() - spent_s
        self._notes = notes
        self._places = places
        self._store = GrantStore(grant.addresses, patience_s=patience_s)
        self._quick = GrantStore(grant.addresses, patience_s=0.0)
        log = SegmentStream(self._store, numbered(self._store, grant, "log"), may_drop=True)
        self._log = Logbook(log, (environ.get(name, "") for name in grant.secrets))
        metrics = SegmentStream(self._store, numbered(self._store, grant, "metrics"), may_drop=False)
        self._metrics = MetricsFile(self._places.metrics, metrics)
        say = self._log.say
        self._orders = Orders(grant.token, lambda: self._store.hurry(0.0))
        self._progress = Progress(self._places.progress, StepFinder(grant.progress, say), self._elapsed)
        period = max(grant.beat_s / grant.time_scale, 0.05)
        self._heart = Heart(self._quick, grant.job, grant.token, period, self._beat, self._orders.obey, say)
        self._slots = SlotKeeper(places.root, memory=grant.mode == "api")
        spool = self._places.spool
        best = grant.keep_best
        measured = (lambda step: None) if best is None else MeasuredFile(places.metrics, best["metric"]).before
        self._shipper = Shipper(
            grant, self._store, spool, self._slots, self._before_commit, self._still_ours, measured=measured
        )
        self._restoring = Meter()
        self._shipping = Shipping(self._shipper, self._places, self._heart, self._orders, self._time_left, say)
        self._lives = Lives(
            grant,
            self._places,
            self._slots,
            self._shipper,
            self._shipping,
            self._metrics,
            self._progress,
            self._orders,
            self._ask_first,
            say,
        )

    def stop_by_signal(self) -> None:
        """From a signal handler: it only sets the order."""
        self._orders.give("drained", "signal")

    # ------------------------------------------------------------ what the threads ask

    def _elapsed(self) -> float:
        """Seconds of the session's clock since it began."""
        return (time.monotonic() - self._began) * self._grant.time_scale

    def _time_left(self) -> float:
        """Real seconds of the session's budget."""
        return (self._grant.budget_s - self._elapsed()) / self._grant.time_scale

    def _beat(self, seq: int) -> Optional[Beat]:
        if self._orders.fenced:
            return None
        return Beat(
            token=self._grant.token,
            seq=seq,
            phase=self._progress.phase,
            step=self._progress.step,
            saved_step=self._shipper.saved_step,
            saved_seq=self._shipper.saved_seq,
            train_s=self._elapsed(),
            speed=self._progress.speed(),
            note=self._restoring.text or self._shipping.note,
        )

    def _still_ours(self) -> bool:
        return self._heart.fresh() and not self._orders.fenced

    def _before_commit(self) -> int:
        """The last thing before a manifest: metrics durable, and the token still ours as far as one can know."""
        lines = self._metrics.durable()
        self._ask_first()
        return lines

    def _ask_first(self) -> None:
        """A session that was frozen hears here that another one holds the job. Raises Fenced."""
        self._heart.fresh()
        self._orders.raise_if_fenced()

    def _flush(self) -> None:
        """Logs and metrics, as far as they go; what does not is kept for the next time."""
        for ship in (self._log.flush, self._metrics.durable):
            try:
                if not self._orders.fenced:
                    ship()
            except (StoreFailure, OSError):
                continue

    def _look(self) -> None:
        """Budget and progress, read once per turn of the main loop."""
        lead = lead_s(self._grant, self._shipper.ship_s)
        if self._orders.stop is None and self._elapsed() >= self._grant.budget_s - lead:
            self._orders.give("drained", "budget")
        self._progress.look()

    def _stop_if_told(self) -> None:
        """Between the parts of the way to the command."""
        self._look()
        self._orders.raise_if_told()

    # ------------------------------------------------------------ the whole life

    def run(self) -> int:
        """The session from start to result. Returns the process's exit code (docs/exit-codes.md)."""
        if self._ran_before():
            print("gpuhop: this session has run already, and a session runs once", file=sys.stderr)
            return FENCED
        for note in self._notes:
            self._log.say(note)
        self._heart.start()
        stop_logs = every(self._grant.log_s / self._grant.time_scale, self._flush, self._log.say)
        try:
            return self._say_last(self._life(), stop_logs)
        except Fenced:
            return FENCED
        except BaseException:
            self._log.say("the worker failed, which is a bug of gpuhop:\n" + traceback.format_exc())
            self._store.hurry(LAST_PATIENCE_S)
            self._flush()
            raise
        finally:
            stop_logs()
            self._heart.stop()
            self._log.close()

    def _ran_before(self) -> bool:
        """True when a session of this token has been here: a notebook cell run twice, a machine restarted. Its keys
        were written, and writing them again with other bytes would break the one-writer rule (R10, R12)."""
        try:
            os.close(os.open(self._places.claimed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return True
        except OSError:
            pass  # a full disk: it is told of later
        job, token = self._grant.job, self._grant.token
        for key in (wire.beat_key(job, token), wire.result_key(job, token)):
            try:
                if self._store.granted(key, "get"):
                    self._quick.get(key)
                    return True
            except StoreFailure:
                continue
        return False

    def _life(self) -> Ended:
        try:
            self._prepare()
            restored = self._restore()
            self._stop_if_told()
            return self._train(restored)
        except Ended as end:
            return end
        except StoreFailure as failure:
            self._store.hurry(LAST_PATIENCE_S)
            return Ended("failed", "store_failed", str(failure))
        except OSError as error:
            ended = of_machine(error)
            if ended is None:
                raise
            return ended

    def _prepare(self) -> None:
        grant, code = self._grant, self._places.code
        self._places.make()
        preparing.fetch_code(grant, self._store, code)
        preparing.check_secrets(grant, self._environ)
        env = child.environment(grant, self._environ, self._bundle)
        preparing.run_setup(grant, code, env, self._log, self._stop_if_told)

    def _restore(self) -> Optional[Restored]:
        self._progress.phase = "restore"
        slot = self._slots.slot(FIRST_SLOT)
        restored = preparing.fetch_state(
            self._grant, self._store, slot, self._log.say, self._stop_if_told, self._restoring
        )
        if restored is None:
            return None
        manifest = restored.manifest
        preparing.put_down(self._grant, self._places, restored)
        self._progress.step = manifest.step
        self._shipper.set_parent(restored)
        self._log.say(f"restored checkpoint t{manifest.token:04d}/{manifest.seq} at step {manifest.step}")
        return restored

    def _train(self, restored: Optional[Restored]) -> Ended:
        grant, places = self._grant, self._places
        watching = self._watching(restored) if grant.mode == "folder" else None
        start = localstate.of_restored(restored) if restored is not None else None
        env = child.environment(grant, self._environ, self._bundle, child.of_the_worker(grant, places))
        stopping = Stopping(grant, places.drain, self._elapsed, self._log.say)
        commanding = Commanding(grant, places.code, self._log, self._orders, self._progress, stopping, self._look)
        stop_ships = every(POLL_S, self._shipping.turn, self._log.say)
        try:
            end = self._lives.run(commanding, env, start, watching)
        finally:
            stop_ships()
        return self._settle(end, watching)

    def _watching(self, restored: Optional[Restored]) -> Watching:
        folder = preparing.checkpoint_folder(self._grant, self._places)
        os.makedirs(folder, exist_ok=True)
        first = FIRST_SLOT if restored is not None else None
        spool, say = self._places.spool, self._log.say
        watch = FolderWatch(folder, spool, self._slots, first, SETTLE_S, say)
        return Watching(watch, self._grant, spool, self._progress, self._elapsed, say, self._shipping)

    def _settle(self, end: End, watching: Optional[Watching]) -> Ended:
        """The last snapshot goes out, then the verdict over the command."""
        self._progress.phase = "ship"
        self._ask_first()
        full = watching is not None and not watching.take_last(end.cut_off_at)
        self._shipping.last()
        self._metrics.durable()
        if watching is not None and full:
            if watching.failed is not None and watching.failed.errno not in files.NO_SPACE:
                raise watching.failed
            fact = "the last state of the folder did not fit on the session's disk"
            return Ended("failed", "disk_full", fact, end.status)
        if self._progress.unread is not None:
            raise self._progress.unread
        ended = verdict(self._grant, end.status, self._progress.step, self._progress.done, self._orders.stop)
        if ended.reason == "script_failed" and restarts.repeated(self._lives.crashes):
            return Ended(ended.status, ended.reason, f"{ended.message}, twice from the same state", ended.code)
        return ended

    def _say_last(self, end: Ended, stop_logs: Callable[[], None]) -> int:
        grant, say = self._grant, self._log.say
        self._progress.phase = "ship"
        try:
            sent = lastword.ship_outputs(grant, self._store, self._places.code, end, say)
            say(f"session ends: {end.message or wire.REASONS[end.reason]}")
            stop_logs()
            self._flush()
            self._heart.look()
            self._orders.raise_if_fenced()
            result = lastword.result_of(
                grant, end, self._progress.step, self._shipper, self._elapsed(), sent, self._lives
            )
            self._store.put_once(wire.result_key(grant.job, grant.token), result.to_bytes())
        except StoreFailure as failure:
            say(f"the result could not be written: {failure}")
            return session_code(Ended("failed", "store_failed"))
        return session_code(end)
