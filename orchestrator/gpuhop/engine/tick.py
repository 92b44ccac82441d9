"""One turn of the loop: look at every live session, settle what is over, plan, carry out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from gpuhop.db import jobs, sessions, storage
from gpuhop.db.records import SessionRow
from gpuhop.domain.judge import Phase, Seen, judge
from gpuhop.domain.plan import Action, Finish, Launch, Order, Withdraw, plan
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.engine import launching, observe, retention, settling
from gpuhop.engine.parts import Parts
from gpuhop.errors import DatabaseError, GpuhopError, LeaseLost, StoreError
from gpuhop_worker import wire
from gpuhop_worker.wire import Control

log = logging.getLogger("gpuhop")


@dataclass
class Report:
    """What a tick did and what went wrong; `troubles` are shown to the user, and nothing was lost by them."""

    actions: list[Action] = field(default_factory=list)
    troubles: list[GpuhopError] = field(default_factory=list)


class Mishap(GpuhopError):
    """A part failed in a way that it does not document: an adapter's bug, a library's own exception."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(f"{what} failed: {type(error).__name__}: {error}", "gpuhop doctor")


class Failures:
    """Since when something has failed, several times in a row. One failure counts as none (DESIGN I7)."""

    ENOUGH = 3

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[datetime, int]] = {}

    def failed(self, what: Hashable, now: datetime) -> float:
        """Seconds since the first failure of the row; 0.0 until there are enough of them."""
        since, count = self._since.get(what, (now, 0))
        self._since[what] = (since, count + 1)
        return (now - since).total_seconds() if count + 1 >= self.ENOUGH else 0.0

    def worked(self, what: Hashable) -> None:
        self._since.pop(what, None)

    def forget_all_but(self, those: set[Hashable]) -> None:
        self._since = {what: row for what, row in self._since.items() if what in those}


class Loop:
    """The engine's turn. It remembers only which orders it has written already (again after a restart: harmless) and
    which calls have been failing (counted anew after a restart: it only waits longer)."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ordered: dict[str, tuple[int, str]] = {}
        self._mute = Failures()
        self._tidy_at = datetime.min.replace(tzinfo=UTC)
        self._back: dict[int, datetime | None] = {}  # by session: since when the store answers again; None: it is away

    def tick(self) -> Report:
        """Never raises for one session's or one platform's trouble; a database that fails is raised."""
        report = Report()
        with self._parts.db.read() as c:
            live = sessions.live(c)
        self._mute.forget_all_but({session.id for session in live})
        self._back = {session.id: self._back[session.id] for session in live if session.id in self._back}
        for session in live:
            self._guarded(report, session.name, partial(self._look_at, session))
        with self._parts.db.read() as c:
            world, troubles = observe.world_and_troubles(self._parts, c)
        report.troubles += troubles
        report.actions = list(plan(world))
        for action in report.actions:
            self._guarded(report, f"{type(action).__name__.lower()} of {action.job}", partial(self._apply, action))
        self._guarded(report, "retention", self._retain)
        return report

    def _retain(self) -> None:
        """What is to be removed by now; leftovers at the start and from time to time."""
        now = self._parts.clock.now()
        with self._parts.db.read() as c:
            due = storage.jobs_to_look_at(c, now)
        for job in due:
            retention.sweep_later(self._parts, job)
        if now >= self._tidy_at:
            self._tidy_at = now + timedelta(seconds=retention.LOOK_EVERY_S)
            retention.tidy(self._parts)

    def _guarded(self, report: Report, what: str, act: Callable[[], None]) -> None:
        """One session's or one job's trouble stays its own, whatever its adapter raises."""
        try:
            act()
        except LeaseLost as error:
            log.warning("stale write dropped: %s", error.fact, extra={"action": "stale"})
        except DatabaseError:
            raise
        except GpuhopError as error:
            log.warning("%s", error.fact, extra={"action": "trouble"})
            report.troubles.append(error)
        except Exception as error:
            log.exception("%s failed", what, extra={"action": "mishap"})
            report.troubles.append(Mishap(what, error))

    def _look_at(self, session: SessionRow) -> None:
        if session.state is SessionState.LAUNCHING and session.handle is None:
            self._repair(session)
            return
        # The time is read before the look: a machine that falls asleep in between must not take its own sleep for
        # the session's silence.
        now = self._parts.clock.now()
        profile = observe.profile_of(self._parts, session)
        seen = observe.look(self._parts, session)
        if seen.phase is Phase.UNKNOWN and seen.store_answered:
            seen = replace(seen, mute_s=self._mute.failed(session.id, now))
        else:
            self._mute.worked(session.id)
        seen = replace(seen, back_at=self._back_at(session.id, seen, now))
        verdict = judge(observe.session_view(session), seen, profile, now)
        if verdict.state in (SessionState.ENDED, SessionState.LOST):
            settling.settle(self._parts, session, seen, verdict)
        else:
            settling.note(self._parts, session, seen, verdict)
        if seen.trouble:
            raise StoreError(seen.trouble, "gpuhop store check   (sessions go on meanwhile)")

    def _back_at(self, session: int, seen: Seen, now: datetime) -> datetime | None:
        if not seen.store_answered:
            self._back[session] = None
        elif seen.new_beat:
            self._back.pop(session, None)
        elif session in self._back and self._back[session] is None:
            self._back[session] = now
        return self._back.get(session)

    def _repair(self, session: SessionRow) -> None:
        """A crash between token and handle: launching again by the same name starts nothing twice. A launch that goes
        on failing in a way that is no refusal is given up."""
        with self._parts.db.read() as c:
            wish = jobs.get(c, session.job_id).wish
        if wish is not Wish.RUN:
            return  # the plan withdraws it
        try:
            launching.start_session(self._parts, session)
        except DatabaseError:
            raise
        except Exception as error:
            profile = observe.profile_of(self._parts, session)
            failing_s = self._mute.failed(session.id, self._parts.clock.now())
            if failing_s < profile.start_s + profile.lease_s:
                raise
            text = error.fact if isinstance(error, GpuhopError) else str(error)
            settling.close(self._parts, session, SessionState.LOST, Reason.LAUNCH_FAILED, detail=text)

    def _apply(self, action: Action) -> None:
        match action:
            case Launch():
                launching.launch(self._parts, action)
            case Order():
                self._order(action)
            case Withdraw():
                self._withdraw(action)
            case Finish():
                self._finish(action)

    def _order(self, action: Order) -> None:
        if self._ordered.get(action.job) == (action.token, action.order):
            return
        body = Control(token=action.token, order=action.order).to_bytes()
        self._parts.store.put(wire.control_key(action.job), body)
        self._ordered[action.job] = (action.token, action.order)

    def _withdraw(self, action: Withdraw) -> None:
        with self._parts.db.read() as c:
            rows = [row for row in sessions.live(c) if (row.job_id, row.token) == (action.job, action.token)]
        for row in rows:
            seen = observe.look(self._parts, row)
            if seen.result is None:
                settling.close(self._parts, row, SessionState.LOST, action.reason, seen=seen)
            # else: it left by itself meanwhile; the next look settles it by its own word

    def _finish(self, action: Finish) -> None:
        """Under the write lock: the user may have changed his mind since the plan was made."""
        needed = {JobState.PAUSED: Wish.PAUSE, JobState.CANCELLED: Wish.CANCEL}.get(action.state, Wish.RUN)
        with self._parts.db.write() as c:
            if jobs.get(c, action.job).wish is needed:
                jobs.move(c, action.job, action.state, action.reason, "", self._parts.clock.now())
