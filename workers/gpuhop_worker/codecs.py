"""Lossless codecs for blocks of tensors: byte planes with Huffman-only zstd, and the difference to a base block.

Why this form: the exponent bytes of real training state carry 2.6 to 3.6 bits, the mantissas are noise. Rotating each
float by one bit puts its whole exponent into one byte; splitting into byte planes keeps it together; zstd with a
64-entry hash and 7-byte matches then finds no matches and is a fast Huffman coder, readable by any zstd decoder
(facts on checkpoints, section 3.4: 99.7 % of the entropy bound, quicker than zstd-1 on the same planes).

Needs numpy and zstandard. A worker without them writes raw blocks, and names what it lacks when it must read others.
"""

from __future__ import annotations

import struct
import threading
import zlib
from typing import Any, List, Optional, Tuple

from gpuhop_worker.files import Data

try:
    import numpy
    import zstandard
except Exception:  # absent, or broken in a way of its own: the standard library alone has to do
    numpy = None  # type: ignore[assignment]
    zstandard = None  # type: ignore[assignment]

RAW = 0  # as it is
DEFLATE = 1  # zlib, for bytes that are no numbers
PLANES = 2  # byte planes
DIFF = 3  # byte planes of the zigzag difference to a base block

SAMPLE = 32 * 1024
GAIN = 0.97  # a codec that saves less than 3 % is not worth its time
_ROTATED = 1
_HEAD = struct.Struct("<BB")  # element width, flags
_PLANE = struct.Struct("<BI")  # 0 raw or 1 zstd, stored length
_TASTE = 16 * 1024  # bytes of a plane that tell whether it shrinks
_SHRINKS = 0.99
_CHUNK = 64 * 1024  # elements worked on at once: they stay in the cache, and NumPy's cost per call stays small


class Lacking(Exception):
    """This worker cannot decode the block. `packages`: that it lacks; empty for a codec that it does not know."""

    def __init__(self, fact: str, packages: str = "") -> None:
        super().__init__(fact)
        self.packages = packages


def available() -> bool:
    """True when this worker can use more than raw and deflate."""
    return numpy is not None and zstandard is not None


