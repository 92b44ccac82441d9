from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop.errors import InvalidInput
from gpuhop.stores.keys import checked_key, checked_prefix, is_key


@given(st.text(alphabet="abZ09._-/", max_size=40))
def test_a_key_is_what_a_folder_can_hold_unchanged(text: str) -> None:
    parts = text.split("/")
    assert is_key(text) is all(part not in ("", ".", "..") for part in parts)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20))
def test_nothing_outside_the_charset_passes(text: str) -> None:
    if is_key(text):
        assert text.isascii() and text.isprintable() and not set(text) & set(" ~%?#\\:*\"'<>|&+")


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "jobs/x/t0007/pack-"])
def test_prefixes(prefix: str) -> None:
    assert checked_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "/a", "a//", "../", "a b", "./a"])
def test_bad_prefixes(prefix: str) -> None:
    with pytest.raises(InvalidInput):
        checked_prefix(prefix)


def test_names_of_unfinished_files_are_no_keys() -> None:
    assert not is_key(".tmp-1") and not is_key("a/.tmp-1/b") and is_key("a/.tmpx") and is_key("a.tmp-1")


def test_limits() -> None:
    assert checked_key("a" * 255)
    assert checked_key("/".join(["abc"] * 256))
    for key in ("a" * 256, "/".join(["abc"] * 256) + "/a"):
        with pytest.raises(InvalidInput):
            checked_key(key)
