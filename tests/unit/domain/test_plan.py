"""plan(): pure, deterministic, and within every limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop.domain.job import JobSpec, Limits, Resources, Target
from gpuhop.domain.plan import Action, Finish, Launch, Order, Withdraw, bars, plan
from gpuhop.domain.quota import Balance
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.domain.world import JobView, PlatformView, Profile, SessionView, World

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)
H = 3600.0


def profile(name: str = "p", **changes: Any) -> Profile:
    return replace(Profile(name, "a", 9 * H, slots=1, gpu=True, gpu_count=1, gpu_memory_gb=15.0), **changes)


def platform(
    name: str = "p", *, left: float | None = None, live: int = 0, cool: float = 0.0, **more: Any
) -> PlatformView:
    """`cool`: seconds from now until launches are allowed again."""
    until = NOW + timedelta(seconds=cool) if cool else None
    return PlatformView(profile(name, **more), Balance(0.0, 0.0, left, None), live, until, "because" if cool else "")


def job(id: str = "j", **changes: Any) -> JobView:
    spec_changes = {k: changes.pop(k) for k in list(changes) if k in JobSpec.__dataclass_fields__}
    spec = replace(JobSpec("n", "/c", "python t.py", Target(steps=10)), **spec_changes)
    base = JobView(id, spec, JobState.QUEUED, Wish.RUN, 0, 0.0, NOW, NOW, NOW)
    return replace(base, **changes)


def session(job: str = "j", state: SessionState = SessionState.RUNNING, name: str = "p") -> SessionView:
    return SessionView(1, job, 3, name, state, NOW, NOW + timedelta(hours=1), NOW)


def world(jobs: list[JobView], platforms: list[PlatformView], sessions: list[SessionView] | None = None) -> World:
    return World(NOW, tuple(jobs), tuple(sessions or ()), tuple(platforms))


def launches(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(a.job, a.platform) for a in actions if isinstance(a, Launch)]


def test_budget_and_hold_leave_room_for_grace_and_margin() -> None:
    (launch,) = plan(world([job()], [platform(grace_s=100.0, margin_s=50.0)]))
    assert launch == Launch("j", "p", 9 * H - 150.0, 9 * H)


@pytest.mark.parametrize(
    ("wanted", "there", "starts"),
    [
        (Resources(), {"gpu": False, "gpu_count": 0}, True),
        (Resources(gpu=True), {"gpu": False}, False),
        (Resources(gpu=True, gpu_count=2), {"gpu_count": 1}, False),
        (Resources(gpu=True, gpu_count=2), {"gpu_count": 2}, True),
        (Resources(gpu=True, gpu_memory_gb=16.0), {}, False),
        (Resources(gpu=True, gpu_memory_gb=15.0), {}, True),
    ],
)
def test_needs(wanted: Resources, there: dict[str, Any], starts: bool) -> None:
    found = world([job(resources=wanted)], [platform(**there)])
    assert bool(plan(found)) is starts
    assert bool(bars(found.jobs[0], found)) is not starts


def test_only_the_named_platforms() -> None:
    assert launches(plan(world([job(platforms=("b",))], [platform("a"), platform("b", max_session_s=H)]))) == [
        ("j", "b")
    ]
    assert plan(world([job(platforms=("gone",))], [platform("a")])) == ()


def test_cooldown_slots_and_quota_bar_a_launch_and_say_so() -> None:
    for barred, text in [
        (platform(cool=60.0), "because"),
        (platform(live=1), "all 1 slots are taken"),
        (platform(left=100.0), "too little quota for a useful session (0.0 h left)"),
        (platform(max_session_s=300.0), "its sessions of 0.1 h are too short to be useful"),
    ]:
        found = world([job()], [barred])
        assert plan(found) == ()
        assert [bar.text for bar in bars(found.jobs[0], found)] == [text]


def test_priority_then_age_then_id() -> None:
    old = NOW - timedelta(hours=1)
    jobs = [job("c"), job("b"), job("a", created_at=old), job("z", priority=1)]
    for first, rest in [("z", jobs), ("a", jobs[:3]), ("b", jobs[:2])]:
        assert launches(plan(world(rest, [platform()]))) == [(first, "p")]


def test_most_work_first_and_people_last() -> None:
    short, long, person = (
        platform("s", max_session_s=2 * H),
        platform("l"),
        platform("x", attended=True, max_session_s=99 * H),
    )
    slow = platform("a", max_session_s=99 * H, speed=0.01)
    assert launches(plan(world([job()], [person, slow, short, long]))) == [("j", "l")]
    assert launches(plan(world([job()], [person]))) == [("j", "x")]


def test_the_quota_of_one_plan_is_not_given_out_twice() -> None:
    two = platform(slots=2, left=10 * H)
    actions = plan(world([job("a"), job("b")], [two]))
    assert [a.hold_s for a in actions if isinstance(a, Launch)] == [9 * H, H]


@pytest.mark.parametrize(
    ("state", "wish", "waited", "expected"),
    [
        (SessionState.RUNNING, Wish.PAUSE, 0.0, Order("j", 3, "pause")),
        (SessionState.RUNNING, Wish.PAUSE, 9e9, Order("j", 3, "pause")),
        (SessionState.RUNNING, Wish.CANCEL, 0.0, Order("j", 3, "cancel")),
        (SessionState.RUNNING, Wish.CANCEL, 1e6, Withdraw("j", 3, Reason.CANCELLED)),
        (SessionState.LAUNCHING, Wish.CANCEL, 0.0, Withdraw("j", 3, Reason.CANCELLED)),
        (SessionState.PENDING, Wish.PAUSE, 0.0, Withdraw("j", 3, Reason.PAUSED)),
        (SessionState.AWAITING, Wish.PAUSE, 0.0, Withdraw("j", 3, Reason.PAUSED)),
    ],
)
def test_orders_for_a_live_session(state: SessionState, wish: Wish, waited: float, expected: Action) -> None:
    view = job(state=JobState.RUNNING, wish=wish, wish_at=NOW - timedelta(seconds=min(waited, 1e8)))
    assert plan(world([view], [platform()], [session(state=state)])) == (expected,)


@pytest.mark.parametrize(
    ("state", "wish", "expected"),
    [
        (JobState.QUEUED, Wish.PAUSE, Finish("j", JobState.PAUSED, Reason.PAUSED)),
        (JobState.QUEUED, Wish.CANCEL, Finish("j", JobState.CANCELLED, Reason.CANCELLED)),
        (JobState.PAUSED, Wish.CANCEL, Finish("j", JobState.CANCELLED, Reason.CANCELLED)),
    ],
)
def test_wishes_without_a_session(state: JobState, wish: Wish, expected: Action) -> None:
    assert plan(world([job(state=state, wish=wish)], [platform()])) == (expected,)


def test_a_paused_job_stays_where_it_is() -> None:
    assert plan(world([job(state=JobState.PAUSED, wish=Wish.PAUSE)], [platform()])) == ()


def test_gpu_hours_cut_the_session_and_end_the_job() -> None:
    (launch,) = plan(world([job(limits=Limits(gpu_hours=5.0), used_s=H)], [platform(gpu_count=2)]))
    assert isinstance(launch, Launch) and launch.hold_s == 2 * H
    spent = Finish("j", JobState.FAILED, Reason.GPU_HOURS_USED)
    assert plan(world([job(limits=Limits(gpu_hours=5.0), used_s=5 * H)], [platform()])) == (spent,)
    # What is left is too little for any session: waiting for it would never end.
    assert plan(world([job(limits=Limits(gpu_hours=5.0), used_s=5 * H - 400)], [platform()])) == (spent,)
    # A slot that is taken is no reason to give up.
    assert plan(world([job(limits=Limits(gpu_hours=5.0))], [platform(live=1)])) == ()


def test_deadline_cuts_the_session_ends_the_job_and_drains_what_runs() -> None:
    soon = Limits(deadline=NOW + timedelta(hours=2))
    (launch,) = plan(world([job(limits=soon)], [platform()]))
    assert isinstance(launch, Launch) and launch.hold_s == 2 * H
    passed = Limits(deadline=NOW)
    ended = Finish("j", JobState.FAILED, Reason.DEADLINE_PASSED)
    assert plan(world([job(limits=passed)], [platform()])) == (ended,)
    live = job(limits=passed, state=JobState.RUNNING)
    assert plan(world([live], [platform()], [session()])) == (Order("j", 3, "drain"),)
    waiting = session(state=SessionState.AWAITING)
    assert plan(world([live], [platform()], [waiting])) == (Withdraw("j", 3, Reason.DEADLINE_PASSED),)
    assert plan(world([replace(live, spec=replace(live.spec, limits=soon))], [platform()], [session()])) == ()


def test_a_session_on_a_platform_that_was_removed_still_gets_its_order() -> None:
    view = job(state=JobState.RUNNING, wish=Wish.CANCEL, wish_at=NOW - timedelta(days=1))
    assert plan(world([view], [], [session()])) == (Order("j", 3, "cancel"),)


# ---------------------------------------------------------------- any world


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    platforms = [
        platform(
            name,
            slots=draw(st.integers(0, 3)),
            live=draw(st.integers(0, 2)),
            left=draw(st.none() | st.floats(0, 40 * H)),
            cool=draw(st.sampled_from([0.0, 0.0, -5.0, 60.0])),
            gpu=draw(st.booleans()),
            gpu_count=draw(st.integers(0, 2)),
            attended=draw(st.booleans()),
            max_session_s=draw(st.floats(60, 24 * H)),
            speed=draw(st.floats(0.1, 4)),
        )
        for name in names
    ]
    jobs, sessions = [], []
    for index in range(draw(st.integers(0, 6))):
        live = draw(st.booleans())
        state = JobState.RUNNING if live else draw(st.sampled_from([JobState.QUEUED, JobState.QUEUED, JobState.PAUSED]))
        limits = Limits(
            draw(st.none() | st.floats(0.1, 50)),
            draw(st.none() | st.integers(-5, 50).map(lambda h: NOW + timedelta(hours=h))),
        )
        jobs.append(
            job(
                f"j{index}",
                state=state,
                wish=draw(st.sampled_from(Wish)),
                priority=draw(st.integers(-1, 1)),
                created_at=NOW - timedelta(hours=draw(st.integers(0, 2))),
                used_s=draw(st.floats(0, 60 * H)),
                limits=limits,
                platforms=tuple(draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=2))),
                resources=Resources(gpu=draw(st.booleans())),
                last_platform=draw(st.none() | st.sampled_from("abcd")),
            )
        )
        if live:
            sessions.append(
                session(
                    f"j{index}",
                    draw(st.sampled_from([SessionState.RUNNING, SessionState.AWAITING])),
                    draw(st.sampled_from("abcd")),
                )
            )
    return world(jobs, platforms, sessions)


@given(worlds(), st.randoms())
def test_the_same_world_gives_the_same_plan_in_whatever_order_it_is_told(found: World, random: Any) -> None:
    def shuffled(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        mixed = list(rows)
        random.shuffle(mixed)
        return tuple(mixed)

    first = plan(found)
    mixed = World(found.now, shuffled(found.jobs), shuffled(found.sessions), shuffled(found.platforms))
    assert plan(found) == first
    assert plan(mixed) == first


@given(worlds())
def test_no_job_gets_two_things_and_none_with_a_session_gets_a_launch(found: World) -> None:
    actions = plan(found)
    assert max(Counter(a.job for a in actions).values(), default=0) <= 1
    live = {s.job for s in found.sessions}
    for action in actions:
        assert isinstance(action, Order | Withdraw) == (action.job in live)


@given(worlds())
def test_never_over_slots_quota_or_limits(found: World) -> None:
    by_name = {p.profile.name: p for p in found.platforms}
    jobs = {j.id: j for j in found.jobs}
    starts = [a for a in plan(found) if isinstance(a, Launch)]
    for name, view in by_name.items():
        mine = [a for a in starts if a.platform == name]
        assert not mine or view.live + len(mine) <= view.profile.slots
        if view.balance.left_s is not None:
            assert sum(a.hold_s for a in mine) <= view.balance.left_s + 1e-6
    for start in starts:
        place, owner = by_name[start.platform].profile, jobs[start.job]
        assert owner.state is JobState.QUEUED and owner.wish is Wish.RUN
        assert start.hold_s <= place.max_session_s
        assert start.budget_s - place.start_s >= place.min_chunk_s
        assert not owner.spec.platforms or place.name in owner.spec.platforms
        assert place.gpu or not owner.spec.resources.gpu
        cool = by_name[start.platform].cool_until
        assert cool is None or cool <= NOW
        limits = owner.spec.limits
        if limits.gpu_hours is not None:
            assert owner.used_s + start.hold_s * max(1, place.gpu_count) <= limits.gpu_hours * H + 1e-6
        if limits.deadline is not None:
            assert NOW + timedelta(seconds=start.hold_s) <= limits.deadline + timedelta(seconds=1e-3)


@given(worlds())
def test_a_waiting_job_is_started_or_told_why_not_on_each_platform(found: World) -> None:
    planned = {a.job for a in plan(found)}
    for view in found.jobs:
        if view.state is JobState.QUEUED and view.wish is Wish.RUN and view.id not in planned:
            told = bars(view, found)
            taken = {a.platform for a in plan(found) if isinstance(a, Launch)}
            assert {bar.platform for bar in told} | taken == {p.profile.name for p in found.platforms}