class _Tools(threading.local):
    """A thread's own coders: making one costs as much as a small block."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            min_match=7,
            hash_log=6,
            window_log=18,
            write_content_size=1,
            write_checksum=0,
        )
        self.compress = zstandard.ZstdCompressor(compression_params=parameters).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


try:
    _tools = _Tools() if available() else None
    _ = available() and (zstandard.get_frame_parameters, zstandard.CONTENTSIZE_UNKNOWN, zstandard.ZstdError)
except Exception:  # too old, or half installed
    _tools = numpy = zstandard = None  # type: ignore[assignment]


def size_of(pieces: List[Data]) -> int:
    """Bytes of an encoded block."""
    return sum(len(piece) for piece in pieces)


# ---------------------------------------------------------------- choosing


def choose(raw: memoryview, width: int, is_float: bool, base: Optional[memoryview] = None) -> int:
    """The codec that makes a sample smallest, by trial. `width`: bytes per element, 1 for no numbers."""
    start = max(0, (len(raw) - SAMPLE) // 2) // 8 * 8
    part = raw[start : start + SAMPLE]
    if width > 1 and not available():
        return RAW
    if width == 1:
        small = len(zlib.compress(part, 1)) < GAIN * len(part)
        return DEFLATE if small else RAW
    sizes = {RAW: GAIN * len(part), PLANES: float(size_of(encode(PLANES, part, width, is_float)))}
    if base is not None and len(base) == len(raw):
        sizes[DIFF] = 1.02 * size_of(encode(DIFF, part, width, is_float, base[start : start + SAMPLE]))
    return min(sizes, key=lambda codec: sizes[codec])


# ---------------------------------------------------------------- encoding


def encode(codec: int, raw: memoryview, width: int, is_float: bool, base: Optional[memoryview] = None) -> List[Data]:
    """The stored bytes, in pieces. They may be longer than raw; the caller then stores raw. With RAW they are `raw`."""
    if codec == RAW:
        return [raw]
    if codec == DEFLATE:
        return [zlib.compress(raw, 1)]
    units = numpy.frombuffer(raw, dtype=f"<u{width}")
    rotate = is_float and codec == PLANES
    under = numpy.frombuffer(base, dtype=units.dtype) if codec == DIFF and base is not None else None
    planes = _split(units, under, rotate)
    rows, bodies = [], []
    for plane in planes:
        mode, body = _squeeze(memoryview(plane))
        rows.append(_PLANE.pack(mode, len(body)))
        bodies.append(body)
    return [b"".join([_HEAD.pack(width, _ROTATED if rotate else 0), *rows]), *bodies]


def _split(units: Any, base: Any, rotate: bool) -> Any:
    """(planes, elements) of bytes, plane 0 the lowest; of the zigzag difference where there is a base."""
    width, kind = units.dtype.itemsize, units.dtype.type
    planes = numpy.empty((width, len(units)), numpy.uint8)
    scratch = numpy.empty((2, min(_CHUNK, len(units))), units.dtype)
    for start in range(0, len(units), _CHUNK):
        part = units[start : start + _CHUNK]
        work, other = scratch[:, : len(part)]
        if base is not None:
            _zigzag(part, base[start : start + _CHUNK], work, other)
        elif rotate:
            numpy.left_shift(part, kind(1), out=work)
            numpy.right_shift(part, kind(8 * width - 1), out=other)
            numpy.bitwise_or(work, other, out=work)
        else:
            numpy.copyto(work, part)
        for i in range(width):
            numpy.copyto(planes[i, start : start + len(part)], work, casting="unsafe")
            if i < width - 1:
                numpy.right_shift(work, kind(8), out=work)
    return planes


def _zigzag(units: Any, base: Any, work: Any, other: Any) -> None:
    """(d << 1) ^ (d >> all but one bit) of d = units - base, which wraps around; into `work`."""
    width = units.dtype.itemsize
    numpy.subtract(units, base, out=work)
    numpy.right_shift(work.view(f"<i{width}"), 8 * width - 1, out=other.view(f"<i{width}"))
    numpy.left_shift(work, units.dtype.type(1), out=work)
    numpy.bitwise_xor(work, other, out=work)


def _squeeze(plane: memoryview) -> Tuple[int, Data]:
    """(mode, bytes) of a plane."""
    assert _tools is not None
    if len(plane) > _TASTE:
        middle = (len(plane) - _TASTE) // 2
        if len(_tools.compress(plane[middle : middle + _TASTE])) > _SHRINKS * _TASTE:
            return 0, plane
    body = _tools.compress(plane)
    return (1, body) if len(body) < len(plane) else (0, plane)


# ---------------------------------------------------------------- decoding


def decode(codec: int, stored: memoryview, length: int, base: Optional[Data] = None) -> memoryview:
    """The raw bytes: a view of `stored` for RAW. Raises Lacking, and ValueError for bytes that are no such code (the
    caller checks the hash)."""
    if codec == RAW:
        if len(stored) != length:
            raise ValueError("raw bytes of another length")
        return stored
    if codec == DEFLATE:
        return memoryview(_inflate(stored, length))
    if codec not in (PLANES, DIFF):
        raise Lacking(f"block codec {codec} is not known to this worker")
    if not available():
        fact = f"block codec {codec} needs the packages numpy and zstandard (pip install numpy zstandard)"
        raise Lacking(fact, "numpy and zstandard")
    if codec == DIFF and (base is None or len(base) != length):
        raise ValueError("the base of a difference is missing, or has another length")
    planes, flags = _unpack(stored, length)
    if flags not in ((0, _ROTATED) if codec == PLANES else (0,)):
        raise ValueError("impossible flags")
    return _join(planes, length, bool(flags), base if codec == DIFF else None)


def _inflate(stored: memoryview, length: int) -> bytes:
    engine = zlib.decompressobj()
    try:
        data = engine.decompress(stored, length)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) != length or not engine.eof:
        raise ValueError("deflated bytes of another length")
    return data


def _unpack(stored: memoryview, length: int) -> Tuple[List[Any], int]:
    """(one array of bytes per plane, flags)."""
    if len(stored) < _HEAD.size:
        raise ValueError("cut before its header")
    width, flags = _HEAD.unpack_from(stored)
    if width not in (2, 4, 8) or length % width:
        raise ValueError("impossible element width")
    place = _HEAD.size + width * _PLANE.size
    if place > len(stored):
        raise ValueError("cut before its planes")
    planes = []
    for i in range(width):
        mode, size = _PLANE.unpack_from(stored, _HEAD.size + i * _PLANE.size)
        planes.append(_plane(stored[place : place + size], mode, length // width))
        place += size
    if place != len(stored):
        raise ValueError("more bytes than planes, or fewer")
    return planes, flags


def _plane(data: memoryview, mode: int, count: int) -> Any:
    if mode == 1:
        assert _tools is not None
        try:
            said = zstandard.get_frame_parameters(data).content_size
            if said not in (count, zstandard.CONTENTSIZE_UNKNOWN):  # it would get that much memory
                raise ValueError("a plane of another length")
            data = memoryview(_tools.decompress(data, max_output_size=count))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
    if mode > 1 or len(data) != count:
        raise ValueError("a plane of another length")
    return numpy.frombuffer(data, numpy.uint8)


def _join(planes: List[Any], length: int, rotated: bool, base: Optional[Data]) -> memoryview:
    width = len(planes)
    units = numpy.empty(length // width, dtype=f"<u{width}")
    kind = units.dtype.type
    under = None if base is None else numpy.frombuffer(base, dtype=units.dtype)
    other = numpy.empty(min(_CHUNK, len(units)), units.dtype)
    for start in range(0, len(units), _CHUNK):
        stop = start + _CHUNK
        part = units[start:stop]
        work = other[: len(part)]
        numpy.copyto(part, planes[-1][start:stop])
        for plane in planes[-2::-1]:
            numpy.left_shift(part, kind(8), out=part)
            numpy.bitwise_or(part, plane[start:stop], out=part)
        if rotated:
            numpy.left_shift(part, kind(8 * width - 1), out=work)
            numpy.right_shift(part, kind(1), out=part)
            numpy.bitwise_or(part, work, out=part)
        elif under is not None:
            numpy.bitwise_and(part, kind(1), out=work)
            numpy.negative(work, out=work)  # all ones for an odd zigzag: the step was negative
            numpy.right_shift(part, kind(1), out=part)
            numpy.bitwise_xor(part, work, out=part)
            numpy.add(part, under[start:stop], out=part)
    return memoryview(units).cast("B")  # type: ignore[arg-type]
