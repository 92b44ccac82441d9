"""The hash that a block is known by: BLAKE3 where the package is there (6 GB/s a core here), else SHA-256 (1.8 GB/s
with the CPU's SHA instructions, 0.5 without: facts on checkpoints, section 3.3).

A job keeps the hash of its first checkpoint, so that what has not changed is found again across sessions.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict

from gpuhop_worker.codecs import Lacking

try:
    import blake3

    blake3.blake3(b"").hexdigest()
except Exception:  # absent, half installed, or another package of this name: the standard library alone has to do
    blake3 = None  # type: ignore[assignment]

SHA256 = "sha256"
BLAKE3 = "blake3"

Digest = Callable[[Any], str]
"""Bytes -> 64 lower-case hex digits. Releases the interpreter lock for large ones."""


def best() -> str:
    """The name of the quickest hash that is here."""
    return SHA256 if blake3 is None else BLAKE3


def digest(name: str) -> Digest:
    """Raises Lacking for a hash that cannot be computed here."""
    known: Dict[str, Digest] = {SHA256: lambda data: hashlib.sha256(data).hexdigest()}
    if blake3 is not None:
        known[BLAKE3] = lambda data: str(blake3.blake3(data).hexdigest())
    if name not in known:
        lack = "needs the package blake3 (pip install blake3)" if name == BLAKE3 else "is not known to this worker"
        raise Lacking(f"the block hash {name!r} {lack}", BLAKE3 if name == BLAKE3 else "")
    return known[name]
