"""Races, outages and bad neighbours: one session's, one job's or one platform's trouble stays its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.engine import JOB, START, Rig, check_books, check_training, profile, scripted, spec
from tests.support.faults import HookedStore
from tests.support.scripted import Script, Service

from gpuhop.db import sessions
from gpuhop.db.tables import jobs as jobs_table
from gpuhop.domain.plan import Action, plan
from gpuhop.domain.retention import GRACE_S
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.domain.world import World
from gpuhop.errors import LeaseLost, StoreError
from gpuhop_worker import wire
from gpuhop_worker.wire import Control, Manifest, Result


def hooked(rig: Rig, hook: Callable[[str, str, str], None]) -> HookedStore:
    """Put a hook before the rig's store, as the scheduler sees it; workers go past it."""
    store = HookedStore(rig.store, hook)
    rig.drop()
    rig.store = store
    return store


def quiet(verb: str, key: str, moment: str) -> None:
    """No fault."""


def running(rig: Rig, service: Service, step: int = 10) -> None:
    rig.run(service.advance, step_s=2.0, until=lambda: rig.rows() != [] and rig.rows()[-1].step > step)


# ---------------------------------------------------------------- adapters that raise


@pytest.mark.parametrize("verb", ["launch", "launch-after", "poll", "stop"])
def test_a_broken_platform_does_not_stop_the_other_jobs(home: Path, verb: str) -> None:
    bad, good = profile("bad"), profile("good", max_session_s=90.0)
    rig, services = scripted(home, (bad, Script(usual="mute")), (good, Script()))
    services["bad"].broken = {verb}
    rig.submit(spec(platforms=("bad",)), job_id="on-bad")
    rig.submit(spec(), job_id="on-good")
    troubles: list[str] = []

    def between() -> None:
        for service in services.values():
            service.advance()

    for _ in range(60):
        troubles += [error.fact for error in rig.tick().troubles]
        rig.clock.sleep(5.0)
        between()
    assert rig.job("on-good").state is JobState.DONE
    if verb.startswith("launch"):
        assert any("the service does not answer" in text for text in troubles), troubles
    # A lost answer starts nothing twice.
    launched = [one for one in services["bad"].sessions.values() if one.started_at is not None]
    assert len(launched) == len({one.name for one in launched})


def test_a_launch_whose_answer_is_lost_is_found_again(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script()))
    services["lab"].broken = {"launch-after"}
    rig.submit()
    assert [error.fact for error in rig.tick().troubles] != []
    assert rig.rows()[0].handle is None
    services["lab"].broken = set()
    rig.run(services["lab"].advance)
    assert len(services["lab"].sessions) == len(rig.rows()) == 1
    check_books(rig, services)


def test_a_launch_that_goes_on_failing_is_given_up_and_the_job_goes_elsewhere(home: Path) -> None:
    rig, services = scripted(home, (profile("a"), Script()), (profile("b"), Script()))
    services["a"].broken = {"launch"}
    rig.submit()
    rig.run(services["b"].advance, step_s=4.0)
    assert [(row.platform, row.reason) for row in rig.rows()] == [
        ("a", Reason.LAUNCH_FAILED),
        ("b", Reason.TARGET_REACHED),
    ]
    assert rig.rows()[1].launched_at - START < timedelta(seconds=60)
    check_books(rig, {"b": services["b"]})


def test_a_platform_that_cannot_read_the_checkpoint_leaves_the_job_to_the_others(home: Path) -> None:
    """Its Python lacks a package that sessions before had: nothing is wrong with the job, and nothing starts over."""
    rig, services = scripted(home, (profile("a"), Script(usual="lack")), (profile("b"), Script()))
    rig.submit()

    def between() -> None:
        for service in services.values():
            service.advance()

    rig.run(between, step_s=4.0)
    rows = [(row.platform, row.reason) for row in rig.rows()]
    assert rows[0] == ("a", Reason.WORKER_LACKS)
    assert {platform for platform, _ in rows[1:]} == {"b"} and rig.job().state is JobState.DONE


