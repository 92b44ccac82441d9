"""The code folder -> one archive that never changes again, named by its hash."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuhop.errors import InvalidInput
from gpuhop.spec.archive import write_archive
from gpuhop.spec.gitfiles import git_files
from gpuhop.spec.ignore import ALWAYS, CREDENTIALS, IGNORE_FILE, Ignore

LIMIT_BYTES = 512_000_000


@dataclass(frozen=True)
class FrozenCode:
    """What was frozen. `files` are sorted and relative, with `/`.

    `archive` is a tar.gz of `size_bytes` and with this `sha256`; `content_bytes` is what it unpacks to. What was left
    out and may surprise: `submodules`, `untracked` files (git only), `credentials` (files named like keys).
    """

    sha256: str
    size_bytes: int
    content_bytes: int
    files: tuple[str, ...]
    archive: Path
    submodules: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Selection:
    files: tuple[str, ...]
    submodules: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()


def freeze(code_dir: Path, *, into: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> FrozenCode:
    """Archive the tracked files of a git work tree, or else every file that `.gpuhopignore` does not name.

    The archive lies in `into` (a new temporary folder when None; the caller removes it) as `code-<sha256>.tar.gz`.
    Raises InvalidInput (no folder, nothing in it, too large, a link that leaves it, an unreadable or special file,
    git fails) and DiskFull.
    """
    root = _root(code_dir)
    chosen = _select(root)
    content = _check(root, chosen, limit_bytes)
    folder = into if into is not None else Path(tempfile.mkdtemp(prefix="gpuhop-code-"))
    folder.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=".code-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "w+b") as target:
            write_archive(root, chosen.files, target)
            size = target.tell()
            target.seek(0)
            sha256 = hashlib.file_digest(target, "sha256").hexdigest()
        archive = Path(unfinished).replace(folder / f"code-{sha256}.tar.gz")
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        if into is None:
            folder.rmdir()
        raise
    left_out = (chosen.submodules, chosen.untracked, chosen.credentials)
    return FrozenCode(sha256, size, content, chosen.files, archive, *left_out)


def _root(code_dir: Path) -> Path:
    if not code_dir.exists():
        raise InvalidInput(f"there is no code folder {code_dir}", "set `code:` in job.yaml to the folder of the script")
    if not code_dir.is_dir():
        parent = code_dir.parent
        raise InvalidInput(f"{code_dir} is a file, and code must be a folder", f"set `code: {parent}` in job.yaml")
    return code_dir.resolve()


def _select(root: Path) -> _Selection:
    """Which files are taken, sorted; InvalidInput when there are none."""
    rules = _ignore_rules(root)
    always = Ignore(ALWAYS)
    tracked = git_files(root)
    if tracked is None:
        found = list(_walk(root, always, rules))
    else:
        found = [name for name in tracked.tracked if os.path.lexists(root / name) and not always.covers(name)]
    files = sorted(name for name in found if not rules.covers(name))
    guarded = Ignore(CREDENTIALS)
    credentials = tuple(sorted(n for n in found if guarded.covers(n) and rules.covers(n)))
    if not files:
        raise _empty(root, () if tracked is None else tracked.untracked)
    if tracked is None:
        return _Selection(tuple(files), credentials=credentials)
    return _Selection(tuple(files), tracked.submodules, tracked.untracked, credentials)


def _ignore_rules(root: Path) -> Ignore:
    path = root / IGNORE_FILE
    lines: list[str] = []
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        except OSError as wrong:
            raise InvalidInput(f"{path} cannot be read: {wrong.strerror}", f"chmod u+r {_q(path)}") from None
    return Ignore((*CREDENTIALS, *lines))


def _walk(root: Path, always: Ignore, rules: Ignore) -> Iterator[str]:
    """Files and links below `root`; folders that are ignored are not entered. A link to a folder counts as a file."""

    def fail(wrong: OSError) -> None:
        raise InvalidInput(
            f"{wrong.filename} cannot be read: {wrong.strerror}", f"chmod u+rx {_q(wrong.filename)}"
        ) from None

    for folder, below, names in os.walk(root, onerror=fail):
        above = Path(folder).relative_to(root)
        entered: list[str] = []
        for name in below:
            path = (above / name).as_posix()
            if (root / path).is_symlink():
                names.append(name)
            elif not always.matches(path, True) and not rules.matches(path, True):
                entered.append(name)
        below[:] = entered
        for name in names:
            path = (above / name).as_posix()
            if not always.matches(path, False):
                yield path


def _check(root: Path, chosen: _Selection, limit_bytes: int) -> int:
    """The bytes of all files. InvalidInput for the first that cannot be carried, and when they are too many."""
    sizes: dict[str, int] = {}
    for name in chosen.files:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            shown = os.fsencode(name)
            raise InvalidInput(f"the name of {shown!r} in {root} is not UTF-8", "rename the file") from None
        mode = (root / name).lstat()
        if stat.S_ISLNK(mode.st_mode):
            _check_link(root, name)
        elif stat.S_ISREG(mode.st_mode):
            sizes[name] = mode.st_size
        else:
            said = f"{root / name} is neither a file nor a link (a pipe, a socket or a device)"
            raise InvalidInput(said, _ignore_it(root, name))
    total = sum(sizes.values())
    if total > limit_bytes:
        raise _too_large(root, sizes, total, limit_bytes)
    return total


def _check_link(root: Path, name: str) -> None:
    target = os.fspath((root / name).readlink())
    said = f"the link {name} in {root} points to {target}"
    if Path(target).is_absolute():
        raise InvalidInput(f"{said}: an absolute path means nothing on another machine", _ignore_it(root, name))
    lexical = os.path.normpath((Path(name).parent / target).as_posix())
    try:
        real = (root / name).resolve()
    except (OSError, RuntimeError):  # Python before 3.13 raises RuntimeError for links that form a ring
        raise InvalidInput(f"{said}, which leads back to itself", _ignore_it(root, name)) from None
    if PurePosixPath(lexical).parts[:1] == ("..",) or not real.is_relative_to(root):
        raise InvalidInput(f"{said}, outside the code folder", _ignore_it(root, name))


def _empty(root: Path, untracked: tuple[str, ...]) -> InvalidInput:
    if untracked:
        some = " ".join(_q(name) for name in untracked[:3])
        fact = f"git tracks no file in {root} that could be taken, and only tracked files are"
        return InvalidInput(fact, f"git -C {_q(root)} add {some}")
    return InvalidInput(
        f"the code folder {root} holds no file that could be taken",
        f"ls -A {_q(root)}   (put the script there, look into {IGNORE_FILE}, or set `code:` in job.yaml)",
    )


def _too_large(root: Path, sizes: dict[str, int], total: int, limit: int) -> InvalidInput:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:5]
    listed = ", ".join(f"{name} ({_megabytes(sizes[name])})" for name in largest)
    return InvalidInput(
        f"the code in {root} is {_megabytes(total)}, more than {_megabytes(limit)}; the largest files: {listed}",
        _ignore_it(root, largest[0]),
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _ignore_it(root: Path, name: str) -> str:
    """The command that adds one file to the ignore file."""
    pattern = "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name)
    return f"echo {_q(pattern)} >> {_q(root / IGNORE_FILE)}"


def _q(value: object) -> str:
    return shlex.quote(str(value))
