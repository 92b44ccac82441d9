"""plan(world) -> actions: greedy, pure, deterministic. Issue 3 makes it good; the signature stays."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuhop.domain.job import JobSpec
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.domain.world import JobView, PlatformView, Profile, SessionView, World


@dataclass(frozen=True)
class Launch:
    """Start a session: it may train for `budget_s`, and holds `hold_s` of the platform's quota."""

    job: str
    platform: str
    budget_s: float
    hold_s: float


@dataclass(frozen=True)
class Order:
    """Tell a live session to stop: "pause", "cancel", or "drain" (save and leave, the job is not stopped)."""

    job: str
    token: int
    order: str


@dataclass(frozen=True)
class Withdraw:
    """End a session that has not begun, or one that did not leave in time when it was told to."""

    job: str
    token: int
    reason: Reason


@dataclass(frozen=True)
class Finish:
    """End a job that holds no lease."""

    job: str
    state: JobState
    reason: Reason


Action = Launch | Order | Withdraw | Finish


@dataclass(frozen=True)
class Bar:
    """Why a job cannot start on a platform now; `lifts_at` is None when no time is known."""

    platform: str
    text: str
    lifts_at: datetime | None = None


def plan(world: World) -> tuple[Action, ...]:
    """What to do now. Jobs in order of priority, then age; each goes where it gets the most training at once."""
    actions: list[Action] = []
    live = {session.job: session for session in world.sessions}
    taken: dict[str, tuple[int, float]] = {}
    for job in sorted(world.jobs, key=lambda j: (-j.spec.priority, j.created_at, j.id)):
        session = live.get(job.id)
        if session is not None:
            stop = _stop(job, session, world)
            if stop is not None:
                actions.append(stop)
            continue
        over = verdict_without_session(job, world.now) or _hours_too_few(job, world)
        if over is not None:
            actions.append(over)
        elif job.state is JobState.QUEUED:
            launch = _best(job, world, taken)
            if launch is not None:
                count, held = taken.get(launch.platform, (0, 0.0))
                taken[launch.platform] = (count + 1, held + launch.hold_s)
                actions.append(launch)
    return tuple(actions)


def _stop(job: JobView, session: SessionView, world: World) -> Order | Withdraw | None:
    """Ask first; a session that has not begun is withdrawn at once, a cancelled one that stays is ended."""
    if job.wish is Wish.RUN:
        return _at_deadline(job, session, world.now)
    reason = Reason.CANCELLED if job.wish is Wish.CANCEL else Reason.PAUSED
    if session.state is not SessionState.RUNNING:
        return Withdraw(job.id, session.token, reason)
    profile = next((p.profile for p in world.platforms if p.profile.name == session.platform), None)
    if profile is not None and job.wish is Wish.CANCEL and job.wish_at is not None:
        patience = 2 * profile.grace_s + 2 * profile.beat_s + profile.margin_s
        if world.now - job.wish_at > timedelta(seconds=patience):
            return Withdraw(job.id, session.token, reason)
    return Order(job.id, session.token, job.wish.value)


def _at_deadline(job: JobView, session: SessionView, now: datetime) -> Order | Withdraw | None:
    deadline = job.spec.limits.deadline
    if deadline is None or now < deadline:
        return None
    if session.state is not SessionState.RUNNING:
        return Withdraw(job.id, session.token, Reason.DEADLINE_PASSED)
    return Order(job.id, session.token, "drain")


def verdict_without_session(job: JobView, now: datetime) -> Finish | None:
    """What a job without a live session comes to, when it may not be started again."""
    if job.wish is Wish.CANCEL and job.state is not JobState.CANCELLED:
        return Finish(job.id, JobState.CANCELLED, Reason.CANCELLED)
    if job.state is not JobState.QUEUED:
        return None
    if job.wish is Wish.PAUSE:
        return Finish(job.id, JobState.PAUSED, Reason.PAUSED)
    limits = job.spec.limits
    if limits.deadline is not None and now >= limits.deadline:
        return Finish(job.id, JobState.FAILED, Reason.DEADLINE_PASSED)
    if limits.gpu_hours is not None and job.used_s >= limits.gpu_hours * 3600.0 - 1.0:
        return Finish(job.id, JobState.FAILED, Reason.GPU_HOURS_USED)
    return None


