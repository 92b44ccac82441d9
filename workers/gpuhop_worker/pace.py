"""A grant's checkpoints last to the end of its session: the first half may be taken as they come, the rest in turns."""

from __future__ import annotations

from gpuhop_worker import files


def pause_s(left: int, whole: int, time_left_s: float) -> float:
    """Seconds to wait before the next checkpoint. `left` of `whole` checkpoints can still be written."""
    return 0.0 if left > whole // 2 else max(0.0, time_left_s) / max(1, left)


def tell(path: str, not_before: float) -> None:
    """For the user's process: no snapshot before this moment of the machine's monotonic clock. Raises OSError."""
    files.write_atomic(path, repr(not_before).encode("ascii"))


def told(path: str) -> float:
    """What the runner told last, 0 for nothing."""
    try:
        return float(files.read(path))
    except (OSError, ValueError):
        return 0.0
