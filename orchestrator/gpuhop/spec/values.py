"""The text of one YAML scalar -> one value. Each reader raises Bad with a sentence; none knows its place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import TypeVar

from gpuhop.domain.job import Every
from gpuhop.spec.errors import quote
from gpuhop.spec.schema import Key, nearest_word


class Bad(Exception):
    """A value cannot be used. `nearest` is what was probably meant."""

    def __init__(self, message: str, nearest: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.nearest = nearest


S = TypeVar("S", bound=str)

MAX_TEXT = 20_000
MAX_REGEX = 500
MAX_SECONDS = 30 * 86400

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "MIB": 2.0**20,
    "GIB": 2.0**30,
    "TIB": 2.0**40,
}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLATFORM = re.compile(r"[a-z0-9_-]+")
_STAMP = re.compile(
    r"(\d{4}-\d\d?-\d\d?)(?:[Tt]|[ \t]+)(\d\d?):(\d\d):(\d\d)(?:\.(\d{1,6})\d*)?"
    r"[ \t]*(?:([Zz])|([-+])(\d\d?)(?::?(\d\d))?)?",
    re.ASCII,
)
YES = ("yes", "true", "on")
NO = ("no", "false", "off")


def text(value: str) -> str:
    """Text that a process can be given: not blank, no NUL, no half of a character pair, not endless."""
    plain(value)
    if not value.strip():
        raise Bad("is blank")
    return value


def plain(value: str) -> str:
    """As `text`, but may be blank."""
    if "\0" in value:
        raise Bad("holds a NUL character, which no process can be given")
    if re.search("[\ud800-\udfff]", value):
        raise Bad("holds half of a surrogate pair, which is no character")
    if len(value) > MAX_TEXT:
        raise Bad(f"is longer than {MAX_TEXT} characters: put it in a file of the code folder")
    return value


def job_name(value: str) -> str:
    """A name that can stand in paths, addresses and titles everywhere."""
    if _JOB_NAME.fullmatch(value):
        return value
    shaped = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:64]
    raise Bad(
        f"{quote(value)} is no name: letters, digits, `.`, `_` and `-`, at most 64, a letter or digit first",
        shaped if _JOB_NAME.fullmatch(shaped) else None,
    )


def choice(allowed: tuple[S, ...]) -> Callable[[str], S]:
    """One of `allowed`."""

    def read(value: str) -> S:
        for one in allowed:
            if one == value:
                return one
        wanted = f"expected {allowed[0]}" if len(allowed) == 1 else f"expected one of {', '.join(allowed)}"
        raise Bad(f"{wanted}, got {quote(value)}", nearest_word(value, allowed))

    return read


def integer(key: Key) -> Callable[[str], int]:
    """A whole number within the key's bounds, written in decimal; `_` may part its digits."""
    low, high = key.minimum or 0, key.maximum or 0

    def read(value: str) -> int:
        if not re.fullmatch(r"[-+]?[0-9][0-9_]{0,30}", value):
            raise Bad(f"expected a whole number, got {quote(value)}")
        digits = value.lstrip("+-").replace("_", "")
        if len(digits) > 1 and digits[0] == "0":
            raise Bad(f"{quote(value)} begins with 0, which YAML reads as octal: write it without")
        number = int(value.replace("_", ""))
        if not low <= number <= high:
            raise Bad(f"expected a whole number from {low} to {high}, got {number}")
        return number

    return read


def number(key: Key) -> Callable[[str], float]:
    """A number above 0 and not above the key's maximum."""
    high = key.maximum or 0

    def read(value: str) -> float:
        if not re.fullmatch(_NUMBER, value):
            raise Bad(f"expected a number above 0, without a unit, got {quote(value)}")
        found = float(value)
        if not 0 < found <= high:
            raise Bad(f"expected a number above 0 and at most {high}, got {quote(value)}")
        return found

    return read


def every(value: str) -> Every:
    """`auto`, `200 steps` or a time such as `90s`, `10m`, `1h30m`: Every with one of its fields set."""
    if value == "auto":
        return Every(auto=True)
    steps = re.fullmatch(r"([0-9]{1,12}) *steps?", value)
    if steps:
        if int(steps[1]) < 1:
            raise Bad("expected at least 1 step")
        return Every(steps=int(steps[1]))
    parts = re.findall(rf"({_NUMBER}) *([smhd])", value)
    if not re.fullmatch(rf"(?:{_NUMBER} *[smhd] *)+", value) or len({unit for _, unit in parts}) < len(parts):
        raise Bad(
            f"expected a time with its unit (s, m, h, d) or a number of steps, got {quote(value)}",
            _unit_for(value),
        )
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
    if not 1 <= seconds <= MAX_SECONDS:
        raise Bad(f"expected a time from 1s to {MAX_SECONDS // 86400}d, got {quote(value)}")
    return Every(seconds=seconds)


