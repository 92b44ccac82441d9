"""State without torch: NumPy arrays and scalars, generators, and refusals that name what does not fit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy
import pytest

from gpuhop_worker import plain_state
from gpuhop_worker.codec import StateError
from gpuhop_worker.plain_state import RestoreMismatch


class Box:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def saved(tracked: dict[str, Any]) -> tuple[Any, Any]:
    """(state after its way through JSON text, the source of its arrays after their way through bytes)."""
    body, found = plain_state.capture(tracked)
    assert len({name for name, _ in found.tensors}) == len(found.tensors)
    rows = {n: (plain_state.entry_of(n, v), bytes(plain_state.bytes_of(v))) for n, v in found.tensors}
    rows = json.loads(json.dumps({n: e for n, (e, _) in rows.items()})) and rows
    return json.loads(json.dumps(body)), lambda name, own: plain_state.value_of(rows[name][1], rows[name][0])


def through(value: Any) -> Any:
    box = Box(value=value)
    state = saved({"box": box})
    other = Box()
    plain_state.restore({"box": other}, *state)
    return other.state["value"]


ARRAYS = {
    "float32 with odd bits": numpy.array([numpy.nan, -0.0, numpy.inf, 1e-45], dtype=numpy.float32),
    "nan payload": numpy.array([0x7FC00001, 0xFFC12345], dtype=numpy.uint32).view(numpy.float32),
    "big endian": numpy.arange(4, dtype=">i4"),
    "bool": numpy.array([True, False]),
    "complex": numpy.array([1 + 2j]),
    "0-d": numpy.array(3.5),
    "empty": numpy.zeros((0, 3), dtype=numpy.float16),
    "fortran": numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    "every second": numpy.arange(20)[::2],
    "transposed": numpy.arange(12).reshape(3, 4).T,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_with_dtype_shape_bits_and_order(name: str) -> None:
    value = ARRAYS[name]
    got = through(value)
    assert got.dtype == value.dtype and got.dtype.str == value.dtype.str
    assert got.shape == value.shape
    assert got.tobytes() == value.tobytes()
    assert got.flags.writeable
    if value.flags.f_contiguous != value.flags.c_contiguous:
        assert got.flags.f_contiguous == value.flags.f_contiguous


@pytest.mark.parametrize("value", [numpy.float32(0.1), numpy.int64(-3), numpy.bool_(True), numpy.float64("nan")])
def test_scalars_come_back_as_the_same_kind_of_scalar(value: Any) -> None:
    got = through(value)
    assert type(got) is type(value)
    assert got.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        numpy.array(["text"]),
        numpy.array([object()]),
        numpy.array([(1, 2)], dtype="i4,i4"),
        numpy.datetime64("2026-01-01"),
        numpy.ma.masked_array([1, 2], mask=[True, False]),
        numpy.str_("x"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_other_arrays_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(StateError, match=r"box\.value"):
        plain_state.capture({"box": Box(value=value)})


def test_equal_paths_are_two_arrays() -> None:
    box = Box(
        **{"a": {"b": numpy.array([1])}, "a.b": numpy.array([2]), "l": [numpy.array([3])], "l[0]": numpy.array([4])}
    )
    state = saved({"box": box})
    other = Box()
    plain_state.restore({"box": other}, *state)
    got = other.state
    assert [int(v[0]) for v in (got["a"]["b"], got["a.b"], got["l"][0], got["l[0]"])] == [1, 2, 3, 4]


def test_one_array_under_two_names_is_saved_once() -> None:
    shared, one = numpy.arange(6.0).reshape(2, 3), numpy.float64(1)
    state = {"a": shared, "b": [shared], "c": shared.copy(), "d": shared[:1], "e": shared.T, "f": one, "g": one}
    _, found = plain_state.capture({"box": Box(**state)})
    assert found.aliases == [("box.b[0]", "box.a")]
    _, found = plain_state.capture({"box": Box(a=numpy.zeros(0), b=numpy.zeros(0))})
    assert found.aliases == []


def test_pythons_and_numpys_generators_go_on_where_they_were() -> None:
    random.seed(1)
    numpy.random.seed(2)
    random.gauss(0, 1)
    numpy.random.randn()  # both now hold a second value
    state = saved({})
    want = [random.gauss(0, 1), random.random(), numpy.random.randn(), numpy.random.rand()]
    random.seed(9)
    numpy.random.seed(9)
    plain_state.restore({}, *state)
    assert [random.gauss(0, 1), random.random(), numpy.random.randn(), numpy.random.rand()] == want


def test_titles_that_do_not_fit_are_all_named() -> None:
    state = saved({"a": Box(), "b": Box()})
    with pytest.raises(RestoreMismatch) as caught:
        plain_state.restore({"b": Box(), "c": Box(), "d": Box()}, *state)
    assert caught.value.differences == [
        "tracked object 'c' is not in the checkpoint",
        "tracked object 'd' is not in the checkpoint",
        "the checkpoint holds 'a', which the script does not track",
    ]


def test_an_object_that_objects_is_named() -> None:
    class Picky(Box):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("I was made with other settings")

    state = saved({"picky": Box(x=1)})
    with pytest.raises(RestoreMismatch, match="picky: ValueError: I was made with other settings"):
        plain_state.restore({"picky": Picky()}, *state)


def test_torch_tensors_need_torch() -> None:
    with pytest.raises(StateError, match="import torch before"):
        plain_state.value_of(b"", {"name": "w", "dtype": "float32", "shape": [0], "stride": []})