def _hours_too_few(job: JobView, world: World) -> Finish | None:
    """What is left of limits.gpu_hours is too little for a useful session anywhere: waiting would never end."""
    limit = job.spec.limits.gpu_hours
    fitting = [p.profile for p in world.platforms if _never(job.spec, p.profile) is None]
    if limit is None or not fitting or job.state is not JobState.QUEUED:
        return None
    left_s = limit * 3600.0 - job.used_s
    if any(_useful_s(left_s / max(1, profile.gpu_count), profile) >= profile.min_chunk_s for profile in fitting):
        return None
    return Finish(job.id, JobState.FAILED, Reason.GPU_HOURS_USED)


def _useful_s(session_s: float, profile: Profile) -> float:
    """Training time in a session of this length."""
    return min(session_s, profile.max_session_s) - profile.start_s - profile.grace_s - profile.margin_s


def _best(job: JobView, world: World, taken: dict[str, tuple[int, float]]) -> Launch | None:
    choices = []
    for platform in world.platforms:
        count, held = taken.get(platform.profile.name, (0, 0.0))
        launch, _ = fit(job, platform, world.now, extra_live=count, extra_held_s=held)
        if launch is not None:
            choices.append((_rank(launch, platform, job), launch))
    return min(choices, key=lambda pair: pair[0])[1] if choices else None


def _rank(launch: Launch, platform: PlatformView, job: JobView) -> tuple[object, ...]:
    """Smaller is better: unattended first, then useful work in this chunk, then the platform it just left."""
    profile = platform.profile
    work = launch.budget_s * profile.speed
    return (profile.attended, -work, profile.name != job.last_platform, profile.name)


def fit(
    job: JobView, platform: PlatformView, now: datetime, *, extra_live: int = 0, extra_held_s: float = 0.0
) -> tuple[Launch | None, Bar | None]:
    """A launch of this job on this platform, or the first thing that stands in its way."""
    profile, balance = platform.profile, platform.balance
    bar = _never(job.spec, profile)
    if bar is not None:
        return None, Bar(profile.name, bar)
    if platform.cool_until is not None and platform.cool_until > now:
        return None, Bar(profile.name, platform.cool_text or "cooling down", platform.cool_until)
    if platform.live + extra_live >= profile.slots:
        return None, Bar(profile.name, f"all {profile.slots} slots are taken")
    session_s = profile.max_session_s
    if balance.left_s is not None:
        session_s = min(session_s, balance.left_s - extra_held_s)
    if job.spec.limits.gpu_hours is not None:
        gpus = max(1, profile.gpu_count)
        session_s = min(session_s, (job.spec.limits.gpu_hours * 3600.0 - job.used_s) / gpus)
    if job.spec.limits.deadline is not None:
        session_s = min(session_s, (job.spec.limits.deadline - now).total_seconds())
    budget = session_s - profile.grace_s - profile.margin_s
    if budget - profile.start_s < profile.min_chunk_s:
        return None, _too_short(job, platform, extra_held_s)
    return Launch(job.id, profile.name, budget, session_s), None


def _too_short(job: JobView, platform: PlatformView, extra_held_s: float) -> Bar:
    """Which of the limits makes the session too short to be useful."""
    profile, left_s = platform.profile, platform.balance.left_s
    if _useful_s(profile.max_session_s, profile) < profile.min_chunk_s:
        return Bar(profile.name, f"its sessions of {profile.max_session_s / 3600.0:.1f} h are too short to be useful")
    if left_s is not None and _useful_s(left_s - extra_held_s, profile) < profile.min_chunk_s:
        hours = max(0.0, left_s - extra_held_s) / 3600.0
        return Bar(
            profile.name, f"too little quota for a useful session ({hours:.1f} h left)", platform.balance.refill_at
        )
    return Bar(profile.name, "what `limits:` leaves is too short for a useful session")


def _never(spec: JobSpec, profile: Profile) -> str | None:
    """What no waiting will change."""
    if spec.platforms and profile.name not in spec.platforms:
        return "not in the job's `platforms:`"
    need = spec.resources
    if need.gpu and not profile.gpu:
        return "has no GPU"
    if need.gpu and profile.gpu_count < need.gpu_count:
        return f"has {profile.gpu_count} GPU(s), the job needs {need.gpu_count}"
    if need.gpu and need.gpu_memory_gb is not None and profile.gpu_memory_gb < need.gpu_memory_gb:
        return f"has {profile.gpu_memory_gb:g} GB of GPU memory, the job needs {need.gpu_memory_gb:g}"
    return None


def bars(job: JobView, world: World) -> tuple[Bar, ...]:
    """For `explain`: what stands in the way on each platform now."""
    found = [fit(job, platform, world.now)[1] for platform in world.platforms]
    return tuple(bar for bar in found if bar is not None)
