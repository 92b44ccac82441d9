"""What `submit` accepts, after validation: plain frozen values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gpuhop_worker.retention import Keep

CheckpointMode = Literal["api", "folder"]


@dataclass(frozen=True)
class Target:
    """When the job is done. Exactly one of the three is set."""

    steps: int | None = None
    epochs: int | None = None
    until_exit: bool = False


@dataclass(frozen=True)
class Every:
    """How often to save: a number of steps, seconds of training, or as measured. Exactly one is set."""

    steps: int | None = None
    seconds: float | None = None
    auto: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """How the training state is carried.

    `folder` (mode "folder" only) is relative to the job's working directory. `keep`: which checkpoints stay in the
    store. `read_back`: fetch every pack again before its checkpoint counts.
    """

    mode: CheckpointMode = "api"
    folder: str | None = None
    every: Every = field(default_factory=lambda: Every(auto=True))
    keep: Keep = field(default_factory=Keep)
    read_back: bool = False


@dataclass(frozen=True)
class Resources:
    """What one session must offer. Memory and disk in GB (1e9 bytes)."""

    gpu: bool = False
    gpu_count: int = 1
    gpu_memory_gb: float | None = None
    disk_gb: float | None = None


@dataclass(frozen=True)
class Limits:
    """What the job may cost: GPU-hours (session hours x GPUs) and an aware deadline."""

    gpu_hours: float | None = None
    deadline: datetime | None = None


@dataclass(frozen=True)
class JobSpec:
    """A valid job.yaml. `code` is an absolute folder. `env` values are plain; `secrets` holds names only."""

    name: str
    code: str
    run: str
    target: Target
    setup: str | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    resources: Resources = field(default_factory=Resources)
    platforms: tuple[str, ...] = ()  # empty: any platform that is set up
    limits: Limits = field(default_factory=Limits)
    priority: int = 0  # higher goes first
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # globs relative to the working directory, fetched at the end
    progress: str | None = None  # regular expression with one group: the step, found in the log (folder mode)
