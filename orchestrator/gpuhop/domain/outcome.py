"""What a job becomes after one of its sessions is over. Pure."""

from __future__ import annotations

from gpuhop.domain.states import JobState, Reason, Wish

FRUITLESS_LIMIT = 10
"""Sessions in a row without a new checkpoint, after which a job stops burning quota."""

_AGAIN_IF_PROGRESS = frozenset({Reason.SCRIPT_FAILED, Reason.SCRIPT_KILLED, Reason.DISK_FULL})
_ALWAYS_FINAL = frozenset(
    {
        Reason.ENDED_EARLY,
        Reason.SETUP_FAILED,
        Reason.RESTORE_FAILED,
        Reason.RESTORE_REFUSED,
        Reason.CODE_DAMAGED,
        Reason.SECRET_MISSING,
    }
)


def after_session(
    reason: Reason, *, progressed: bool, wish: Wish, fruitless: int, repeated: bool = False
) -> tuple[JobState, Reason | None]:
    """The job's next state and the reason to show with it.

    `progressed`: this session added a checkpoint that counts. `fruitless`: sessions in a row, this one included,
    that ran and added none. A command that failed after progress is tried again from its last checkpoint: the same
    failure at the same place then ends the job, because that session makes no progress. `repeated`: the session itself
    has tried it again already, and the command failed the same way from the same state.
    """
    if reason in (Reason.TARGET_REACHED, Reason.EXITED_0):
        return JobState.DONE, reason
    if wish is Wish.CANCEL:
        return JobState.CANCELLED, Reason.CANCELLED
    if reason in _ALWAYS_FINAL or (reason in _AGAIN_IF_PROGRESS and (repeated or not progressed)):
        return JobState.FAILED, reason
    if fruitless >= FRUITLESS_LIMIT:
        return JobState.FAILED, Reason.NO_PROGRESS
    if wish is Wish.PAUSE:
        return JobState.PAUSED, Reason.PAUSED
    return JobState.QUEUED, None
