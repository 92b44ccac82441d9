"""Which keys gpuhop writes: a set narrow enough to mean the same in a folder, in an address and in every S3.

The charset needs no quoting in an address. Empty parts, `.` and `..` are refused because SeaweedFS refuses
`a/../b` and loses the body of a key that ends in `/` (facts/infra.md section 1, quirk 7). 1024 bytes is the
key limit of S3 (AWS, "Naming Amazon S3 objects"), 255 bytes the name limit of ext4, xfs, btrfs and APFS.
"""

from __future__ import annotations

import re

from gpuhop.errors import InvalidInput

TEMP_MARK = ".tmp-"
"""Begins the temporary names of LocalStore and of the worker's file writer (gpuhop_worker.store): never a
key.
"""

MAX_KEY = 1024
MAX_PART = 255
_CHARS = re.compile(r"[A-Za-z0-9._/-]*\Z")


def _fault(key: str) -> str | None:
    if not key:
        return "it is empty"
    if not _CHARS.match(key):
        return "only A-Z a-z 0-9 . _ - and / are allowed"
    if len(key) > MAX_KEY:
        return f"it is longer than {MAX_KEY} characters"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return "it has an empty, '.' or '..' part"
        if part.startswith(TEMP_MARK):
            return f"a part begins with {TEMP_MARK}, which marks unfinished files"
        if len(part) > MAX_PART:
            return f"a part is longer than {MAX_PART} characters"
    return None


def is_key(key: str) -> bool:
    """Could gpuhop have written this key?"""
    return _fault(key) is None


def checked_key(key: str) -> str:
    """The key itself; raises InvalidInput when it is not a key."""
    fault = _fault(key)
    if fault is not None:
        raise InvalidInput(f"{key!r} cannot be an object key: {fault}", "use a key such as jobs/name/spec.json")
    return key


def checked_prefix(prefix: str) -> str:
    """A prefix of keys: as a key, but it may be empty, end in `/`, or end within a part."""
    probe = prefix.removesuffix("/")
    if prefix and _fault(probe) is not None:
        raise InvalidInput(f"{prefix!r} cannot be a key prefix: {_fault(probe)}", "use a prefix such as jobs/name/")
    return prefix
