"""Files of known containers are cut where their numbers begin and end; together the pieces are the file."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuhop_worker import containers
from gpuhop_worker.containers import number_of, pieces


def covered(found: list[containers.Piece], size: int) -> bool:
    places = [0, *(piece[1] for piece in found)]
    return [piece[0] for piece in found] == places[:-1] and places[-1] == size


def test_a_torch_file_is_cut_at_its_tensors() -> None:
    torch = pytest.importorskip("torch")
    out = io.BytesIO()
    torch.save({"w": torch.randn(100_000) * 0.02, "h": (torch.randn(100_000) * 0.02).bfloat16(), "step": 3}, out)
    data = memoryview(out.getvalue())
    found = pieces("ckpt.pt", data)
    assert covered(found, len(data))
    assert sorted((stop - start, width) for start, stop, width, _ in found if width > 1) == [(200_000, 2), (400_000, 4)]


def test_safetensors_say_their_dtypes(tmp_path: Path) -> None:
    from gpuhop.services.exporting import safetensors

    entries = [
        ("a", {"dtype": "float32", "shape": [50_000]}, np.zeros(50_000, np.float32).tobytes()),
        ("b", {"dtype": "int64", "shape": [20_000]}, np.arange(20_000).tobytes()),
        ("c", {"dtype": "uint8", "shape": [90_000]}, bytes(90_000)),
    ]
    safetensors(tmp_path / "m.safetensors", entries, {"format": "pt"})
    data = memoryview((tmp_path / "m.safetensors").read_bytes())
    found = pieces("m.safetensors", data)
    assert covered(found, len(data))
    assert [piece[2:] for piece in found if piece[2] > 1] == [(4, True), (8, False)]


def test_bare_numbers_are_guessed() -> None:
    floats = np.random.default_rng(1).normal(0, 0.02, 100_000).astype(np.float32)
    assert pieces("weights.bin", memoryview(floats.tobytes())) == [(0, 400_000, 4, True)]
    text = b"line of text\n" * 20_000
    assert pieces("log.txt", memoryview(text))[0][2] in (1, 2, 4)
    assert pieces("noise", memoryview(np.random.default_rng(1).bytes(200_000))) == [(0, 200_000, 1, False)]


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x"])
@example(data=b"\0\0\0\x000", magic=b"PK\x03\x04")  # a header that is a number
@example(data=b'{"a": {"data_offsets": 3}}', magic=b"\x1a\0\0\0\0\0\0\0")
@example(data=b"[" * 100_000, magic=b"\xa0\x86\x01\0\0\0\0\0")
@given(data=st.binary(max_size=400), magic=st.sampled_from([b"", b"PK\x03\x04", b"\x10\0\0\0\0\0\0\0{}"]))
def test_no_bytes_break_it(name: str, data: bytes, magic: bytes) -> None:
    whole = magic + data
    assert covered(pieces(name, memoryview(whole)), len(whole))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats(0, 9e5) | st.sampled_from(["F32", "BF16", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "data_offsets", "shape", "w"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(header=JSON, rows=st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_a_safetensors_header_of_any_shape(header: Any, rows: Any) -> None:
    for made in (header, rows, {"w": {"dtype": "F32", "data_offsets": header}}):
        text = json.dumps(made).encode()
        whole = struct.pack("<Q", len(text)) + text + bytes(200_000)
        assert covered(pieces("x.safetensors", memoryview(whole)), len(whole))


def test_a_zip_with_lies_in_it() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data/0", np.zeros(50_000, np.float32).tobytes())
    data = bytearray(out.getvalue())
    for at in range(len(data) - 60, len(data)):
        damaged = bytes(data[:at]) + bytes([data[at] ^ 0xFF]) + bytes(data[at + 1 :])
        assert covered(pieces("x.pt", memoryview(damaged)), len(damaged))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("float32", (4, True)),
        ("bfloat16", (2, True)),
        ("int64", (8, False)),
        ("bool", (1, False)),
        ("float8_e4m3fn", (1, False)),
        ("complex64", (4, True)),
        ("numpy:<f4", (4, True)),
        ("numpy:<c16", (8, True)),
        ("numpy:|u1", (1, False)),
        ("numpy:<f16", (1, False)),
    ],
)
def test_numbers_by_dtype(dtype: str, number: tuple[int, bool]) -> None:
    assert number_of(dtype) == number
