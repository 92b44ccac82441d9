"""The same files -> the same bytes: a tar.gz without times, owners or the order of a disk."""

from __future__ import annotations

import errno
import gzip
import os
import shlex
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gpuhop.errors import DiskFull, InvalidInput


def write_archive(root: Path, files: Sequence[str], target: IO[bytes]) -> None:
    """Write `files` (relative to `root`, with `/`, sorted by the caller) to `target`.

    Raises InvalidInput (a file cannot be read, or changes meanwhile) and DiskFull. What is in `target` is useless then.
    """
    try:
        # The level is fixed, and gzip's header holds neither time nor name: equal content, equal bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for name in files:
                    _add(tar, root, name)
    except OSError as wrong:
        if wrong.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                "no space left for the archive of the code", "df -h, free some space, then submit again"
            ) from None
        raise InvalidInput(f"the code in {root} cannot be archived: {wrong}", "gpuhop submit job.yaml") from None


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    path = root / name
    try:
        if path.is_symlink():
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = os.fspath(path.readlink()).replace(os.sep, "/")
            tar.addfile(info)
            return
        source = path.open("rb")
    except FileNotFoundError:
        raise _changed(path) from None
    except OSError as wrong:
        hint = f"chmod u+r {shlex.quote(str(path))}   (or add it to .gpuhopignore)"
        raise InvalidInput(f"{path} cannot be read: {wrong.strerror}", hint) from None
    with source:
        before = os.fstat(source.fileno())
        info = tarfile.TarInfo(name)
        info.size = before.st_size
        info.mode = 0o755 if before.st_mode & stat.S_IXUSR else 0o644
        try:
            tar.addfile(info, source)
        except OSError as wrong:
            # tarfile raises a bare OSError, without errno, when the file is shorter than it was.
            if wrong.errno is None:
                raise _changed(path) from None
            raise
        after = os.fstat(source.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _changed(path)


def _changed(path: Path) -> InvalidInput:
    return InvalidInput(f"{path} changed while it was read", "let it settle, then submit again")
