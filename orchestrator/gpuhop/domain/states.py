"""States, the one table of legal moves, and the closed list of reasons with the next step in words."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The life of a job. A job that is RUNNING holds a lease; in no other state does it."""

    QUEUED = "queued"  # waits for a session
    RUNNING = "running"  # a session holds its lease
    PAUSED = "paused"  # by the user; keeps its checkpoints
    DONE = "done"  # target reached
    FAILED = "failed"  # see its reason; `gpuhop resume` tries again from the last checkpoint
    CANCELLED = "cancelled"  # by the user


class SessionState(StrEnum):
    """The life of a session."""

    LAUNCHING = "launching"  # token and hold taken; the platform may or may not know of it yet
    AWAITING = "awaiting-person"  # an attended platform: somebody must open it
    PENDING = "pending"  # the platform has queued it
    RUNNING = "running"  # it has beaten, or the platform says so
    ENDED = "ended"  # it left a result
    LOST = "lost"  # it left no result and will leave none that counts
    REFUSED = "refused"  # the platform did not take it


class Wish(StrEnum):
    """What the user wants of a job, until it is so."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.PAUSED, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.PAUSED, JobState.DONE, JobState.FAILED, JobState.CANCELLED}),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.FAILED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.DONE: frozenset(),
    JobState.CANCELLED: frozenset(),
}

_LIVE = frozenset({SessionState.ENDED, SessionState.LOST})

SESSION_TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.LAUNCHING: _LIVE
    | {SessionState.AWAITING, SessionState.PENDING, SessionState.RUNNING, SessionState.REFUSED},
    SessionState.AWAITING: _LIVE | {SessionState.PENDING, SessionState.RUNNING},
    SessionState.PENDING: _LIVE | {SessionState.RUNNING},
    SessionState.RUNNING: _LIVE,
    SessionState.ENDED: frozenset(),
    SessionState.LOST: frozenset(),
    SessionState.REFUSED: frozenset(),
}

OVER: frozenset[JobState] = frozenset(s for s, after in JOB_TRANSITIONS.items() if not after) | {JobState.FAILED}
"""States in which a job waits for nothing any more."""

LIVE_SESSIONS: frozenset[SessionState] = frozenset(s for s, after in SESSION_TRANSITIONS.items() if after)
"""States in which a session holds a lease, a slot and quota."""


class Reason(StrEnum):
    """Why a session or a job ended. The first block are the worker's own words (gpuhop_worker.wire.REASONS)."""

    TARGET_REACHED = "target_reached"
    EXITED_0 = "exited_0"
    BUDGET = "budget"
    SIGNAL = "signal"
    DRAINED = "drained"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    SCRIPT_FAILED = "script_failed"
    SCRIPT_KILLED = "script_killed"
    ENDED_EARLY = "ended_early"
    SETUP_FAILED = "setup_failed"
    RESTORE_FAILED = "restore_failed"
    RESTORE_REFUSED = "restore_refused"
    CODE_DAMAGED = "code_damaged"
    STORE_FAILED = "store_failed"
    DISK_FULL = "disk_full"
    MACHINE_FAILED = "machine_failed"
    SECRET_MISSING = "secret_missing"  # noqa: S105  a reason, not a secret
    WORKER_LACKS = "worker_lacks"

    LOST = "lost"
    OVERRAN = "overran"
    REFUSED = "refused"
    LAUNCH_FAILED = "launch_failed"
    NOT_OPENED = "not_opened"
    NO_PROGRESS = "no_progress"
    GPU_HOURS_USED = "gpu_hours_used"
    DEADLINE_PASSED = "deadline_passed"


