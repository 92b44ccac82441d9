"""Codecs give back every bit, shrink what can be shrunk, and refuse what is not theirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop_worker import codecs

WIDTHS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
ALL = [codecs.RAW, codecs.DEFLATE, codecs.PLANES, codecs.DIFF]


def view(array: np.ndarray) -> memoryview:
    return memoryview(array.tobytes())


def weights(seed: int, count: int = 1 << 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


@pytest.mark.parametrize("codec", ALL)
@given(
    width=st.sampled_from([2, 4, 8]),
    count=st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
    is_float=st.booleans(),
    near=st.booleans(),
)
def test_round_trip(codec: int, width: int, count: int, seed: int, is_float: bool, near: bool) -> None:
    draw = np.random.default_rng(seed)
    kind = WIDTHS[width]
    top = 2 ** min(63, 8 * width)
    base = draw.integers(0, top, count, np.uint64).astype(kind)
    data = base + draw.integers(0, 3, count, np.uint64).astype(kind) if near else base[::-1].copy()
    stored = b"".join(codecs.encode(codec, view(data), width, is_float, view(base)))
    back = codecs.decode(codec, memoryview(stored), data.nbytes, base.tobytes())
    assert back == data.tobytes()


@pytest.mark.parametrize(
    "bits",
    [0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0],
)
@pytest.mark.parametrize("codec", [codecs.PLANES, codecs.DIFF])
def test_odd_floats_keep_their_bits(bits: int, codec: int) -> None:
    """Infinities, NaN payloads, minus zero, denormals."""
    data = np.full(1000, bits, np.uint32)
    base = np.arange(1000, dtype=np.uint32) * np.uint32(0x01010101)
    stored = b"".join(codecs.encode(codec, view(data), 4, True, view(base)))
    assert codecs.decode(codec, memoryview(stored), 4000, base.tobytes()) == data.tobytes()


def test_chunks_are_put_together_in_order() -> None:
    """Longer than the piece that is worked on at once."""
    data = weights(1, 700_001)
    stored = b"".join(codecs.encode(codecs.PLANES, view(data), 4, True))
    assert codecs.decode(codecs.PLANES, memoryview(stored), data.nbytes) == data.tobytes()


def test_real_kinds_of_state_shrink() -> None:
    old, step = weights(1), weights(2) * 1e-3
    new = old + step
    planes = codecs.size_of(codecs.encode(codecs.PLANES, view(new), 4, True)) / new.nbytes
    diff = codecs.size_of(codecs.encode(codecs.DIFF, view(new), 4, True, view(old))) / new.nbytes
    assert planes < 0.86
    assert diff < planes


def test_the_trial_chooses() -> None:
    old = weights(1)
    noise = np.random.default_rng(3).bytes(1 << 18)
    assert codecs.choose(view(old), 4, True) == codecs.PLANES
    assert codecs.choose(view(old + np.float32(1e-6)), 4, True, view(old)) == codecs.DIFF
    assert codecs.choose(view(old), 4, True, view(weights(9))) == codecs.PLANES
    assert codecs.choose(memoryview(noise), 4, False) == codecs.RAW
    assert codecs.choose(memoryview(noise), 1, False) == codecs.RAW
    assert codecs.choose(memoryview(b"the same words again and again " * 9000), 1, False) == codecs.DEFLATE


@pytest.mark.parametrize("codec", [codecs.DEFLATE, codecs.PLANES, codecs.DIFF])
@given(data=st.binary(max_size=300), length=st.sampled_from([0, 2, 64, 4096]))
def test_bytes_that_are_no_code_are_refused(codec: int, data: bytes, length: int) -> None:
    try:
        assert len(codecs.decode(codec, memoryview(data), length, bytes(length))) == length
    except ValueError:
        pass


def test_an_unknown_codec_and_a_wrong_base() -> None:
    with pytest.raises(codecs.Lacking, match="codec 77"):
        codecs.decode(77, memoryview(b""), 0)
    data = weights(1, 100)
    stored = b"".join(codecs.encode(codecs.DIFF, view(data), 4, True, view(data)))
    for base in (None, b"", bytes(396)):
        with pytest.raises(ValueError, match="base"):
            codecs.decode(codecs.DIFF, memoryview(stored), 400, base)


def test_without_the_packages_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = b"".join(codecs.encode(codecs.PLANES, view(weights(1)), 4, True))
    monkeypatch.setattr(codecs, "zstandard", None)
    assert not codecs.available()
    assert codecs.choose(view(weights(1)), 4, True) == codecs.RAW
    with pytest.raises(codecs.Lacking, match="numpy and zstandard"):
        codecs.decode(codecs.PLANES, memoryview(stored), 1 << 18)
