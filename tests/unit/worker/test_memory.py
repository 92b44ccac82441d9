"""What the system and the container say about memory."""

from __future__ import annotations

import pytest

from gpuhop_worker import memory

MEMINFO = b"MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
V2 = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")
V1 = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({}, None),
        ({"/proc/meminfo": MEMINFO}, 8_192_000_000),
        ({"/proc/meminfo": MEMINFO, V2[0]: b"max\n", V2[1]: b"5\n"}, 8_192_000_000),
        ({"/proc/meminfo": MEMINFO, V2[0]: b"4000000000\n", V2[1]: b"1500000000\n"}, 2_500_000_000),
        ({"/proc/meminfo": MEMINFO, V1[0]: b"9223372036854771712\n", V1[1]: b"1\n"}, 8_192_000_000),
        ({"/proc/meminfo": MEMINFO, V1[0]: b"1000\n", V1[1]: b"2000\n"}, 0),
        ({"/proc/meminfo": b"MemTotal: 5 kB\n"}, None),
        ({V2[0]: b"7000\n"}, None),
    ],
)
def test_the_least_of_what_is_told(files: dict[str, bytes], want: int | None) -> None:
    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    assert memory.available(read) == want
