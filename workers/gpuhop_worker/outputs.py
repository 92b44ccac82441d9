"""The job's results on their way home: files that match the job's globs, one archive."""

from __future__ import annotations

import glob
import io
import os
import tarfile
from typing import Callable, List

from gpuhop_worker import files, wire
from gpuhop_worker.store import GrantStore
from gpuhop_worker.wire import Grant


def ship(grant: Grant, store: GrantStore, root: str, say: Callable[[str], None]) -> List[str]:
    """The keys written. A glob that matches nothing is said, and is no error."""
    paths = []
    for pattern in grant.outputs:
        found = sorted(glob.glob(files.inside(root, pattern), recursive=True))
        if not found:
            say(f"no output matches {pattern!r}")
        paths += [path for path in found if os.path.isfile(path) and not os.path.islink(path)]
    if not paths:
        return []
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path in sorted(set(paths)):
            tar.add(path, arcname=os.path.relpath(path, root))
    key = wire.numbered_key(grant.job, grant.token, "output", 1)
    store.put_once(key, archive.getvalue())
    return [key]
