"""How much memory may still be taken here: what the system has, or what the container's limit leaves."""

from __future__ import annotations

from typing import Callable, List, Optional

from gpuhop_worker import files

SPARE = 256 * 1024 * 1024  # bytes that are left to everything else: packs on their way, loader workers

Read = Callable[[str], bytes]

# (limit, used) of control groups, version 2 and version 1 (docs.kernel.org, cgroup-v2 and cgroup-v1/memory)
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available(read: Read = files.read) -> Optional[int]:
    """Bytes; None where the system does not tell."""
    found: List[int] = []
    for line in _lines("/proc/meminfo", read):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            found.append(int(value.split()[0]) * 1024)
    for limit, used in _GROUPS:
        numbers = [line.strip() for path in (limit, used) for line in _lines(path, read)[:1]]
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            found.append(max(0, int(numbers[0]) - int(numbers[1])))
    return min(found) if found else None


def _lines(path: str, read: Read) -> List[str]:
    try:
        return read(path).decode("ascii", "replace").splitlines()
    except OSError:
        return []