def test_an_adapter_that_raises_on_poll_loses_no_beating_session(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit()
    running(rig, services["lab"])
    services["lab"].broken = {"poll"}
    rig.run(services["lab"].advance, step_s=2.0)
    assert [row.reason for row in rig.rows()] == [Reason.BUDGET, Reason.TARGET_REACHED]
    check_training(rig, 300)


def test_a_queued_session_survives_failed_polls_and_is_given_up_after_long_silence(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(queue_s=1e6)))
    rig.submit()
    rig.tick()
    rig.clock.sleep(5000.0)
    rig.tick()
    services["lab"].broken = {"poll"}
    rig.tick()
    rig.clock.sleep(8 * 3600.0)  # the laptop sleeps between two failed calls
    rig.tick()
    assert rig.rows()[0].state is SessionState.PENDING
    services["lab"].broken = set()
    rig.tick()
    services["lab"].broken = {"poll"}
    for _ in range(4):
        rig.tick()
        assert rig.rows()[0].state is SessionState.PENDING
        rig.clock.sleep(6.0)
    rig.tick()
    assert (rig.rows()[0].state, rig.rows()[0].reason) == (SessionState.LOST, Reason.LAUNCH_FAILED)


def test_while_beats_are_fresh_the_platform_is_not_asked(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit()
    running(rig, services["lab"])
    services["lab"].calls.clear()
    for _ in range(40):
        services["lab"].advance()
        rig.tick()
        rig.clock.sleep(1.0)
    assert services["lab"].calls == []


# ---------------------------------------------------------------- what changed meanwhile


def test_a_platform_removed_from_the_configuration_still_settles_its_session(home: Path) -> None:
    rig, services = scripted(home, (profile("old"), Script(speed=2.0)), (profile("new", max_session_s=80.0), Script()))
    rig.submit()
    running(rig, services["old"])
    rig.drop()
    rig.platforms = {"new": rig.platforms["new"]}

    def between() -> None:
        for service in services.values():
            service.advance()

    rig.run(between)
    assert [(row.platform, row.state) for row in rig.rows()] == [
        ("old", SessionState.ENDED),
        ("new", SessionState.ENDED),
    ]
    check_training(rig, 300)
    assert len(rig.charged("old")) == 1


def test_a_launch_on_a_platform_that_was_removed_is_given_up(home: Path) -> None:
    rig, services = scripted(home, (profile("old"), Script()), (profile("new", max_session_s=80.0), Script()))
    services["old"].broken = {"launch"}
    rig.submit()
    rig.tick()
    rig.drop()
    rig.platforms = {"new": rig.platforms["new"]}
    rig.run(services["new"].advance, step_s=100.0)
    assert rig.rows()[0].reason is Reason.LAUNCH_FAILED
    assert rig.job().state is JobState.DONE


@pytest.mark.parametrize("text", ["{}", "not json", "[]", '{"version": 99}'])
def test_an_unreadable_spec_is_told_and_the_other_jobs_go_on(home: Path, text: str) -> None:
    rig, services = scripted(home, (profile(), Script()))
    rig.submit(job_id="bad")
    rig.submit(job_id="good")
    with rig.parts.db.write() as c:
        c.execute(jobs_table.update().where(jobs_table.c.id == "bad").values(spec=text))
    assert ["bad" in error.fact for error in rig.tick().troubles] == [True]
    rig.run(services["lab"].advance, until=lambda: rig.job("good").state is JobState.DONE)


def test_the_live_session_of_a_job_whose_spec_became_unreadable_is_settled(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script()))
    rig.submit()
    running(rig, services["lab"])
    with rig.parts.db.write() as c:
        c.execute(jobs_table.update().values(spec="{}"))
    rig.run(services["lab"].advance, until=lambda: rig.rows()[0].state is SessionState.ENDED)
    check_books(rig, services)


def test_a_job_cancelled_between_plan_and_launch_is_not_launched(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script()))
    rig.submit()

    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "list" and rig.job().wish is Wish.RUN:  # the launch looks for parents: after the plan
            rig.wish(Wish.CANCEL)

    hooked(rig, hook)
    rig.tick()
    assert rig.rows() == [] and services["lab"].sessions == {}
    rig.tick()
    assert rig.job().state is JobState.CANCELLED


