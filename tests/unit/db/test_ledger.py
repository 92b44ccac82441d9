"""The ledger's verbs: tokens, leases, quota entries, the journal; what the database itself refuses."""

from __future__ import annotations

import multiprocessing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.engine import START

from gpuhop.db import events, jobs, quota, sessions
from gpuhop.db.connect import Connection, Database
from gpuhop.db.jobs import IllegalMove
from gpuhop.db.migrate import open_database
from gpuhop.db.records import SessionRow
from gpuhop.db.tables import events as events_table
from gpuhop.db.tables import jobs as jobs_table
from gpuhop.db.tables import quota_entries
from gpuhop.db.tables import sessions as sessions_table
from gpuhop.domain.quota import Window, WindowKind
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.errors import InvalidInput, LeaseLost, NotFound


def insert(
    c: Connection, job_id: str = "run-abcd", name: str = "run", now: datetime = START, source: str = "/j"
) -> None:
    jobs.insert(
        c,
        id=job_id,
        name=name,
        spec="{}",
        spec_hash="0",
        source=source,
        code_sha256="0",
        code_size=1,
        priority=0,
        now=now,
    )


def acquire(c: Connection, job_id: str = "run-abcd", hold_s: float = 100.0) -> SessionRow:
    return sessions.acquire(c, job_id, "p", budget_s=90.0, hold_s=hold_s, start_step=0, now=START)


def close(c: Connection, session: SessionRow, *, charged_s: float = 40.0, **changes: Any) -> None:
    values: dict[str, Any] = {
        "detail": "",
        "ended_at": START + timedelta(seconds=60),
        "charged_s": charged_s,
        "gpus": 2,
        "sealed_seq": 3,
        "step": 30,
        "saved_step": 30,
        "now": START + timedelta(seconds=61),
        **changes,
    }
    sessions.close(c, session, SessionState.ENDED, Reason.BUDGET, **values)
    jobs.move(c, session.job_id, JobState.QUEUED, None, "", START)


def everything(db: Database) -> list[Any]:
    with db.read() as c:
        return [
            c.execute(sa.text(f"select * from {name}")).all() for name in ("jobs", "sessions", "leases", "events")
        ] + [c.execute(quota_entries.select()).all()]


# ---------------------------------------------------------------- tokens and leases


def test_acquire_gives_the_next_token_a_lease_a_hold_and_a_session(db: Database) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
    assert (row.token, row.name, row.state, row.handle) == (1, "run-abcd-t0001", SessionState.LAUNCHING, None)
    with db.read() as c:
        assert jobs.get(c, "run-abcd").state is JobState.RUNNING
        assert sessions.live(c) == [row]
        assert quota.held(c, "p") == 100.0


def test_a_job_with_a_lease_gives_no_other(db: Database) -> None:
    with db.write() as c:
        insert(c)
        acquire(c)
    before = everything(db)
    with pytest.raises(LeaseLost), db.write() as c:
        acquire(c)
    assert everything(db) == before


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_is_not_queued_gives_no_lease(db: Database, state: JobState) -> None:
    with db.write() as c:
        insert(c)
        jobs.move(c, "run-abcd", state, Reason.PAUSED, "", START)
    before = everything(db)
    with pytest.raises(IllegalMove), db.write() as c:
        acquire(c)
    assert everything(db) == before  # no token was burned either


def _acquire_many(path: str, barrier: Any, answers: Any) -> None:
    database = open_database(Path(path))
    barrier.wait()
    mine: list[int] = []
    while len(mine) < 20:
        try:
            with database.write() as c:
                row = acquire(c)
                mine.append(row.token)
            with database.write() as c:
                close(c, row)
        except LeaseLost:
            continue
    database.close()
    answers.put(mine)


