"""The numbered segments of a session's log and metrics in the store (format.md section 6)."""

from __future__ import annotations

import gzip
import re

from gpuhop.errors import ObjectMissing
from gpuhop.stores.base import Store
from gpuhop_worker import wire

_NUMBER = re.compile(r"-(\d{6,})\.gz$")


def segments(store: Store, job: str, token: int, what: str) -> list[str]:
    """Keys of the log or metrics segments of one session, in order."""
    prefix = wire.session_prefix(job, token) + what + "-"
    found = [(int(m.group(1)), entry.key) for entry in store.list(prefix) if (m := _NUMBER.search(entry.key))]
    return [key for _, key in sorted(found)]


def text_of(store: Store, job: str, token: int, what: str) -> bytes:
    """All segments of one session. One that is being replaced, or is damaged, is left out."""
    parts = []
    for key in segments(store, job, token, what):
        try:
            parts.append(gzip.decompress(store.get(key)))
        except (ObjectMissing, OSError, EOFError):
            continue
    return b"".join(parts)
