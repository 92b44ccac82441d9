"""Every write of the scheduler, and a kill before and after each: nothing is lost, doubled or left over.

The whole job is run once to count the writes: each commit of the ledger, each put and delete in the store, each launch
and stop on the platform. Then once more for each of them, killed there: all objects are thrown away, everything is
opened again from disk, and the job runs to its end. The far end (the service and its machines) lives on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.engine import JOB, Rig, check_books, check_training, profile, quick_folder, scripted, spec
from tests.support.faults import HookedPlatform, HookedStore
from tests.support.scripted import Script, Service

from gpuhop.db import sessions, storage
from gpuhop.domain.job import Checkpoint, Every, JobSpec
from gpuhop.domain.states import LIVE_SESSIONS, JobState, SessionState, Wish
from gpuhop.engine import survey
from gpuhop.platforms.base import RefusalKind, Refused
from gpuhop_worker.retention import Keep

WRITES = {"put", "delete", "launch", "stop", "commit"}


class Crash(BaseException):
    """The kill. Not an Exception: no handler of ours may catch it."""


class Counter:
    """Counts the moments around writes and raises at one of them, once."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.crash_at = crash_at
        self.moments: list[str] = []

    def __call__(self, verb: str, what: str, moment: str) -> None:
        if verb not in WRITES:
            return
        self.moments.append(f"{moment} {verb} {what}")
        if self.crash_at is not None and len(self.moments) - 1 == self.crash_at:
            self.crash_at = None
            raise Crash


class CrashRig(Rig):
    """A rig whose every write goes past the counter."""

    counter: Counter

    def watch(self, counter: Counter) -> None:
        self.drop()
        self.counter = counter
        self.store = HookedStore(self.store, counter)
        self.platforms = {name: HookedPlatform(one, counter) for name, one in self.platforms.items()}

    @contextmanager
    def commits(self) -> Iterator[None]:
        """Around the ticks: SQLAlchemy tells before a commit; after it, the pool gets its connection back."""
        counter, wrote = self.counter, [False]

        def executed(conn: object, cursor: object, statement: str, *rest: object) -> None:
            wrote[0] |= statement.split(None, 1)[0].upper() in ("INSERT", "UPDATE", "DELETE")

        def before(conn: object) -> None:
            if wrote[0]:
                counter("commit", "ledger", "before")

        def after(conn: object, *rest: object) -> None:
            if wrote[0]:
                wrote[0] = False
                counter("commit", "ledger", "after")

        engine = self.parts.db.engine
        sa.event.listen(engine, "before_cursor_execute", executed)
        sa.event.listen(engine, "commit", before)
        sa.event.listen(engine.pool, "checkin", after)
        try:
            yield
        finally:
            sa.event.remove(engine, "before_cursor_execute", executed)
            sa.event.remove(engine, "commit", before)
            sa.event.remove(engine.pool, "checkin", after)


class Story:
    """One way in which a job goes; what the user does in it, and how it must end."""

    steps = 200
    end = JobState.DONE

    def script(self) -> Script:
        """Session 1 ends by its budget, session 2 dies, then one refusal, then the target."""
        return Script(speed=1.0, fate={2: "die"}, die_s=50.0)

    def spec(self) -> JobSpec:
        # Every so many seconds: the grant is then sized to the chunk and small, which makes these runs quick.
        return spec(self.steps, checkpoint=Checkpoint(every=Every(seconds=20.0), keep=Keep(1)))

    def user(self, rig: Rig, service: Service) -> None:
        """Called between ticks."""
        if len(service.sessions) == 2 and not service.script.refuse and "refused" not in service.broken:
            service.broken.add("refused")
            service.script.refuse = [Refused(RefusalKind.SLOTS, "no GPU is free", None)]


class Cancelled(Story):
    """Cancelled while it runs; the session does not leave and is ended."""

    end = JobState.CANCELLED

    def script(self) -> Script:
        return Script(speed=1.0, usual="stuck")

    def user(self, rig: Rig, service: Service) -> None:
        if rig.rows() and rig.rows()[-1].step >= 20 and rig.job().wish is Wish.RUN:
            rig.wish(Wish.CANCEL)


class Paused(Story):
    """Paused while a hand-off waits, resumed, opened."""

    steps = 60

    def script(self) -> Script:
        return Script(speed=1.0)

    def user(self, rig: Rig, service: Service) -> None:
        rows = rig.rows()
        if rows and rows[-1].state is SessionState.AWAITING:
            if len(rows) == 1 and rig.job().wish is Wish.RUN:
                rig.wish(Wish.PAUSE)
            elif rig.job().wish is Wish.RUN:
                service.sessions[rows[-1].name].opened = True
        if rig.job().state is JobState.PAUSED:
            rig.wish(Wish.RUN)


