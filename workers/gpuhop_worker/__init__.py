"""What runs inside a session. For the user's script: `session = gpuhop_worker.session()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from gpuhop_worker.training import Session

_session: Optional[Session] = None


def session() -> Session:
    """The session of this process: the one gpuhop set up, or a bare one that just counts steps."""
    global _session  # noqa: PLW0603  one per process, like the process's environment that it is read from
    if _session is None:
        from gpuhop_worker.training import from_environment

        _session = from_environment()
    return _session