def test_a_job_resumed_between_plan_and_finish_is_not_left_paused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = scripted(home, (profile(slots=0), Script()))
    rig.submit()
    rig.wish(Wish.PAUSE)

    def slow_plan(world: World) -> tuple[Action, ...]:
        actions = plan(world)
        rig.wish(Wish.RUN)  # the user, in another process
        return actions

    monkeypatch.setattr("gpuhop.engine.tick.plan", slow_plan)
    rig.tick()
    assert rig.job().state is JobState.QUEUED


def test_cancelling_a_failed_job_is_confirmed_at_once(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(usual="fail")))
    rig.submit()
    rig.run(services["lab"].advance)
    rig.wish(Wish.CANCEL)
    assert (rig.job().state, rig.job().reason) == (JobState.CANCELLED, Reason.CANCELLED)


# ---------------------------------------------------------------- clocks


def test_the_laptop_falls_asleep_in_the_middle_of_a_look(home: Path) -> None:
    """The old beat is read, eight hours pass, the answer is judged: the sleep is ours, not the session's."""
    rig, services = scripted(home, (profile(max_session_s=10 * 3600.0), Script(speed=0.01)))
    rig.submit(spec(300))
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].beat_at is not None)
    asleep = [False]

    def hook(verb: str, key: str, moment: str) -> None:
        if (verb, moment) == ("get", "after") and key.endswith("beat.json") and not asleep[0]:
            asleep[0] = True
            rig.clock.sleep(8 * 3600.0)

    hooked(rig, hook)
    rig.tick()
    assert asleep[0] and rig.rows()[0].state is SessionState.RUNNING
    services["lab"].advance()
    rig.tick()
    assert rig.rows()[0].state is SessionState.RUNNING


@pytest.mark.parametrize("jump", [-7200.0, -86400.0])
def test_a_clock_that_is_set_back_loses_nothing(home: Path, jump: float) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit()
    running(rig, services["lab"])
    rig.clock.sleep(jump)
    for _ in range(10):
        rig.tick()
        rig.clock.sleep(1.0)
    assert rig.rows()[0].state is SessionState.RUNNING
    rig.clock.sleep(-jump)
    rig.run(services["lab"].advance)
    check_training(rig, 300)


def test_a_session_first_seen_hours_after_it_began_is_charged_in_full(home: Path) -> None:
    """The platform does not answer; the worker's own clock does."""
    rig, services = scripted(home, (profile(max_session_s=20_000.0), Script(speed=0.01)))
    rig.submit()
    rig.tick()
    services["lab"].broken = {"poll"}
    services["lab"].advance()
    rig.clock.sleep(10_000.0)
    services["lab"].advance()
    rig.tick()
    began = rig.rows()[0].started_at
    assert began is not None and began - START < timedelta(seconds=10)


def test_a_session_found_gone_long_after_is_not_charged_for_our_sleep(home: Path) -> None:
    rig, services = scripted(home, (profile(max_session_s=20_000.0, lease_s=100.0), Script(speed=0.01)))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].beat_at is not None)
    remote = services["lab"].sessions["job-1-t0001"]
    services["lab"].sessions.clear()  # the service has forgotten it: gone, and no times
    assert remote.started_at is not None
    rig.clock.sleep(8 * 3600.0)
    rig.tick()
    (charge,) = rig.charged("lab")
    assert 5.0 <= charge.seconds <= 5.0 + 2.0 + 100.0 + 10.0


# ---------------------------------------------------------------- the store


