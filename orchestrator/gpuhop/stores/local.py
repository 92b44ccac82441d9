"""LocalStore: objects are files below a folder. For one machine: the lab, the demo, the `local` platform.

A file is written under a temporary name in its own folder, synced, renamed, and the folder is synced: rename
within a folder is the one atomic replace that POSIX gives. Temporary names begin with TEMP_MARK, which no
part of a key can, so a crash can leave one behind but never makes an object of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpuhop.errors import DiskFull, NotFound, ObjectMissing, StoreError
from gpuhop.stores.base import Entry, Leftover, StoreTraits, Verb
from gpuhop.stores.keys import TEMP_MARK, checked_key, checked_prefix, is_key

FOREVER_S = 10 * 365 * 86400.0
"""Ten years: a file address never dies, and a finite number can be written as JSON."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_MKDIR_TRIES = 100


class LocalStore:
    """A Store in a folder, which is made at the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(scheme="file", create_once=True, max_presign_s=FOREVER_S)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return path.read_bytes()
        except _ABSENT:
            raise ObjectMissing(key) from None
        except OSError as error:
            raise self._failure("read", key, error) from error

    def put(self, key: str, body: bytes) -> None:
        def fill(file: BinaryIO) -> None:
            file.write(body)

        self._write(key, fill)

    def put_file(self, key: str, path: str) -> None:
        try:
            source = Path(path).open("rb")  # noqa: SIM115  (closed below; only the open itself may mean "no file")
        except OSError as error:
            raise NotFound(f"cannot read {path}: {error.strerror}", f"ls -l {path}") from error
        with source:
            self._write(key, lambda file: shutil.copyfileobj(source, file, 1 << 20))

    def list(self, prefix: str) -> Iterator[Entry]:
        checked_prefix(prefix)
        folder = self._root / prefix.rpartition("/")[0]
        try:
            found = [entry for entry in self._walk(folder) if entry.key.startswith(prefix)]
        except OSError as error:
            raise self._failure("list", prefix, error) from error
        return iter(sorted(found, key=lambda entry: entry.key))

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink()
            _sync_folder(path.parent)
        except _ABSENT:
            return
        except OSError as error:
            if path.is_dir():  # unlink of a folder is EPERM on some systems: there is no object here
                return
            raise self._failure("delete", key, error) from error
        self._prune(path.parent)

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Temporary files of writers; the folders that only they kept go with them."""
        checked_prefix(prefix)
        folder = self._root / prefix.rpartition("/")[0]
        try:
            found = [self._leftover(path, size) for path, size in self._files(folder) if _is_temporary(path)]
        except OSError as error:
            raise self._failure("list", prefix, error) from error
        return iter(sorted((one for one in found if one.key.startswith(prefix)), key=lambda one: one.key))

    def _leftover(self, path: Path, size: int) -> Leftover:
        key = path.relative_to(self._root).as_posix()

        def remove() -> None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise self._failure("delete", key, error) from error
            self._prune(path.parent)

        return Leftover(key, size, remove)

    def presign(self, verb: Verb, key: str, ttl_s: float) -> str:
        """A `file://` address. It never dies: `ttl_s` is not kept; `?create=once` marks put_new."""
        address = self._path(key).as_uri()
        return f"{address}?create=once" if verb == "put_new" else address

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)

    def _write(self, key: str, fill: Callable[[BinaryIO], object]) -> None:
        path = self._path(key)
        temp: Path | None = None
        try:
            temp, descriptor = self._temp_beside(path)
            with os.fdopen(descriptor, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(path)
            with suppress(FileNotFoundError):  # another thread deleted the object, and with it the folder
                _sync_folder(path.parent)
        except BaseException as error:
            if temp is not None:
                with suppress(OSError):
                    temp.unlink()
            if isinstance(error, OSError):
                raise self._failure("write", key, error) from error
            raise

    def _temp_beside(self, path: Path) -> tuple[Path, int]:
        """An open temporary file in the object's folder; again when `_prune` removed it in between."""
        for _ in range(_MKDIR_TRIES):
            temp = path.parent / f"{TEMP_MARK}{secrets.token_hex(8)}"
            try:
                _make_folder(path.parent)
                return temp, os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(errno.ENOENT, "the folder vanishes as fast as it is made", str(path.parent))

    def _walk(self, folder: Path) -> Iterator[Entry]:
        """All objects below folder; what no key can name is skipped."""
        for path, size in self._files(folder):
            key = path.relative_to(self._root).as_posix()
            if is_key(key):
                yield Entry(key, size)

    def _files(self, folder: Path) -> Iterator[tuple[Path, int]]:
        """All files below folder, with their sizes; what vanishes meanwhile is skipped."""
        try:
            rows = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for row in rows:
            if row.is_dir(follow_symlinks=False):
                yield from self._files(Path(row.path))
            elif row.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    yield Path(row.path), row.stat(follow_symlinks=False).st_size

    def _prune(self, folder: Path) -> None:
        """Remove folders that became empty, below the root: an object store has no empty folders either."""
        with suppress(OSError):
            while folder != self._root and folder.is_relative_to(self._root):
                folder.rmdir()
                folder = folder.parent

    def _failure(self, verb: str, key: str, error: OSError) -> StoreError | DiskFull:
        if error.errno in _FULL:
            return DiskFull(f"no space left for {key} below {self._root}", f"df -h {self._root}")
        reason = error.strerror or type(error).__name__
        return StoreError(f"cannot {verb} {key} below {self._root}: {reason}", f"ls -ld {self._root}")


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMP_MARK)


def _make_folder(folder: Path) -> None:
    """mkdir -p, each new level synced into its parent: else a crash may lose a synced file's folder."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder, and journals renames itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no fsync for folders
            raise
    finally:
        os.close(descriptor)
