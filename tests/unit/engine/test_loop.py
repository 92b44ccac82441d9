"""The loop on scripted services: whole jobs, wishes, refusals, losses, failures and limits."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.engine import (
    START,
    check_books,
    check_training,
    profile,
    scripted,
    spec,
)
from tests.support.scripted import Script

from gpuhop.db import sessions
from gpuhop.domain.job import Limits
from gpuhop.domain.quota import Window, WindowKind
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.platforms.base import RefusalKind, Refused
from gpuhop_worker import wire
from gpuhop_worker.packages import name_of
from gpuhop_worker.wire import Grant

WEEK = Window(WindowKind.WEEKLY, 250.0, weekday=5)


def test_a_job_hops_to_its_end(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit(spec(600))
    rig.run(services["lab"].advance)
    assert (rig.job().state, rig.job().reason, rig.job().step) == (JobState.DONE, Reason.TARGET_REACHED, 600)
    assert [row.reason for row in rig.rows()] == [Reason.BUDGET] * 3 + [Reason.TARGET_REACHED]
    check_training(rig, 600)
    check_books(rig, services)
    assert rig.job().used_s == pytest.approx(sum(row.seconds for row in services["lab"].charges()))


def test_two_jobs_share_slots_and_never_more_than_there_are(home: Path) -> None:
    rig, services = scripted(home, (profile(slots=1), Script()), (profile("other", slots=2), Script()))
    for name in "abcd":
        rig.submit(spec(500), job_id=name)

    def between() -> None:
        for service in services.values():
            service.advance()
            assert len(service.live()) <= service.profile.slots
        with rig.parts.db.read() as c:
            live = sessions.live(c)
        assert len({row.job_id for row in live}) == len(live)

    rig.run(between, until=lambda: all(rig.job(name).state is JobState.DONE for name in "abcd"))
    for name in "abcd":
        check_training(rig, 500, name)


def test_the_quota_is_never_overdrawn_and_the_job_waits_for_the_refill(home: Path) -> None:
    rig, services = scripted(home, (profile(window=WEEK), Script(speed=1.0)))
    rig.submit(spec(320))
    service = services["lab"]
    saturday = START.replace(day=24, hour=0)

    def between() -> None:
        service.advance()
        if rig.clock.now() < saturday:
            assert sum(row.seconds for row in service.charges()) <= 250.0

    rig.run(between, step_s=5.0, until=lambda: len(service.charges()) == 3 and not service.live())
    rig.run(between, step_s=3600.0, until=lambda: rig.clock.now() > saturday)
    rig.run(between)
    assert rig.job().state is JobState.DONE
    assert min(row.start for row in rig.charged("lab")[3:]) >= saturday
    check_books(rig, services)


# ---------------------------------------------------------------- refusals


def test_a_refusal_cools_the_platform_down_longer_each_time(home: Path) -> None:
    no = [Refused(RefusalKind.CAPACITY, "no GPU is free") for _ in range(3)]
    rig, services = scripted(home, (profile(), Script(refuse=no)))
    rig.submit()
    rig.run(services["lab"].advance, step_s=10.0)
    assert rig.job().state is JobState.DONE
    refused = [row for row in rig.rows() if row.state is SessionState.REFUSED]
    assert [row.detail for row in refused] == ["no GPU is free"] * 3
    starts = [row.launched_at for row in rig.rows()]
    gaps = [(b - a).total_seconds() for a, b in pairwise(starts)]
    assert gaps[:3] == [300.0, 600.0, 1200.0]
    check_books(rig, services)
    with rig.parts.db.read() as c:
        assert sessions.cooling(c) == {}


@pytest.mark.parametrize(("until_s", "pause"), [(5000.0, 5000.0), (0.0, 60.0), (-10.0, 60.0)])
def test_a_refusal_with_a_time_is_believed_but_never_asked_again_at_once(
    home: Path, until_s: float, pause: float
) -> None:
    until = START + timedelta(seconds=until_s)
    rig, services = scripted(home, (profile(), Script(refuse=[Refused(RefusalKind.EXHAUSTED, "used up", until)])))
    rig.submit()
    rig.run(services["lab"].advance, step_s=10.0, until=lambda: len(rig.rows()) == 2)
    assert rig.rows()[1].launched_at - START == timedelta(seconds=pause)


def test_a_refusal_of_one_platform_sends_the_job_to_another(home: Path) -> None:
    no = [Refused(RefusalKind.BLOCKED, "this account is blocked")]
    rig, services = scripted(home, (profile("a"), Script(refuse=no)), (profile("b"), Script()))
    rig.submit()
    rig.run(services["b"].advance)
    assert [row.platform for row in rig.rows()] == ["a", "b"]


def test_after_a_refusal_other_jobs_of_the_same_plan_do_not_ask_again(home: Path) -> None:
    no = [Refused(RefusalKind.CAPACITY, "no") for _ in range(2)]
    rig, services = scripted(home, (profile(slots=2), Script(refuse=no)))
    rig.submit(job_id="a")
    rig.submit(job_id="b")
    rig.tick()
    assert [name for verb, name in services["lab"].calls if verb == "launch"] == ["a-t0001"]
    assert rig.rows("b") == [] and rig.job("b").state is JobState.QUEUED


# ---------------------------------------------------------------- wishes


@pytest.mark.parametrize(("wish", "after"), [(Wish.CANCEL, JobState.CANCELLED), (Wish.PAUSE, JobState.PAUSED)])
def test_stopping_a_running_session_saves_first(home: Path, wish: Wish, after: JobState) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0)))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].step > 10)
    rig.wish(wish)
    rig.run(services["lab"].advance, step_s=1.0, until=lambda: rig.job().state is after)
    (row,) = rig.rows()
    assert (row.state, row.reason) == (SessionState.ENDED, Reason.CANCELLED if wish is Wish.CANCEL else Reason.PAUSED)
    assert row.saved_step == row.step > 10
    check_books(rig, services)


def test_pause_and_resume_end_equal_to_the_unbroken_run(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].step > 10)
    rig.wish(Wish.PAUSE)
    rig.run(services["lab"].advance, until=lambda: rig.job().state is JobState.PAUSED)
    for _ in range(3):
        assert rig.tick().actions == []
    rig.wish(Wish.RUN)
    rig.run(services["lab"].advance)
    check_training(rig, 300)


def test_a_cancelled_session_that_does_not_leave_is_ended(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0, usual="stuck")))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].step > 10)
    rig.wish(Wish.CANCEL)
    rig.run(services["lab"].advance, until=lambda: rig.job().state is JobState.CANCELLED)
    assert ("stop", "job-1-t0001") in services["lab"].calls
    assert rig.rows()[0].reason is Reason.CANCELLED
    check_books(rig, services)


@pytest.mark.parametrize("attended", [True, False])
@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.PAUSE])
def test_a_session_that_has_not_begun_is_withdrawn_at_once(home: Path, attended: bool, wish: Wish) -> None:
    rig, services = scripted(home, (profile(attended=attended), Script(queue_s=1000.0)))
    rig.submit()
    rig.tick()
    rig.clock.sleep(5.0)
    rig.tick()
    assert rig.rows()[0].state is (SessionState.AWAITING if attended else SessionState.PENDING)
    rig.wish(wish)
    rig.tick()
    assert rig.job().state is (JobState.CANCELLED if wish is Wish.CANCEL else JobState.PAUSED)
    rig.clock.sleep(2000.0)
    services["lab"].advance()
    assert services["lab"].charges() == []
    check_books(rig, services)


@pytest.mark.parametrize(("wish", "after"), [(Wish.CANCEL, JobState.CANCELLED), (Wish.PAUSE, JobState.PAUSED)])
def test_a_queued_job_obeys_without_a_session(home: Path, wish: Wish, after: JobState) -> None:
    rig, _ = scripted(home, (profile(slots=0), Script()))
    rig.submit()
    rig.tick()
    rig.wish(wish)
    rig.tick()
    assert rig.job().state is after and rig.rows() == []


def test_a_target_reached_while_being_cancelled_is_done(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=50.0)))
    rig.submit()
    rig.tick()
    rig.clock.sleep(5.0)
    services["lab"].advance()
    rig.wish(Wish.CANCEL)
    rig.clock.sleep(5.0)
    services["lab"].advance()
    rig.run(services["lab"].advance)
    assert rig.job().state is JobState.DONE


# ---------------------------------------------------------------- people


def test_a_hand_off_waits_is_opened_and_works(home: Path) -> None:
    rig, services = scripted(home, (profile(attended=True), Script()))
    rig.submit()
    rig.tick()
    rig.clock.sleep(150.0)  # longer than a session may last
    rig.tick()
    (row,) = rig.rows()
    assert (row.state, row.link) == (SessionState.AWAITING, "scripted://job-1-t0001")
    services["lab"].sessions["job-1-t0001"].opened = True
    rig.run(services["lab"].advance)
    assert rig.job().state is JobState.DONE and len(rig.rows()) == 1
    check_books(rig, services)


def test_nobody_opens_it_and_it_is_offered_again(home: Path) -> None:
    rig, services = scripted(home, (profile(attended=True), Script()))
    rig.submit()
    rig.run(step_s=20.0, until=lambda: len(rig.rows()) == 2)
    first, second = rig.rows()
    assert (first.state, first.reason) == (SessionState.LOST, Reason.NOT_OPENED)
    assert second.launched_at - START == timedelta(seconds=200.0)
    assert services["lab"].sessions["job-1-t0001"].ended_at is not None
    assert rig.entries()[-1][0] == "hold" and [k for k, *_ in rig.entries()] == ["hold", "release", "hold"]


def test_one_failed_poll_does_not_take_a_hand_off_away(home: Path) -> None:
    rig, services = scripted(home, (profile(attended=True), Script()))
    rig.submit()
    rig.tick()
    rig.clock.sleep(150.0)
    rig.tick()
    services["lab"].broken = {"poll"}
    rig.tick()
    assert rig.rows()[0].state is SessionState.AWAITING


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("fate", ["die", "mute"])
def test_a_lost_session_is_followed_by_the_next_token(home: Path, fate: str) -> None:
    rig, services = scripted(home, (profile(), Script(speed=2.0, fate={1: fate, 3: "die"})))
    rig.submit(spec(400))
    rig.run(services["lab"].advance)
    assert rig.job().state is JobState.DONE
    assert [row.token for row in rig.rows() if row.state is SessionState.LOST] == [1, 3]
    check_training(rig, 400)
    check_books(rig, services)


def test_sessions_that_die_before_they_begin_do_not_burn_tokens(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(queue_s=1e9)))
    rig.submit()

    def vanish() -> None:
        services["lab"].sessions.clear()

    rig.run(vanish, step_s=5.0, until=lambda: rig.clock.now() - START > timedelta(seconds=3000))
    starts = [(row.launched_at - START).total_seconds() for row in rig.rows()]
    assert len(starts) == 4, starts  # pauses of 300, 600, 1200 s
    assert rig.job().state is JobState.QUEUED
    assert rig.charged("lab") == []


def test_eight_hours_of_sleep_with_a_session_that_ended_meanwhile(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0)))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [] and rig.rows()[0].step > 10)
    rig.clock.sleep(60.0)
    services["lab"].advance()
    rig.clock.sleep(40.0)
    services["lab"].advance()  # it ends by its budget
    rig.clock.sleep(8 * 3600.0)
    rig.run(services["lab"].advance)
    assert [row.state for row in rig.rows()][:1] == [SessionState.ENDED]
    check_training(rig, 300)
    check_books(rig, services)


# ---------------------------------------------------------------- failures


def test_a_command_that_fails_at_once_fails_the_job(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(usual="fail")))
    rig.submit()
    rig.run(services["lab"].advance)
    assert (rig.job().state, rig.job().reason, len(rig.rows())) == (JobState.FAILED, Reason.SCRIPT_FAILED, 1)


def test_a_command_that_fails_after_progress_is_tried_once_more(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(fate={1: "fail-late", 2: "fail"})))
    rig.submit()
    rig.run(services["lab"].advance)
    assert (rig.job().state, rig.job().reason, len(rig.rows())) == (JobState.FAILED, Reason.SCRIPT_FAILED, 2)
    rig.wish(Wish.RUN)
    rig.run(services["lab"].advance)
    assert rig.job().state is JobState.DONE
    check_training(rig, 300)


def test_a_command_that_failed_twice_in_one_session_fails_the_job_at_once(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(fate={1: "fail-twice"})))
    rig.submit()
    rig.run(services["lab"].advance)
    assert (rig.job().state, rig.job().reason, len(rig.rows())) == (JobState.FAILED, Reason.SCRIPT_FAILED, 1)
    rig.wish(Wish.RUN)
    rig.run(services["lab"].advance)
    assert rig.job().state is JobState.DONE
    check_training(rig, 300)


@pytest.mark.parametrize(("installs", "wanted"), [(True, ["numpy", "zstandard", "blake3"]), (False, [])])
def test_a_grant_asks_for_packages_only_where_they_may_be_installed(
    home: Path, installs: bool, wanted: list[str]
) -> None:
    rig, services = scripted(home, (profile(installs=installs), Script()))
    rig.submit()
    rig.run(services["lab"].advance, until=lambda: rig.rows() != [])
    grant = Grant.from_gzip(rig.store.get(wire.grant_key(rig.rows()[0].job_id, 1)))
    assert [name_of(requirement) for requirement in grant.packages] == wanted


def test_ten_sessions_without_a_checkpoint_end_the_job_and_resume_gives_ten_more(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(usual="idle")))
    rig.submit(spec(100_000))
    rig.run(services["lab"].advance, step_s=30.0)
    assert (rig.job().state, rig.job().reason, len(rig.rows())) == (JobState.FAILED, Reason.NO_PROGRESS, 10)
    rig.wish(Wish.RUN)
    rig.run(services["lab"].advance, step_s=30.0)
    assert (rig.job().state, len(rig.rows())) == (JobState.FAILED, 20)


def test_progress_in_between_starts_the_count_again(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(usual="idle", fate={9: "work", 18: "work"})))
    rig.submit(spec(100_000))
    rig.run(services["lab"].advance, step_s=30.0)
    assert (rig.job().reason, len(rig.rows())) == (Reason.NO_PROGRESS, 28)


# ---------------------------------------------------------------- limits


def test_gpu_hours(home: Path) -> None:
    rig, services = scripted(home, (profile(gpu_count=2), Script(speed=1.0)))
    rig.submit(spec(100_000, limits=Limits(gpu_hours=0.1)))  # 360 GPU-seconds = 180 s of two
    rig.run(services["lab"].advance)
    assert (rig.job().state, rig.job().reason) == (JobState.FAILED, Reason.GPU_HOURS_USED)
    assert 0 < rig.job().used_s <= 360.0
    check_books(rig, services)


def test_deadline(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0)))
    rig.submit(spec(100_000, limits=Limits(deadline=START + timedelta(seconds=250))))
    rig.run(services["lab"].advance, step_s=1.0)
    assert (rig.job().state, rig.job().reason) == (JobState.FAILED, Reason.DEADLINE_PASSED)
    assert max(row.end for row in services["lab"].charges()) <= START + timedelta(seconds=250)
    check_books(rig, services)


def test_a_deadline_that_passes_while_a_late_session_trains_drains_it(home: Path) -> None:
    rig, services = scripted(home, (profile(), Script(speed=1.0, queue_s=100.0)))
    rig.submit(spec(100_000, limits=Limits(deadline=START + timedelta(seconds=120))))
    rig.run(services["lab"].advance, step_s=1.0)
    assert (rig.job().state, rig.job().reason) == (JobState.FAILED, Reason.DEADLINE_PASSED)
    (row,) = rig.rows()
    assert (row.reason, row.saved_step) == (Reason.DRAINED, row.step)
