"""`.gpuhopignore`: gitignore's rules, from one file at the root of the code folder.

Held to git itself by tests/unit/spec/test_ignore.py. Written here because the core install stays below fifteen
distributions and the rules fit into this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

IGNORE_FILE = ".gpuhopignore"

ALWAYS = (".git", "__pycache__", ".venv", "*.pyc", ".gpuhop")
"""Never taken, whatever the ignore file says."""

CREDENTIALS = (".env", ".netrc", "kaggle.json", "id_rsa", "id_ed25519", "*.pem")
"""Left out unless the ignore file takes them back, as in `!cert.pem`: no key may reach a notebook (DESIGN I4)."""

_STARS = re.compile(r"\*+")
_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r" \t\n\r\f\v",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "graph": "!-~",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file. `regex` matches whole paths, relative to the root, with `/`."""

    regex: re.Pattern[str]
    takes_back: bool
    folders_only: bool


class Ignore:
    """Rules in order; the last one that matches a path decides."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules = (_rule(line) for line in lines)
        self._rules = tuple(reversed([rule for rule in rules if rule is not None]))

    def matches(self, path: str, is_folder: bool) -> bool:
        """True when the path itself is ignored; the folders above it are not asked."""
        for rule in self._rules:
            if (is_folder or not rule.folders_only) and rule.regex.fullmatch(path):
                return not rule.takes_back
        return False

    def covers(self, path: str) -> bool:
        """True when a file is ignored, by itself or because a folder above it is."""
        above = path.split("/")[:-1]
        folders = ("/".join(above[: depth + 1]) for depth in range(len(above)))
        return any(self.matches(folder, True) for folder in folders) or self.matches(path, False)


def _rule(line: str) -> Rule | None:
    """None for a blank line, a comment, and a pattern that can match nothing."""
    pattern = _strip(line.rstrip("\r\n"))
    if not pattern or pattern.startswith("#"):
        return None
    takes_back = pattern.startswith("!")
    pattern = pattern.removeprefix("!")
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    anchored = "/" in pattern
    body = _translate(pattern.removeprefix("/"))
    if body is None:
        return None
    return Rule(re.compile(body if anchored else f"(?:.*/)?{body}", re.DOTALL), takes_back, folders_only)


def _strip(line: str) -> str:
    """Without the blanks at the end, unless a backslash keeps them."""
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    return line


def _translate(pattern: str) -> str | None:
    """A gitignore pattern as a regular expression; None when git would let it match nothing."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        part, at = _next(pattern, at)
        if part is None:
            return None
        out.append(part)
    return "".join(out)


def _next(pattern: str, at: int) -> tuple[str | None, int]:
    """One piece of a pattern from index `at`: its regular expression, and where the next piece begins."""
    char = pattern[at]
    if char == "*":
        end = at + len(_STARS.match(pattern, at)[0])  # type: ignore[index]
        any_depth = end - at > 1 and (at == 0 or pattern[at - 1] == "/")
        if any_depth and pattern.startswith("/", end):
            return "(?:.*/)?", end + 1
        return (".*" if any_depth and end == len(pattern) else "[^/]*"), end
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        return _bracket(pattern, at)
    if char == "\\":
        return (re.escape(pattern[at + 1]), at + 2) if at + 1 < len(pattern) else (None, at + 1)
    return re.escape(char), at + 1


def _bracket(pattern: str, at: int) -> tuple[str | None, int]:
    """`[...]` from index `at`."""
    at += 1
    inverted = pattern[at : at + 1] in ("!", "^")
    at += inverted
    inside: list[str] = []
    while at < len(pattern) and (not inside or pattern[at] != "]"):
        named = re.match(r"\[:([a-z]*):\]", pattern[at:])
        if named:
            inside.append(_CLASSES.get(named[1], ""))
            if not inside[-1]:
                return None, len(pattern)
            at += named.end()
            continue
        low, at = _member(pattern, at)
        if pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(pattern, at + 1)
            # A range that runs backwards holds nothing; `(?!)` cannot stand in a class, an impossible member can.
            inside.append(f"{re.escape(low)}-{re.escape(high)}" if low <= high else "\\0")
        else:
            inside.append(re.escape(low))
    if at >= len(pattern):
        return None, at
    return f"(?!/)[{'^' if inverted else ''}{''.join(inside)}]", at + 1


def _member(pattern: str, at: int) -> tuple[str, int]:
    """One character of a bracket, a backslash before it taken off."""
    at += pattern[at] == "\\" and at + 1 < len(pattern)
    return pattern[at], at + 1