def test_a_store_that_is_away_is_told_and_survived(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit(spec(400))
    away = [False]

    def hook(verb: str, key: str, moment: str) -> None:
        if away[0]:
            raise StoreError("the store cannot be reached", "wait")

    hooked(rig, hook)
    count = [0]
    troubles: list[str] = []

    def between() -> None:
        count[0] += 1
        away[0] = count[0] % 25 > 15  # away for ten ticks of 25
        services["lab"].advance()

    for _ in range(300):
        troubles += [error.fact for error in rig.tick().troubles]
        if rig.job().state is JobState.DONE:
            break
        rig.clock.sleep(5.0)
        between()
    away[0] = False
    assert "the store cannot be reached" in troubles
    assert rig.job().state is JobState.DONE
    assert SessionState.LOST not in [row.state for row in rig.rows()]
    check_training(rig, 400)


def test_an_outage_longer_than_the_lease_loses_no_session(home: Path) -> None:
    """Nobody can reach the store, the worker neither; when it is back the scheduler looks first."""
    rig, services = scripted(home, (profile(), Script(speed=1.0)))
    rig.submit(spec(60))
    running(rig, services["lab"])
    away = [True]

    def hook(verb: str, key: str, moment: str) -> None:
        if away[0]:
            raise StoreError("the store cannot be reached", "wait")

    hooked(rig, hook)
    for _ in range(10):
        rig.tick()
        rig.clock.sleep(5.0)
    away[0] = False
    rig.tick()
    assert rig.rows()[0].state is SessionState.RUNNING
    services["lab"].advance()
    rig.run(services["lab"].advance)
    assert len(rig.rows()) == 1
    check_training(rig, 60)


def test_damaged_signs_are_no_signs(home: Path) -> None:
    """I3 and R2: half a beat, a result of another token, a manifest that does not verify."""
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit()
    running(rig, services["lab"])
    rig.store.put(wire.result_key(JOB, 1), Result(7, "target", "target_reached", 9, 9, 9, 9.0).to_bytes())
    rig.store.put(wire.beat_key(JOB, 1), b"gpuhop1 sha256:00")
    rig.clock.sleep(10.0)  # longer than the margin: its own result would end it
    rig.tick()
    assert rig.rows()[0].state is SessionState.RUNNING
    rig.store.delete(wire.result_key(JOB, 1))
    rig.run(services["lab"].advance)
    check_training(rig, 300)


def test_a_reason_of_a_newer_worker_stops_nothing(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script()))
    rig.submit()
    running(rig, services["lab"])
    body = Result(1, "drained", "solar_flare", 20, 20, 1, 30.0).to_bytes()
    rig.store.put(wire.result_key(JOB, 1), body)
    services["lab"].sessions["job-1-t0001"].ended_at = rig.clock.now()
    rig.tick()
    rig.clock.sleep(20.0)
    rig.tick()
    assert rig.rows()[0].reason is Reason.DRAINED


# ---------------------------------------------------------------- zombies


def test_a_zombie_can_add_nothing(home: Path) -> None:
    """R33, I3: what a session saves after it was closed is not resumed from, counted, or kept."""
    rig, services = scripted(home, (profile(), Script(speed=2.0, fate={1: "mute"})))
    rig.submit(spec(400))
    rig.tick()
    services["lab"].advance()
    rig.clock.sleep(15.0)
    services["lab"].advance()
    zombie = services["lab"].sessions["job-1-t0001"].worker
    assert zombie is not None and zombie.saved_step == 20
    rig.run(step_s=5.0, until=lambda: rig.rows()[0].state is SessionState.LOST)
    # It wakes and writes with its own grant: a far later step, and a result that claims the target.
    zombie.step, zombie.trace, zombie.seq = 399, 666, zombie.seq + 1
    pack = wire.numbered_key(JOB, 1, "pack", zombie.seq)
    zombie.store.put_once(pack, b"evil")
    manifest = Manifest(JOB, 1, zombie.seq, 399, "api", [{"key": pack, "size": 4}], [], state={"trace": 666})
    zombie.store.put_once(wire.numbered_key(JOB, 1, "manifest", zombie.seq), manifest.to_bytes())
    zombie.store.put_once(wire.result_key(JOB, 1), Result(1, "target", "target_reached", 400, 399, 2, 9.0).to_bytes())
    rig.run(services["lab"].advance)
    assert rig.rows()[1].start_step == 20
    check_training(rig, 400)
    rig.clock.sleep(GRACE_S)
    rig.tick()
    left = [entry.key for entry in rig.store.list(wire.session_prefix(JOB, 1))]
    assert pack not in left  # swept, as everything that does not count


