"""State <-> JSON: whatever is accepted comes back equal, in type and in bits; the rest is refused with its path."""

from __future__ import annotations

import collections
import enum
import json
import math
import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop_worker import codec
from gpuhop_worker.codec import StateError


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure, order of keys and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    return bool(a == b)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 20000).map(lambda n: (-1) ** n * ((1 << n) + n)),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(),
    st.just("\ud800"),
    st.binary(),
)
keys = st.one_of(
    st.text(),
    st.integers(),
    st.just(15000).map(lambda n: 1 << n),
    st.just("~"),
    st.tuples(st.integers(), st.text()),
    st.binary(),
    st.none(),
)
values = st.recursive(
    st.one_of(scalars, st.frozensets(st.integers()), st.sets(st.one_of(st.text(), st.frozensets(st.integers())))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.just("~"), inner, max_size=1),
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(values)
def test_every_accepted_value_comes_back_equal_through_json_text(value: Any) -> None:
    text = json.dumps(codec.encode(value), allow_nan=False)
    assert same(codec.decode(json.loads(text)), value)


@pytest.mark.parametrize(
    "value",
    [-0.0, 0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan, 1 << 64, -(1 << 15000), True, 1, "", b"", (), [], {}],
    ids=lambda value: type(value).__name__,
)
def test_the_edges_come_back(value: Any) -> None:
    assert same(codec.decode(json.loads(json.dumps(codec.encode(value)))), value)


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.Counter])
def test_known_kinds_of_dicts_come_back_as_dicts_in_order(kind: Any) -> None:
    assert list(codec.decode(codec.encode(kind({"b": 1, "a": 2}))).items()) == [("b", 1), ("a", 2)]


class Point(NamedTuple):
    x: int


class Colour(enum.IntEnum):
    RED = 1


class Sub(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, "top.a[1].b"),
        ({"a": (Point(1),)}, "top.a[0]"),
        ([Colour.RED], "top[0]"),
        ({3: Sub()}, "top[3]"),
        ({"f": lambda: None}, "top.f"),
        ({object(): 1}, "top has a key"),
        ({Colour.RED: 1}, "top has a key"),
        ([range(3)], "top[0]"),
        ([bytearray(b"x")], "top[0]"),
        ([1j], "top[0]"),
    ],
)
def test_what_cannot_come_back_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(StateError) as caught:
        codec.encode(value, path="top")
    assert path in str(caught.value)


def test_a_list_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(StateError, match="holds itself"):
        codec.encode({"ring": ring})


def test_a_list_nested_too_deeply_is_refused_and_not_a_crash_at_load() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StateError):
        codec.encode(deep)


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(StateError, match="unknown tag"):
        codec.decode({"~": "pickle", "v": "gASVAAAA"})


def test_marks_need_a_reader() -> None:
    with pytest.raises(StateError, match="no decoder"):
        codec.decode({"~": "x", "v": {"tensor": "a"}})
