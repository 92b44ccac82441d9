"""One turn of the loop: look at every live session, settle what is over, plan, carry out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gpuhop.db import jobs, sessions
from gpuhop.db.records import SessionRow
from gpuhop.domain.judge import judge
from gpuhop.domain.plan import Action, Finish, Launch, Order, Withdraw, plan
from gpuhop.domain.states import SessionState
from gpuhop.engine import launching, observe, settling
from gpuhop.engine.parts import Parts
from gpuhop.errors import DiskFull, GpuhopError, LeaseLost, NotFound, StoreError
from gpuhop_worker import wire
from gpuhop_worker.wire import Control

log = logging.getLogger("gpuhop")


@dataclass
class Report:
    """What a tick did and what went wrong; `troubles` are shown to the user, and nothing was lost by them."""

    actions: list[Action] = field(default_factory=list)
    troubles: list[GpuhopError] = field(default_factory=list)


class Loop:
    """The engine's turn. It remembers only which orders it has written already (again after a restart: harmless)."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ordered: dict[str, tuple[int, str]] = {}

    def tick(self) -> Report:
        """Never raises for one session's or one platform's trouble; a database that fails is raised."""
        report = Report()
        with self._parts.db.read() as c:
            live = sessions.live(c)
        for session in live:
            self._guarded(report, partial(self._look_at, session))
        with self._parts.db.read() as c:
            world = observe.world(self._parts, c)
        report.actions = list(plan(world))
        for action in report.actions:
            self._guarded(report, partial(self._apply, action))
        return report

    def _guarded(self, report: Report, act: Callable[[], None]) -> None:
        try:
            act()
        except (StoreError, NotFound, DiskFull) as error:
            log.warning("%s", error.fact, extra={"action": "trouble"})
            report.troubles.append(error)
        except LeaseLost as error:
            log.warning("stale write dropped: %s", error.fact, extra={"action": "stale"})

    def _look_at(self, session: SessionRow) -> None:
        if session.state is SessionState.LAUNCHING and session.handle is None:
            self._repair(session)
            return
        platform = self._parts.platform(session.platform)
        seen = observe.look(self._parts, session)
        verdict = judge(observe.session_view(session), seen, platform.profile, self._parts.clock.now())
        if verdict.state in (SessionState.ENDED, SessionState.LOST):
            settling.settle(self._parts, session, seen, verdict)
        else:
            settling.note(self._parts, session, seen, verdict)

    def _repair(self, session: SessionRow) -> None:
        """A crash between token and handle: launching again by the same name starts nothing twice."""
        with self._parts.db.read() as c:
            wish = jobs.get(c, session.job_id).wish
        if wish.value == "run":
            launching.start_session(self._parts, session)

    def _apply(self, action: Action) -> None:
        match action:
            case Launch():
                launching.launch(self._parts, action)
            case Order():
                self._order(action)
            case Withdraw():
                with self._parts.db.read() as c:
                    rows = [row for row in sessions.live(c) if (row.job_id, row.token) == (action.job, action.token)]
                for row in rows:
                    seen = observe.look(self._parts, row)
                    settling.close(self._parts, row, SessionState.LOST, action.reason, seen=seen)
            case Finish():
                with self._parts.db.write() as c:
                    jobs.move(c, action.job, action.state, action.reason, "", self._parts.clock.now())

    def _order(self, action: Order) -> None:
        if self._ordered.get(action.job) == (action.token, action.order):
            return
        body = Control(token=action.token, order=action.order).to_bytes()
        self._parts.store.put(wire.control_key(action.job), body)
        self._ordered[action.job] = (action.token, action.order)