def test_a_lost_session_that_nobody_can_stop_is_fenced(home: Path) -> None:
    """The platform has no cancel call, or it fails: the control document ends the session at its next look."""
    rig, services = scripted(
        home, (profile(slots=2, lease_s=20.0, max_session_s=400.0), Script(speed=0.5, fate={1: "mute"}))
    )
    services["lab"].broken = {"stop"}
    rig.submit(spec(400))
    rig.run(services["lab"].advance, step_s=2.0, until=lambda: len(rig.rows()) == 2)
    first = services["lab"].sessions["job-1-t0001"]
    assert first.worker is not None
    services["lab"].advance()
    assert first.worker.done and first.ended_at is not None
    assert Control.from_bytes(rig.store.get(wire.control_key(JOB))).token == 2


def test_a_cancelled_session_that_nobody_can_stop_is_fenced(home: Path) -> None:
    rig, services = scripted(home, (profile(max_session_s=400.0), Script(speed=0.5, usual="stuck")))
    services["lab"].broken = {"stop"}
    rig.submit(spec(400))
    running(rig, services["lab"])
    rig.wish(Wish.CANCEL)
    rig.run(services["lab"].advance, until=lambda: rig.job().state is JobState.CANCELLED)
    services["lab"].advance()
    worker = services["lab"].sessions["job-1-t0001"].worker
    assert worker is not None and worker.done


def test_a_stale_close_is_dropped(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0, fate={1: "die"})))
    rig.submit()
    running(rig, services["lab"])
    stale = rig.rows()[0]
    rig.run(services["lab"].advance, until=lambda: len(rig.rows()) == 2)
    before = (rig.job(), rig.rows(), rig.entries())
    with pytest.raises(LeaseLost), rig.parts.db.write() as c:
        sessions.close(
            c,
            stale,
            SessionState.ENDED,
            Reason.TARGET_REACHED,
            detail="",
            ended_at=rig.clock.now(),
            charged_s=50.0,
            gpus=1,
            sealed_seq=99,
            step=300,
            saved_step=300,
            now=rig.clock.now(),
        )
    with pytest.raises(LeaseLost), rig.parts.db.write() as c:
        sessions.observe(c, stale, SessionState.RUNNING, started_at=None, beat={"step": 300}, now=rig.clock.now())
    with pytest.raises(LeaseLost), rig.parts.db.write() as c:
        sessions.launched(c, stale, "other", None)
    assert (rig.job(), rig.rows(), rig.entries()) == before


@pytest.mark.parametrize("last_word", ["result", "beat"])
def test_what_arrives_between_look_and_close_still_counts(home: Path, last_word: str) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0)))
    rig.submit()
    running(rig, services["lab"])
    worker = services["lab"].sessions["job-1-t0001"].worker
    assert worker is not None
    rig.clock.sleep(25.0)  # longer than the lease, and nothing is heard

    def hook(verb: str, key: str, moment: str) -> None:
        if (verb, moment) == ("get", "after") and key.endswith("beat.json"):
            store.hook = quiet
            if last_word == "result":
                worker._result("drained", "budget", 40.0)
            else:
                worker._beat("train", 40.0)

    store = hooked(rig, hook)
    rig.tick()
    if last_word == "result":
        assert (rig.rows()[0].state, rig.rows()[0].reason) == (SessionState.ENDED, Reason.BUDGET)
    else:
        assert rig.rows()[0].state is SessionState.RUNNING
        rig.run(services["lab"].advance)
        assert len(rig.rows()) >= 1 and SessionState.LOST not in [row.state for row in rig.rows()]


def test_the_database_itself_allows_one_live_session(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script()))
    rig.submit()
    running(rig, services["lab"])
    with pytest.raises(sa.exc.IntegrityError), rig.parts.db.write() as c:
        row = dict(c.execute(sa.text("select * from sessions")).one()._mapping)
        row.update(id=99, token=2)
        columns = ", ".join(row)
        c.execute(sa.text(f"insert into sessions ({columns}) values ({', '.join(':' + k for k in row)})"), row)
    with pytest.raises(LeaseLost), rig.parts.db.write() as c:
        sessions.acquire(c, JOB, "lab", budget_s=1.0, hold_s=1.0, start_step=0, now=START)
    assert rig.job().token == 1 and len(rig.rows()) == 1