def _unit_for(value: str) -> str | None:
    """What somebody meant who wrote `10 minutes`, `10min`, `2 hrs`, or a bare number."""
    if re.fullmatch(r"[0-9]{1,9}", value):
        return f"{value} steps, or {value}s"
    words = re.fullmatch(rf"({_NUMBER}) *(s|m|h|d)(?:ec|in|r|ay|our|econd|inute)?[a-z]{{0,4}}", value.lower())
    return f"{words[1]}{words[2]}" if words else None


def size_gb(value: str) -> float:
    """`15GB`, `512 MiB`, ... -> GB of 1e9 bytes."""
    found = re.fullmatch(rf"({_NUMBER}) *([kKMGTmgt]i?[bB])", value)
    unit = found[2].upper() if found else ""
    if found is None or unit not in _BYTES:
        bare = re.fullmatch(rf"({_NUMBER}) *[gG]?", value)
        raise Bad(
            f"expected a size with its unit (MB, GB, TB, MiB, GiB, TiB), got {quote(value)}",
            f"{bare[1]}GB" if bare else None,
        )
    gb = float(found[1]) * _BYTES[unit] / 1e9
    if not 0 < gb <= 1e6:
        raise Bad(f"expected a size above 0 and at most 1000000GB, got {quote(value)}")
    return gb


def yes_no(value: str) -> bool:
    """The words of YAML for true and false."""
    word = value.lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise Bad(f"expected yes, no or a mapping of memory and count, got {quote(value)}")


def deadline(value: str) -> datetime:
    """ISO 8601 or a YAML timestamp, with its offset -> the same instant in UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        moment = _stamp(value.strip())
    if moment.tzinfo is None:
        told = moment.isoformat()
        raise Bad(
            f"{quote(value)} names no zone, so each machine would read another moment: add its offset to UTC",
            f"{told}Z, or {told} with an offset such as +01:00",
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise Bad(f"{quote(value)} is out of range") from None


def _stamp(value: str) -> datetime:
    """YAML 1.1's own looser timestamps: `2026-12-4 18:00:00 -5`."""
    found = _STAMP.fullmatch(value)
    if found is None:
        raise Bad(f"expected an ISO date and time with its offset to UTC, got {quote(value)}")
    day, hour, minute, second, fraction, utc, sign, off_h, off_m = found.groups()
    zone: timezone | None = UTC if utc else None
    try:
        if sign:
            offset = timedelta(hours=int(off_h), minutes=int(off_m or 0))
            zone = timezone(-offset if sign == "-" else offset)
        year, month, date = (int(part) for part in day.split("-"))
        micro = int((fraction or "").ljust(6, "0"))
        return datetime(year, month, date, int(hour), int(minute), int(second), micro, tzinfo=zone)
    except ValueError as wrong:
        raise Bad(f"{quote(value)} is no moment: {wrong}") from None


def platform(known: tuple[str, ...]) -> Callable[[str], str]:
    """A platform's name that stands in `known`."""

    def read(value: str) -> str:
        if not _PLATFORM.fullmatch(value):
            raise Bad(f"{quote(value)} is no platform name: a-z, 0-9, `_` and `-`", nearest_word(value, known))
        if value not in known:
            names = ", ".join(sorted(known)) or "none is known here"
            raise Bad(f"unknown platform {quote(value)}: {names}", nearest_word(value, known))
        return value

    return read


def code_folder(value: str) -> str:
    """A folder, relative to the file's own or absolute."""
    text(value)
    if value.startswith("~"):
        raise Bad(f"{quote(value)} begins with ~, which only a shell expands: write the folder in full")
    return value


def relative_folder(value: str) -> str:
    """A folder below the code folder, without a slash at its end."""
    folder = str(PurePosixPath(relative(value)))
    if folder == ".":
        raise Bad("is the code folder itself: name a folder in it")
    return folder


def relative(value: str) -> str:
    """A path or pattern that cannot leave the code folder."""
    text(value)
    if value != value.strip():
        raise Bad(f"{quote(value)} has blanks at its ends")
    if "\\" in value:
        raise Bad(f"{quote(value)} has a backslash: write `/`", value.replace("\\", "/"))
    if value.startswith(("/", "~")) or re.match(r"[A-Za-z]:", value):
        raise Bad(f"{quote(value)} is not relative to the code folder")
    if ".." in value.split("/"):
        raise Bad(f"{quote(value)} leaves the code folder by `..`")
    return value


def regex(value: str) -> str:
    """A regular expression with exactly one group."""
    text(value)
    if len(value) > MAX_REGEX:
        raise Bad(f"is longer than {MAX_REGEX} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            groups = re.compile(value).groups
    except (re.error, OverflowError, RecursionError, Warning) as wrong:
        raise Bad(f"is no regular expression of Python: {wrong}") from None
    if groups != 1:
        raise Bad(f"expected exactly one group, which holds the number, got {groups}")
    return value
