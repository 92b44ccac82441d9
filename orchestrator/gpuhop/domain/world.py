"""The world as the planner sees it: frozen values, made by engine.observe and by the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuhop.domain.job import JobSpec
from gpuhop.domain.quota import UNLIMITED, Balance, Window
from gpuhop.domain.states import JobState, SessionState, Wish


@dataclass(frozen=True)
class Profile:
    """A platform's allowances and habits, from the catalog, the user or the lab. Times in seconds.

    `start_s`: from launch to the first step, usually; `grace_s`: time a worker gets to leave; `margin_s`: distance
    kept from the session's own limit; `open_s`: how long an attended session waits for a person.
    """

    name: str
    adapter: str
    max_session_s: float
    slots: int = 1
    window: Window = UNLIMITED
    gpu: bool = False
    gpu_count: int = 0
    gpu_memory_gb: float = 0.0
    speed: float = 1.0  # relative to the reference device
    attended: bool = False
    start_s: float = 60.0
    grace_s: float = 60.0
    margin_s: float = 60.0
    open_s: float = 3600.0
    min_chunk_s: float = 300.0
    beat_s: float = 30.0
    log_s: float = 5.0
    lease_s: float = 300.0  # silence after which a session counts as lost, whatever its platform says
    installs: bool = False  # the worker may install packages for itself there
    posture: str = ""
    source: str = ""
    verified_on: str = ""


@dataclass(frozen=True)
class PlatformView:
    """One platform now. `cool_until`: no launches before this time; `cool_text` says why, in the platform's words."""

    profile: Profile
    balance: Balance
    live: int
    cool_until: datetime | None = None
    cool_text: str = ""


@dataclass(frozen=True)
class JobView:
    """One job that is not over. `last_platform`: where it ran last; `waiting_since`: entered QUEUED."""

    id: str
    spec: JobSpec
    state: JobState
    wish: Wish
    step: int
    used_s: float  # GPU-seconds charged to the job so far
    created_at: datetime
    waiting_since: datetime
    wish_at: datetime | None = None
    last_platform: str | None = None
    step_s: float | None = None  # seconds per step at speed 1, measured; None: not yet known


@dataclass(frozen=True)
class SessionView:
    """One live session."""

    id: int
    job: str
    token: int
    platform: str
    state: SessionState
    launched_at: datetime
    limit_at: datetime  # when the platform ends it
    beat_at: datetime | None  # when this scheduler last saw a new beat
    step: int = 0
    started_at: datetime | None = None  # None: not seen running yet


@dataclass(frozen=True)
class World:
    """All that a decision may depend on. Same world, same plan (DESIGN I10)."""

    now: datetime
    jobs: tuple[JobView, ...]
    sessions: tuple[SessionView, ...]
    platforms: tuple[PlatformView, ...]
