"""No text at all gives anything but a JobSpec or SpecErrors, and both can be stored and printed."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop.spec.codec import decode, encode
from gpuhop.spec.docs import FULL
from gpuhop.spec.errors import WIDTH, SpecErrors
from gpuhop.spec.parse import parse, parse_bytes

KNOWN = ("colab", "kaggle")

YAML = [
    *("!!", "!<", "!!set ", "!!binary ", "%YAML 1.1\n", "%TAG ! x\n", "---\n", "...\n", "? ", ": ", "- ", "&a ", "*a"),
    *("|+2\n", ">-\n", '"', "'", "\\U", "\\x", "<<: ", "null", "~", "\n", "\n  ", "\t", "[", "]", "{", "}", ",", "#"),
    *("secrets: ", "gpu: ", "every: ", "steps: ", "deadline: ", "9" * 400, "1e999", "0x", "..", "/", "\x85", "\u2028"),
    *("\ud800", "\ufeff", "\x00", "\x1b[31m", "\U0001f600"),
]
PIECES = st.one_of(st.sampled_from(YAML), st.text(max_size=6))
EDITS = st.lists(
    st.tuples(st.integers(0, len(FULL)), st.integers(0, 12), PIECES, st.booleans()), min_size=1, max_size=6
)


def edit(text: str, edits: list[tuple[int, int, str, bool]]) -> str:
    for at, cut, piece, copy in edits:
        put = text[cut * 20 : cut * 20 + 25] if copy else piece
        text = text[:at] + put + text[at + cut :]
    return text


def check(text: str | bytes) -> None:
    try:
        if isinstance(text, bytes):
            spec = parse_bytes(text, "job.yaml", known_platforms=KNOWN)
        else:
            spec = parse(text, "job.yaml", known_platforms=KNOWN)
    except SpecErrors as found:
        assert found.errors
        assert list(found.errors) == sorted(found.errors, key=lambda error: (error.line, error.col))
        for error in found.errors:
            assert error.line >= 1
            assert error.col >= 1
            source, caret = error.excerpt.split("\n")
            assert len(source) <= WIDTH + 6
            assert caret.strip() == "^"
        printed = str(found).replace("\n", "")
        assert printed.isprintable()
        json.dumps(found.to_json()).encode("utf-8")
    else:
        stored = json.dumps(encode(spec), ensure_ascii=False).encode("utf-8")
        assert decode(json.loads(stored)) == spec


@settings(max_examples=300, deadline=None)
@given(EDITS)
def test_damaged_specs(edits: list[tuple[int, int, str, bool]]) -> None:
    check(edit(FULL, edits))


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=15).map("".join))
def test_pieces_of_yaml(text: str) -> None:
    check(text)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_bytes(data: bytes) -> None:
    check(data)


KEYS = ["name", "code", "setup", "run", "target", "checkpoint", "resources", "platforms", "limits", "priority", "env"]
KEYS += [
    "secrets",
    "outputs",
    "progress",
    "steps",
    "epochs",
    "until",
    "mode",
    "folder",
    "every",
    "keep",
    "gpu",
    "memory",
]
KEYS += ["count", "disk", "gpu_hours", "deadline", "A", "", "x"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["exit", "folder", "10m", "1GB"]),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=10))
def test_trees_of_the_right_keys_with_wrong_values(tree: dict[str, object]) -> None:
    check(json.dumps(tree))