STORIES: dict[str, tuple[type[Story], bool]] = {
    "hops": (Story, False),
    "cancelled": (Cancelled, False),
    "paused": (Paused, True),
}


def play(home: Path, name: str, crash_at: int | None) -> tuple[list[str], bool]:
    """(the moments around all writes, whether it was killed). Checks the end."""
    made, attended = STORIES[name]
    story = made()
    plain, services = scripted(home, (profile(attended=attended), story.script()))
    service = services["lab"]
    plain.submit(story.spec())
    plain.drop()
    # A short grace: what one session leaves goes while a later one works.
    rig = CrashRig(home, plain.platforms, plain.clock, plain.store, grace_s=30.0)
    counter = Counter(crash_at)
    rig.watch(counter)
    for _ in range(400):
        try:
            with rig.commits():
                rig.tick()
        except Crash:
            rig.drop()
            continue  # the next process starts at once, with nothing but what is on disk
        check_now(rig, service)
        if rig.job().state is story.end:
            break
        rig.clock.sleep(10.0)
        story.user(rig, service)
        service.advance()
    check_end(rig, service, story)
    return counter.moments, counter.crash_at is None and crash_at is not None


def check_now(rig: Rig, service: Service) -> None:
    """At no moment two sessions that work on one job with a current token."""
    with rig.parts.db.read() as c:
        live = sessions.live(c)
    assert len(live) <= 1
    names = {row.name for row in live}
    working = [one.name for one in service.live() if one.worker is not None and not one.worker.done]
    assert set(working) <= names, (working, names)


def check_end(rig: CrashRig, service: Service, story: Story) -> None:
    assert rig.job().state is story.end, rig.job()
    rows = rig.rows()
    assert [row.token for row in rows] == list(range(1, len(rows) + 1)) and rig.job().token == len(rows)
    assert not [row for row in rows if row.state in LIVE_SESSIONS]
    assert set(service.sessions) <= {row.name for row in rows}
    assert service.live() == []
    check_books(rig, {"lab": service})
    with rig.parts.db.read() as c:
        assert c.execute(sa.text("select count(*) from leases")).scalar() == 0
    if story.end is JobState.DONE:
        check_training(rig, story.steps)
    check_store(rig)


def check_store(rig: CrashRig) -> None:
    """When the grace is over, only what is needed lies there, and nothing is marked or on its way."""
    for _ in range(4):
        rig.clock.sleep(700.0)
        try:
            with rig.commits():
                rig.tick()
        except Crash:
            rig.drop()
    with rig.parts.db.read() as c:
        ledger = survey.known(c, JOB)
        assert storage.marks_of(c, JOB) == {} and storage.jobs_to_look_at(c, rig.clock.now()) == []
    seen = survey.look(rig.store, ledger)
    assert seen.unwanted == {} and seen.decision.unknown is False
    good = [one for one in seen.found if one.step is not None]
    assert len(good) == len(seen.found) == min(1, len(good))
    packs = {key for key in seen.sizes if "/pack-" in key}
    assert packs == {key for one in good for key in one.packs}


def count(name: str) -> list[str]:
    with quick_folder() as folder:
        return play(folder / "home", name, None)[0]


MOMENTS = {name: count(name) for name in STORIES}


@pytest.mark.parametrize("name", list(STORIES))
def test_the_story_has_the_writes_that_it_should(name: str) -> None:
    verbs = {text.split()[1] for text in MOMENTS[name]}
    assert {"put", "commit", "launch"} <= verbs
    assert len(MOMENTS[name]) >= 20
    assert {"hops": {"delete"}, "cancelled": {"stop"}, "paused": {"stop"}}[name] <= verbs


@pytest.mark.parametrize(("name", "index"), [(name, i) for name in STORIES for i in range(len(MOMENTS[name]))])
def test_killed_at(name: str, index: int) -> None:
    with quick_folder() as folder:
        _, killed = play(folder / "home", name, index)
        assert killed, MOMENTS[name][index]


def test_killed_again_and_again(home: Path) -> None:
    """A scheduler that is killed again and again still brings the job to its end."""
    plain, services = scripted(home, (profile(), Script(speed=1.0)))
    plain.submit(spec(100, every=20, keep=1))
    plain.drop()
    rig = CrashRig(home, plain.platforms, plain.clock, plain.store)
    kills = 0
    rig.watch(Counter(9))
    for _ in range(400):
        try:
            with rig.commits():
                rig.tick()
        except Crash:
            kills += 1
            rig.counter.crash_at = len(rig.counter.moments) + 9  # one launch takes eight
            rig.drop()
            continue
        if rig.job(JOB).state is JobState.DONE:
            break
        rig.clock.sleep(10.0)
        services["lab"].advance()
    assert kills >= 5
    check_training(rig, 100)
    check_books(rig, services)
