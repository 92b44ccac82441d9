"""Every error a user can meet: a type with fields, a fact, the next command to type, an exit code.

The exit codes are listed in docs/exit-codes.md; a test holds the page to this file.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the `gpuhop` command."""

    OK = 0
    FAILED = 1  # something went wrong that has no code of its own
    INVALID = 2  # a spec, a flag or an argument is wrong; nothing was changed
    STORE = 3  # the store cannot be reached, refuses the key, or lacks what gpuhop needs
    DATABASE = 4  # the database is newer than this gpuhop, damaged, or cannot be opened
    LOCKED = 5  # another driver works on this database
    NOT_FOUND = 6  # no such job, platform, file
    JOB_FAILED = 7  # the job that was followed ended without reaching its target
    JOB_CANCELLED = 8  # the job that was followed was cancelled
    DISK_FULL = 9  # no space left on this machine
    MISSING_EXTRA = 10  # an optional package is not installed
    INTERRUPTED = 130  # Ctrl-C


class GpuhopError(Exception):
    """Base of all errors shown to a person. `fact` says what is; `hint` is the next thing to type."""

    exit_code: Exit = Exit.FAILED

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(fact)
        self.fact = fact
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.fact}\n  next: {self.hint}"


class InvalidInput(GpuhopError):
    """A flag, an argument or a file given by the user cannot be used."""

    exit_code = Exit.INVALID


class StoreError(GpuhopError):
    """The object store failed for good (retries are over), or it refuses us."""

    exit_code = Exit.STORE


class ObjectMissing(StoreError):
    """No object under this key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the store has no object {key}", "gpuhop store check")
        self.key = key


class DatabaseError(GpuhopError):
    """The ledger cannot be used."""

    exit_code = Exit.DATABASE


class DriverLocked(GpuhopError):
    """Another process drives this database."""

    exit_code = Exit.LOCKED

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"another gpuhop drives this database: {owner}",
            "gpuhop status --watch   (it needs no lock), or stop the other one first",
        )
        self.owner = owner


class NotFound(GpuhopError):
    """A name that the user gave means nothing here."""

    exit_code = Exit.NOT_FOUND


class DiskFull(GpuhopError):
    """This machine has no space left."""

    exit_code = Exit.DISK_FULL


class MissingExtra(GpuhopError):
    """An optional package is needed."""

    exit_code = Exit.MISSING_EXTRA

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", f"pip install 'gpuhop[{extra}]'")
        self.package = package
        self.extra = extra


class LeaseLost(GpuhopError):
    """A result or a write came with a token that is no longer the current one. It was dropped."""

    def __init__(self, job: str, token: int) -> None:
        super().__init__(f"token {token} of job {job} is no longer current", f"gpuhop explain {job}")
        self.job = job
        self.token = token