WORDS: dict[Reason, tuple[str, str]] = {
    Reason.TARGET_REACHED: ("the target is reached", "gpuhop fetch {job}   (its outputs)"),
    Reason.EXITED_0: ("the command exited 0", "gpuhop fetch {job}   (its outputs)"),
    Reason.BUDGET: ("the chunk's time budget was used up", "nothing to do: the next chunk starts by itself"),
    Reason.SIGNAL: ("the platform ended the session with a warning", "nothing to do: the next chunk starts by itself"),
    Reason.DRAINED: ("the scheduler asked for a drain", "nothing to do: the next chunk starts by itself"),
    Reason.PAUSED: ("you paused it", "gpuhop resume {job}"),
    Reason.CANCELLED: ("you cancelled it", "gpuhop submit --new job.yaml   (to start afresh)"),
    Reason.SCRIPT_FAILED: (
        "the command failed",
        "gpuhop logs {job}, mend the cause, then gpuhop submit --new job.yaml",
    ),
    Reason.SCRIPT_KILLED: (
        "the command was killed by a signal; out of memory is the usual cause",
        "gpuhop logs {job}; ask for more memory in `resources:` or make the batch smaller, then submit --new",
    ),
    Reason.ENDED_EARLY: (
        "the command exited 0 before its target",
        "compare `target:` in job.yaml with the loop's own number of steps, then gpuhop submit --new job.yaml",
    ),
    Reason.SETUP_FAILED: (
        "the setup command failed",
        "gpuhop logs {job}, mend `setup:`, then gpuhop submit --new job.yaml",
    ),
    Reason.RESTORE_FAILED: (
        "none of the job's checkpoints verifies",
        "gpuhop store check; gpuhop submit --new job.yaml starts from the beginning",
    ),
    Reason.RESTORE_REFUSED: (
        "the script does not fit its checkpoint, or its state cannot be saved exactly",
        "gpuhop logs {job}   (each difference is named there)",
    ),
    Reason.CODE_DAMAGED: (
        "the code archive does not match its hash",
        "gpuhop store check, then gpuhop submit --new job.yaml",
    ),
    Reason.STORE_FAILED: ("the session could not reach the store", "gpuhop store check; gpuhop resume {job}"),
    Reason.DISK_FULL: (
        "the session's disk was full",
        "set `resources: disk:` in job.yaml, then gpuhop submit --new job.yaml",
    ),
    Reason.MACHINE_FAILED: (
        "the session's machine refused its disk or its memory",
        "nothing to do: the next chunk starts by itself, if it can elsewhere",
    ),
    Reason.SECRET_MISSING: (
        "a secret that the job needs is not set on that platform",
        "export it where the session starts, then gpuhop resume {job}",
    ),
    Reason.WORKER_LACKS: (
        "that platform's Python lacks packages that the job's checkpoint needs to be read",
        "pip install numpy zstandard blake3 there, or set `installs = true` for it; other platforms go on",
    ),
    Reason.LOST: ("no sign of life came from the session any more", "nothing to do: the next chunk starts by itself"),
    Reason.OVERRAN: ("the session outlived its limit", "nothing to do: the next chunk starts by itself"),
    Reason.REFUSED: ("the platform refused the session", "gpuhop explain {job}"),
    Reason.LAUNCH_FAILED: ("the session could not be started", "gpuhop doctor"),
    Reason.NOT_OPENED: ("nobody opened the session in time", "gpuhop status {job}   (it is offered again)"),
    Reason.NO_PROGRESS: (
        "ten sessions in a row ended without a new checkpoint",
        "gpuhop logs {job}; save more often (`checkpoint: every:`), then gpuhop resume {job}",
    ),
    Reason.GPU_HOURS_USED: (
        "limits.gpu_hours is used up",
        "raise limits.gpu_hours in job.yaml, then gpuhop submit --new job.yaml",
    ),
    Reason.DEADLINE_PASSED: (
        "limits.deadline has passed",
        "move limits.deadline in job.yaml, then gpuhop submit --new job.yaml",
    ),
}
"""Each reason in words, and the next step. Complete by test."""


def job_move_allowed(before: JobState, after: JobState) -> bool:
    return after in JOB_TRANSITIONS[before]


def session_move_allowed(before: SessionState, after: SessionState) -> bool:
    return after in SESSION_TRANSITIONS[before]
