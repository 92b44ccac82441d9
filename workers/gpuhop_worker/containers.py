"""Where numbers lie in files, so that they are coded as numbers: safetensors, torch's zip, a guess for others."""

from __future__ import annotations

import json
import operator
import re
import struct
import zipfile
from typing import List, Tuple

from gpuhop_worker import codecs

Piece = Tuple[int, int, int, bool]  # start, stop, bytes per element (1: no numbers), floating point

_TORCH = {
    "float64": (8, True),
    "float32": (4, True),
    "float16": (2, True),
    "bfloat16": (2, True),
    "complex64": (4, True),
    "complex128": (8, True),
    "int64": (8, False),
    "int32": (4, False),
    "int16": (2, False),
    "uint64": (8, False),
    "uint32": (4, False),
    "uint16": (2, False),
}
_SAFE = {"F64": (8, True), "F32": (4, True), "F16": (2, True), "BF16": (2, True), "I64": (8, False), "I32": (4, False)}
_NUMPY = re.compile(r"^numpy:[<|=]([fiuc])(\d+)$")
LEAST = 64 * 1024  # smaller pieces of a file are not worth a cut


def number_of(dtype: str) -> Tuple[int, bool]:
    """(bytes per element, floating point) of a manifest's dtype; (1, False) for what has not 2, 4 or 8 bytes."""
    found = _NUMPY.match(dtype)
    if found:
        kind, size = found.group(1), int(found.group(2)) // (2 if found.group(1) == "c" else 1)
        return (size, kind in "fc") if size in (2, 4, 8) else (1, False)
    return _TORCH.get(dtype, (1, False))


def pieces(path: str, data: memoryview) -> List[Piece]:
    """The whole file, cut where numbers begin and end. A container that is not understood is one piece."""
    try:
        if path.endswith(".safetensors"):
            return _fill(_safetensors(data), len(data))
        if bytes(data[:4]) == b"PK\x03\x04":
            return _fill(_zip(data), len(data))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError):
        pass  # JSON of another shape, or nested without end: whatever it is, it is bytes
    except (struct.error, zipfile.BadZipFile):
        pass
    return [(0, len(data), *_guess(data))]


def _safetensors(data: memoryview) -> List[Piece]:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    rows = [
        (
            8 + length + operator.index(row["data_offsets"][0]),
            8 + length + operator.index(row["data_offsets"][1]),
            *_SAFE.get(row["dtype"], (1, False)),
        )
        for name, row in header.items()
        if name != "__metadata__"
    ]
    return sorted(rows)


class _Reader:
    """A memoryview as the seekable file that zipfile wants, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._place = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, len(self._data))[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        stop = len(self._data) if size < 0 else self._place + size
        piece = bytes(self._data[self._place : stop])
        self._place += len(piece)
        return piece

    def seekable(self) -> bool:
        return True


def _zip(data: memoryview) -> List[Piece]:
    """torch.save stores its tensors uncompressed, one entry each; what kind of numbers they are is tried out."""
    rows = []
    with zipfile.ZipFile(_Reader(data)) as archive:
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED and info.file_size >= LEAST:
                name, extra = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
                start = info.header_offset + 30 + name + extra
                body = data[start : start + info.file_size]
                rows.append((start, start + info.file_size, *_guess(body)))
    return sorted(rows)


def _guess(data: memoryview) -> Tuple[int, bool]:
    """What makes a sample of the bytes smallest: floats of 4 or 2 bytes, or no numbers."""
    if len(data) < LEAST or not codecs.available():
        return 1, False
    middle = len(data) // 2 // 8 * 8
    sample = data[middle : middle + LEAST // 8 * 8]
    sample = sample[: len(sample) // 8 * 8]
    sizes = {width: codecs.size_of(codecs.encode(codecs.PLANES, sample, width, True)) for width in (4, 2)}
    best = min(sizes, key=lambda width: sizes[width])
    return (best, True) if sizes[best] < codecs.GAIN * len(sample) else (1, False)


def _fill(rows: List[Piece], size: int) -> List[Piece]:
    """The rows that are worth it, and what lies between them as pieces without numbers."""
    found: List[Piece] = []
    place = 0
    for start, stop, width, is_float in rows:
        if width == 1 or stop - start < LEAST or not place <= start < stop <= size:
            continue
        if start > place:
            found.append((place, start, 1, False))
        found.append((start, stop, width, is_float))
        place = stop
    if place < size or not found:
        found.append((place, size, 1, False))
    return found
