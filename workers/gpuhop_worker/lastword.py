"""The end of a session: its outputs and its result."""

from __future__ import annotations

from typing import Callable, List

from gpuhop_worker import outputs
from gpuhop_worker.lives import Lives
from gpuhop_worker.restarts import repeated
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.store import GrantStore
from gpuhop_worker.verdict import Ended
from gpuhop_worker.wire import Grant, Result


def ship_outputs(grant: Grant, store: GrantStore, folder: str, end: Ended, say: Callable[[str], None]) -> List[str]:
    """Keys of what the job's `outputs` name, once its target is reached. Raises StoreFailure."""
    if end.status != "target":
        return []
    try:
        return outputs.ship(grant, store, folder, say)
    except OSError as error:
        say(f"the outputs could not be packed: {error}")
        return []


def result_of(
    grant: Grant, end: Ended, step: int, shipper: Shipper, train_s: float, sent: List[str], lives: Lives
) -> Result:
    """`train_s`: seconds of the session's clock; `sent`: keys of the outputs; `lives`: of the command."""
    return Result(
        token=grant.token,
        status=end.status,
        reason=end.reason,
        step=step,
        saved_step=shipper.saved_step,
        saved_seq=shipper.saved_seq,
        train_s=train_s,
        exit_code=end.code,
        message=end.message,
        outputs=sent,
        progressed=shipper.progressed,
        restarts=lives.restarts,
        repeated=repeated(lives.crashes),
    )
