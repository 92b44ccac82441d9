"""What the end of a command means for its session. Pure."""

from __future__ import annotations

import errno
from typing import Optional, Tuple

from gpuhop_worker import files, training, wire
from gpuhop_worker.wire import Grant


class Ended(Exception):
    """The session ends here, for this reason (one of wire.REASONS)."""

    def __init__(self, status: str, reason: str, message: str = "", code: Optional[int] = None) -> None:
        super().__init__(message or wire.REASONS[reason])
        self.status = status
        self.reason = reason
        self.message = message
        self.code = code


# What a machine says when it is the machine that fails; anything else is somebody's mistake.
_MACHINE = (
    errno.EIO,
    errno.ENOMEM,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.EAGAIN,
    errno.ENODEV,
    errno.ENXIO,
    errno.ESTALE,
    errno.EACCES,
    errno.EPERM,
)


def of_machine(error: OSError) -> Optional[Ended]:
    """What the machine's refusal means for the session; None when the error is a bug."""
    if error.errno in files.NO_SPACE:
        return Ended("failed", "disk_full", "no space left on the session's disk")
    if error.errno not in _MACHINE:
        return None
    where = f" ({error.filename})" if error.filename else ""
    return Ended("failed", "machine_failed", f"{wire.REASONS['machine_failed']}: {error.strerror}{where}")


FENCED = 14
GRANT_UNREADABLE = 10
CODES = {
    "setup_failed": 12,
    "restore_failed": 11,
    "restore_refused": 11,
    "store_failed": 15,
    "disk_full": 16,
    "code_damaged": 17,
    "secret_missing": 18,
    "worker_lacks": 19,
    "machine_failed": 20,
}
"""Exit codes of a session by reason; 0: ended as planned, 13: the command failed, 14: fenced (docs/exit-codes.md)."""


def session_code(end: Ended) -> int:
    return CODES.get(end.reason, 0 if end.status != "failed" else 13)


def verdict(grant: Grant, status: int, step: int, done: bool, order: Optional[Tuple[str, str]]) -> Ended:
    """What the command's exit means. `status`: exit code, negative for a signal; `done`: api mode reached its goal;
    `order`: (status, reason) of what the session was told, if anything."""
    if grant.mode == "api" and status == training.REFUSED:
        return Ended("failed", "restore_refused", "see the end of the log", status)
    if grant.mode == "api" and status == training.DISK_FULL:
        return Ended("failed", "disk_full", "the last save did not fit on the session's disk", status)
    if grant.mode == "api" and status == training.MACHINE_FAILED:
        fact = "the machine's disk or memory failed the training: see the end of the log"
        return Ended("failed", "machine_failed", fact, status)
    if status == 0 and done:
        return Ended("target", "target_reached", "", 0)
    goal = grant.target_steps or grant.target_epochs
    if grant.mode == "folder" and goal is not None and status == 0 and step >= goal:
        return Ended("target", "target_reached", "", 0)
    if order is not None:
        return Ended(order[0], order[1], "", status)
    if status == training.DRAINED and grant.mode == "api":
        return Ended("drained", "signal", "the command got a SIGTERM", status)
    if status == 0:
        return _exited_early_or_done(grant, step)
    if status < 0:
        return Ended("failed", "script_killed", f"the command was killed by signal {-status}", status)
    return Ended("failed", "script_failed", f"the command exited with {status}", status)


def _exited_early_or_done(grant: Grant, step: int) -> Ended:
    """`step` counts what the target counts; in folder mode it is the number that `progress` found in the log."""
    if grant.target_steps is None and grant.target_epochs is None:
        return Ended("target", "exited_0", "", 0)
    goal = f"{grant.target_steps} steps" if grant.target_steps else f"{grant.target_epochs} epochs"
    return Ended("failed", "ended_early", f"the command exited 0 at step {step} of {goal}", 0)
