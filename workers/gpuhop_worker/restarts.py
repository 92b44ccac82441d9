"""Whether a command that ended by itself is started again in the same session. Pure (ADR 0012).

A crash by a signal is started again as long as each start gets further than the one before, `most` times at the most.
A failure with an exit code is usually the script's own and comes again: it is tried once more, and only when the
session has a newer state to go on from; when it comes again without a newer one, the job need not try a third time.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import List

from gpuhop_worker import training

_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # somebody wanted it to end
_OWN = (
    training.DRAINED,
    training.REFUSED,
    training.DISK_FULL,
    training.MACHINE_FAILED,
)  # what the session API leaves with


@dataclass(frozen=True)
class Life:
    """One start of the command, and its end. `began`, `newest`: numbers of the whole snapshots that it began with and
    that there were when it ended (0: what the session began with); `moved`: it made a step."""

    status: int
    began: int
    newest: int
    moved: bool


def crashed(mode: str, status: int) -> bool:
    """True for an end that nobody wanted. `status`: exit code, negative for a signal."""
    if mode == "api" and status in _OWN:
        return False
    return status != 0 and -status not in _ASKED


def start_again(mode: str, lives: List[Life], most: int) -> bool:
    """After the last of these lives, all of one session. In folder mode only a whole snapshot can be gone back to:
    what lies in the folder may be torn."""
    last = lives[-1]
    if not crashed(mode, last.status) or len(lives) > most:
        return False
    if last.newest > last.began:
        return last.status < 0 or not any(life.status > 0 for life in lives[:-1])
    return last.status < 0 and last.moved and len(lives) == 1 and mode == "api"


def repeated(lives: List[Life]) -> bool:
    """True when the last life failed with the same exit code as the one before, with no newer state in between. A
    signal does not count: the next machine may have more memory."""
    if len(lives) < 2:
        return False
    before, last = lives[-2:]
    return last.status > 0 and last.status == before.status and last.newest == last.began


def how(status: int) -> str:
    """The end of a command in words."""
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
