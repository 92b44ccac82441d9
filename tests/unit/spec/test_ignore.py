"""`.gpuhopignore` against git itself: the same patterns, the same tree, the same files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuhop.spec.ignore import Ignore

FILES = [
    *("a.py", "b.py", "ab.py", "A.py", "a1.py", "a-b.py", "a,b.py", "[a].py", "a#b", "!c.py", ".hidden", "x.log"),
    *("data/a.bin", "data/sub/a.bin", "data/sub/deep/b.bin", "sub/data/a.bin", "sub/a.py", "sub/b/a.py", "sub/[a].py"),
    *("out/x.log", "out/keep.log", "foo/bar/baz", "foo/x/bar", "foo/bar.txt", "build/lib/a", "build2/a", "x/build/a"),
    *("sp ace.py", "trail ", "a]b", "a^b"),
]

FIXED = [
    ["*.py"],
    ["*.py", "!a.py"],
    ["/a.py"],
    ["sub/a.py"],
    ["data"],
    ["data/"],
    ["/data/"],
    ["data/*", "!data/sub/"],
    ["data/", "!data/a.bin"],
    ["**/a.bin"],
    ["data/**"],
    ["data/**/b.bin"],
    ["**/sub/**"],
    ["foo/**/bar"],
    ["foo/*"],
    ["*/bar"],
    ["**"],
    ["*"],
    ["/*", "!/sub"],
    ["a?.py"],
    ["[ab].py"],
    ["[!a].py"],
    ["[^a].py"],
    ["[a-z][0-9].py"],
    ["[[:digit:]]*", "a[[:digit:]].py"],
    ["[[:nonsense:]]*"],
    ["\\[a\\].py"],
    ["[a"],
    ["[]a].py"],
    ["[z-a].py"],
    ["a[+--]b.py"],
    ["a[a-]b.py"],
    ["a[-a]b.py"],
    ["a[!-]b.py"],
    ["a[\\]]b", "a[\\^]b"],
    ["a[]]b"],
    ["a[^]]b"],
    ["a[+-\\-]b.py"],
    ["[[:alpha:]-z].py"],
    ["[[:alpha"],
    ["[a-"],
    ["a[[:punct:]]b", "[[::]]"],
    ["data/***", "sub/***/a.py"],
    ["data\\/a.bin"],
    ["a\\#b", "#comment", "\\!c.py"],
    ["a#b"],
    ["!c.py"],
    ["sp ace.py"],
    ["a.py   ", "trail\\ "],
    ["out/*.log", "!out/keep.log"],
    ["build"],
    ["/build", "x/build"],
    ["", "   ", "/", "//", "!", "a.py\\"],
    ["foo//bar"],
    ["foo/**"],
    ["foo**/bar", "**foo", "a**.py"],
    ["***/a.bin"],
    ["x.log/"],
    [".*"],
    ["*.PY"],
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def git_keeps(root: Path, lines: list[str]) -> set[str]:
    patterns = root / ".git" / "patterns"
    patterns.write_text("\n".join(lines) + "\n")
    command = ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-from", str(patterns)]
    done = subprocess.run(command, check=True, capture_output=True)
    return {row.decode() for row in done.stdout.split(b"\0") if row}


def we_keep(lines: list[str]) -> set[str]:
    rules = Ignore(lines)
    return {name for name in FILES if not rules.covers(name)}


@pytest.mark.parametrize("lines", FIXED, ids=[" ".join(lines) for lines in FIXED])
def test_as_git(tree: Path, lines: list[str]) -> None:
    assert we_keep(lines) == git_keeps(tree, lines)


PARTS = ["a", "b", "data", "sub", "foo", "bar", ".py", ".bin", "*", "**", "/", "?", "[ab]", "[!a]", "x", ".", "-"]
PARTS += ["[", "]", "!", "^", "#", " ", "[a-c]", "[[:alpha:]]", "\\"]
# git cuts a pattern's plain beginning off and then takes the rest of `a**/b` for `**/b`, against its own manual.
PATTERN = (
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=6)
    .map("".join)
    .filter(lambda pattern: re.search(r"[^/*]\*\*+/", pattern) is None)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["", "", "!"]), PATTERN).map("".join), min_size=1, max_size=4))
def test_as_git_on_random_patterns(tree: Path, lines: list[str]) -> None:
    assert we_keep(lines) == git_keeps(tree, lines)