def test_two_processes_never_get_the_same_token(db: Database, path: Path) -> None:
    with db.write() as c:
        insert(c)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_acquire_many, args=(str(path), barrier, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    first, second = (answers.get(timeout=100) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert sorted([*first, *second]) == list(range(1, 41))
    assert first == sorted(first) and second == sorted(second)
    with db.read() as c:
        assert jobs.get(c, "run-abcd").token == 40
        assert quota.held(c, "p") == 0.0
        assert c.execute(sa.text("select count(*) from leases")).scalar() == 0


def test_close_charges_releases_seals_and_gives_the_lease_back(db: Database) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
    with db.write() as c:
        close(c, row)
    with db.read() as c:
        job, (after,) = jobs.get(c, "run-abcd"), sessions.of_job(c, "run-abcd")
        entries = c.execute(sa.select(quota_entries.c.kind, quota_entries.c.seconds).order_by(quota_entries.c.id)).all()
        charges = quota.charges(c, "p", Window(), START)
    assert [tuple(entry) for entry in entries] == [("hold", 100.0), ("release", 100.0), ("charge", 40.0)]
    assert (charges[0].start, charges[0].end) == (START + timedelta(seconds=20), START + timedelta(seconds=60))
    assert (job.state, job.step, job.used_s) == (JobState.QUEUED, 30, 80.0)
    assert (after.sealed_seq, after.saved_step, after.reason) == (3, 30, Reason.BUDGET)


def test_a_stale_token_changes_nothing(db: Database) -> None:
    """I3: every verb that speaks for a session proves first that its token is the current one."""
    with db.write() as c:
        insert(c)
        old = acquire(c)
    with db.write() as c:
        close(c, old)
    for again in (False, True):
        if again:
            with db.write() as c:
                acquire(c)
        before = everything(db)
        with pytest.raises(LeaseLost), db.write() as c:
            close(c, old, step=999, saved_step=999)
        with pytest.raises(LeaseLost), db.write() as c:
            sessions.observe(c, old, SessionState.RUNNING, started_at=START, beat={"step": 999}, now=START)
        with pytest.raises(LeaseLost), db.write() as c:
            sessions.launched(c, old, "handle", None)
        assert everything(db) == before


def test_a_failure_in_the_callers_part_undoes_the_close(db: Database) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
    before = everything(db)
    with pytest.raises(ZeroDivisionError), db.write() as c:
        close(c, row)
        raise ZeroDivisionError
    assert everything(db) == before


def test_an_older_checkpoint_does_not_lower_the_jobs_step(db: Database) -> None:
    with db.write() as c:
        insert(c)
        close(c, acquire(c), saved_step=50)
        close(c, acquire(c), saved_step=20)
        assert jobs.get(c, "run-abcd").step == 50


@pytest.mark.parametrize("state", [SessionState.PENDING, SessionState.AWAITING, SessionState.LAUNCHING])
def test_a_session_does_not_go_back(db: Database, state: SessionState) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
        sessions.observe(c, row, SessionState.RUNNING, started_at=START, beat={}, now=START)
    with db.read() as c:
        (running,) = sessions.live(c)
    with pytest.raises(IllegalMove), db.write() as c:
        sessions.observe(c, running, state, started_at=None, beat={}, now=START)
    with pytest.raises(IllegalMove), db.write() as c:
        sessions.close(
            c,
            running,
            SessionState.REFUSED,
            Reason.REFUSED,
            detail="",
            ended_at=START,
            charged_s=0.0,
            gpus=1,
            sealed_seq=0,
            step=0,
            saved_step=0,
            now=START,
        )


def test_the_first_sign_of_life_sets_the_limit(db: Database) -> None:
    began = START + timedelta(seconds=500)
    with db.write() as c:
        insert(c)
        row = acquire(c)
        sessions.observe(c, row, SessionState.RUNNING, started_at=began, beat={"beat_seq": 4}, now=began)
        (seen,) = sessions.live(c)
    assert (seen.started_at, seen.limit_at, seen.beat_seq) == (began, began + timedelta(seconds=100), 4)


# ---------------------------------------------------------------- what the database itself refuses


@pytest.mark.parametrize("table", [events_table, quota_entries])
def test_history_cannot_be_rewritten(db: Database, table: sa.Table) -> None:
    with db.write() as c:
        insert(c)
        close(c, acquire(c))
    for statement in (table.update().values(at=START), table.delete()):
        with pytest.raises(sa.exc.IntegrityError, match="append-only"), db.write() as c:
            c.execute(statement)


@pytest.mark.parametrize("kind", ["hold", "release", "charge"])
def test_each_session_is_held_released_and_charged_once(db: Database, kind: str) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
        close(c, row)
    with pytest.raises(sa.exc.IntegrityError), db.write() as c:
        quota.append(c, platform="p", kind=kind, seconds=1.0, start=START, at=START, session_id=row.id)
    with db.write() as c:  # adjustments belong to no session, and there may be many
        for _ in range(2):
            quota.append(c, platform="p", kind="adjust", seconds=-1.0, start=START, at=START, note="by hand")


def test_two_live_sessions_of_a_job_and_a_token_twice_are_refused(db: Database) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
        values = {column: getattr(row, column) for column in row.__dataclass_fields__ if column != "id"}
    with pytest.raises(sa.exc.IntegrityError), db.write() as c:
        c.execute(sessions_table.insert().values({**values, "token": 2, "state": "running"}))
    with pytest.raises(sa.exc.IntegrityError), db.write() as c:
        c.execute(sessions_table.insert().values({**values, "token": 1, "state": "ended"}))
    with db.write() as c:
        c.execute(sessions_table.insert().values({**values, "token": 2, "state": "ended"}))


def test_a_session_of_no_job_is_refused(db: Database) -> None:
    with pytest.raises(sa.exc.NoResultFound), db.write() as c:
        acquire(c, "nobody")
    with pytest.raises(sa.exc.IntegrityError), db.write() as c:
        events.add(c, START, "nobody", "x", "y")


def test_naive_times_are_refused_and_others_are_kept_as_utc(db: Database) -> None:
    with pytest.raises(sa.exc.StatementError, match="naive"), db.write() as c:
        insert(c, now=datetime(2026, 1, 1))
    there = datetime(2026, 10, 25, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
    with db.write() as c:
        insert(c, now=there)
        assert jobs.get(c, "run-abcd").created_at == there
        raw = c.execute(sa.text("select created_at from jobs")).scalar()
    assert raw == "2026-10-25T12:00:00.000001Z"


# ---------------------------------------------------------------- jobs


def test_find_by_id_prefix_and_name(db: Database) -> None:
    with db.write() as c:
        insert(c, "run-abcd", "run")
        insert(c, "run-efgh", "run", START + timedelta(seconds=1))
        insert(c, "other-1", "other")
        insert(c, "a_b%-1", "weird")
        assert jobs.find(c, "run-abcd").id == "run-abcd"
        assert jobs.find(c, "run-e").id == "run-efgh"
        assert jobs.find(c, "run").id == "run-efgh"  # a name: the newest of it
        assert jobs.find(c, "oth").id == "other-1"
        with pytest.raises(InvalidInput, match="'run-' is the beginning of several jobs: run-abcd, run-efgh"):
            jobs.find(c, "run-")
        for nothing in ("zzz", "_", "%", "a_b%-2"):
            with pytest.raises(NotFound):
                jobs.find(c, nothing) if nothing != "" else None
        assert jobs.find(c, "a_b%").id == "a_b%-1"
        with pytest.raises(NotFound):
            jobs.find(c, "a_bX")


def test_an_id_wins_over_a_name(db: Database) -> None:
    with db.write() as c:
        insert(c, "x", "run")
        insert(c, "run", "y")
        assert jobs.find(c, "run").id == "run"


def test_lists(db: Database) -> None:
    with db.write() as c:
        for index in range(3):
            insert(c, f"j{index}", now=START + timedelta(seconds=index), source=f"/{index % 2}")
        jobs.move(c, "j1", JobState.CANCELLED, Reason.CANCELLED, "", START)
        assert [row.id for row in jobs.unfinished(c)] == ["j0", "j2"]
        assert [row.id for row in jobs.newest(c, 2)] == ["j2", "j1"]
        assert [row.id for row in jobs.same_file(c, "/0")] == ["j2", "j0"]
        assert jobs.same_file(c, "/1") == []


def test_illegal_moves_are_refused(db: Database) -> None:
    with db.write() as c:
        insert(c)
        jobs.move(c, "run-abcd", JobState.CANCELLED, Reason.CANCELLED, "", START)
    for state in JobState:
        with pytest.raises(IllegalMove) as caught, db.write() as c:
            jobs.move(c, "run-abcd", state, None, "", START)
        assert caught.value.fact == f"run-abcd is cancelled and cannot become {state.value}"
    with pytest.raises(NotFound), db.write() as c:
        jobs.move(c, "nobody", JobState.DONE, None, "", START)


@pytest.mark.parametrize(
    ("state", "wish", "after"),
    [
        (JobState.QUEUED, Wish.PAUSE, JobState.QUEUED),  # the scheduler confirms it
        (JobState.PAUSED, Wish.RUN, JobState.QUEUED),
        (JobState.FAILED, Wish.RUN, JobState.QUEUED),
        (JobState.FAILED, Wish.CANCEL, JobState.CANCELLED),  # nobody else would
        (JobState.FAILED, Wish.PAUSE, None),
        (JobState.CANCELLED, Wish.RUN, None),
        (JobState.CANCELLED, Wish.CANCEL, None),
        (JobState.DONE, Wish.CANCEL, None),
    ],
)
def test_wishes(db: Database, state: JobState, wish: Wish, after: JobState | None) -> None:
    with db.write() as c:
        insert(c)
        stale = jobs.get(c, "run-abcd")
        if state is JobState.DONE:
            acquire(c)
        if state is not JobState.QUEUED:
            jobs.move(c, "run-abcd", state, Reason.PAUSED, "", START)
    if after is None:
        with pytest.raises(InvalidInput), db.write() as c:
            jobs.set_wish(c, stale, wish, START)
        return
    later = START + timedelta(seconds=5)
    with db.write() as c:
        jobs.set_wish(c, stale, wish, later)  # as read before the state changed
        found = jobs.get(c, "run-abcd")
    assert (found.state, found.wish, found.wish_at) == (after, wish, later)


def test_the_journal_tells_a_jobs_story(db: Database) -> None:
    with db.write() as c:
        insert(c)
        row = acquire(c)
        close(c, row)
        told = events.of_job(c, "run-abcd")
    assert [event.action for event in told] == ["submitted", "job-running", "session-ended", "job-queued"]
    assert [event.id for event in told] == sorted(event.id for event in told)
    with db.read() as c:
        assert [e.id for e in events.of_job(c, "run-abcd", after=told[1].id)] == [told[2].id, told[3].id]
        assert [e.id for e in events.recent(c, limit=2)] == [told[2].id, told[3].id]


# ---------------------------------------------------------------- quota


def charge(c: Connection, platform: str, start: datetime, hours: float) -> None:
    quota.append(
        c, platform=platform, kind="charge", seconds=hours * 3600, start=start, at=start + timedelta(hours=hours)
    )


@pytest.mark.parametrize("kind", list(WindowKind))
def test_what_was_left_out_by_the_query_did_not_count(db: Database, kind: WindowKind) -> None:
    """The query reads less than all history; the use that comes out must be that of all history."""
    from gpuhop.domain.quota import Charge, used

    window = Window(kind, 30 * 3600.0, period_s=86400.0 if kind is not WindowKind.WEEKLY else 7 * 86400.0)
    now = START + timedelta(days=200)
    with db.write() as c:
        for hour in range(0, 200 * 24, 23):
            charge(c, "p", START + timedelta(hours=hour), 1.5)
    with db.read() as c:
        rows = c.execute(quota_entries.select()).all()
        whole = [Charge(row.start, row.at, row.seconds) for row in rows]
        for back in range(0, 48, 5):
            moment = now - timedelta(hours=back)
            past = [row for row in whole if row.start <= moment]
            read = [row for row in quota.charges(c, "p", window, moment) if row.start <= moment]
            assert used(window, read, moment) == pytest.approx(used(window, past, moment)), (kind, back)


def test_holds_of_others_and_closed_ones_are_not_counted(db: Database) -> None:
    with db.write() as c:
        for name in ("a", "b"):
            insert(c, name)
        first = acquire(c, "a", hold_s=0.1)
        acquire(c, "b", hold_s=0.2)
        assert quota.held(c, "p") == pytest.approx(0.3)
        close(c, first)
        assert quota.held(c, "p") == 0.2
        assert quota.held(c, "q") == 0.0


def test_cooldowns_count_refusals_in_a_row(db: Database) -> None:
    until = START + timedelta(hours=1)
    with db.write() as c:
        sessions.cool_down(c, "p", START, "first", START)
        sessions.cool_down(c, "p", until, "second", START)
        found = sessions.cooling(c)["p"]
        assert (found.until, found.text, found.times) == (until, "second", 2)
        sessions.warm_up(c, "p")
        assert sessions.cooling(c) == {}


def test_tables_hold_every_column_of_the_rows(db: Database) -> None:
    with db.write() as c:
        insert(c)
        acquire(c)
        assert set(jobs.get(c, "run-abcd").__dataclass_fields__) == {column.name for column in jobs_table.columns}
        (row,) = sessions.live(c)
        assert set(row.__dataclass_fields__) == {column.name for column in sessions_table.columns}
