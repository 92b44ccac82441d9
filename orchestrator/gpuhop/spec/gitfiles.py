"""What git tracks in a folder, asked of git itself."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpuhop.errors import InvalidInput

_TIMEOUT_S = 120
_SUBMODULE = "160000"


@dataclass(frozen=True)
class GitFiles:
    """Paths relative to the folder that was asked about. `untracked` names a wholly untracked folder once: `data/`."""

    tracked: tuple[str, ...]
    submodules: tuple[str, ...]
    untracked: tuple[str, ...]


def git_files(folder: Path) -> GitFiles | None:
    """The index's files below `folder`; None outside a git work tree. Raises InvalidInput (git fails or is absent).

    A folder that git itself ignores as a whole is no part of the work tree: None too. The index counts, not the last
    commit: what is only staged is tracked, and contents come from the disk later.
    """
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return None
    if _git(folder, "rev-parse", "--is-inside-work-tree").strip() != b"true":
        return None
    tracked: set[str] = set()
    submodules: set[str] = set()
    for row in _rows(_git(folder, "ls-files", "-z", "--stage")):
        meta, _, path = row.partition("\t")
        (submodules if meta.startswith(_SUBMODULE) else tracked).add(path)
    if not tracked and _ignored(folder):
        return None
    others = _rows(_git(folder, "ls-files", "-z", "--others", "--exclude-standard", "--directory"))
    return GitFiles(tuple(sorted(tracked)), tuple(sorted(submodules)), tuple(sorted(others)))


def _ignored(folder: Path) -> bool:
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "check-ignore", "-q", "."]
    return subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0


def _rows(output: bytes) -> list[str]:
    return [os.fsdecode(row) for row in output.split(b"\0") if row]


def _git(folder: Path, *arguments: str) -> bytes:
    # A file system monitor that the repository configures would be a program that runs here.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise InvalidInput(
            f"{folder} lies in a git work tree, and git is not installed: nobody can tell which files are tracked",
            "install git, then submit again",
        ) from None
    except subprocess.TimeoutExpired:
        raise InvalidInput(f"git did not answer within {_TIMEOUT_S} s in {folder}", _status(folder)) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", errors="replace").strip() or f"git ended with {done.returncode}"
        raise InvalidInput(f"git cannot list the files of {folder}: {said}", _status(folder))
    return done.stdout


def _status(folder: Path) -> str:
    return f"git -C {shlex.quote(str(folder))} status"
