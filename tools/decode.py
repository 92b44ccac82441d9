"""Reads a job's newest checkpoint and its metrics from a folder of objects, by docs/format.md alone.

    python tools/decode.py FOLDER JOB

A second implementation on purpose: it shares no line with the worker, so that the page is what both agree with.
Rules are cited as (R1). Python 3.9, standard library only, but for zstandard and blake3 where a manifest needs them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """A document or block that must be treated as absent, with the reason."""


def unseal(data: bytes, kind: str) -> dict[str, Any]:
    """The object of a sealed document (R1 to R3)."""
    first, newline, body = data.partition(b"\n")
    if not newline or first != b"gpuhop1 sha256:" + hashlib.sha256(body).hexdigest().encode("ascii"):
        raise Unreadable("the seal does not match")
    document: dict[str, Any] = json.loads(body if body.startswith(b"{") else zlib.decompress(body))
    if document.get("gpuhop") != kind or document.get("format") not in ((1, 2, 3) if kind == "manifest" else (1,)):
        raise Unreadable(f"not a {kind} of a format that is known here")
    return document


def block(root: Path, manifest: dict[str, Any], row: list[Any], depth: int = 16) -> bytes:
    """The raw bytes of one row of `blocks`, checked (R20 to R22)."""
    pack, offset, stored, raw, codec, digest = row[:6]
    key = manifest["packs"][pack]["key"]
    try:
        with (root / key).open("rb") as source:
            source.seek(offset)
            part: bytes = source.read(stored)
        if codec == 1:
            part = zlib.decompress(part)
        elif codec in (2, 3):
            if codec == 3 and depth == 0:
                raise Unreadable("a chain of bases does not end")
            base = block(root, manifest, manifest["blocks"][row[6]], depth - 1) if codec == 3 else b""
            part = planes(part, raw, base)
        elif codec != 0:
            raise Unreadable(f"codec {codec} is not known")
    except FileNotFoundError as error:
        raise Unreadable(f"{key} is missing") from error
    except (zlib.error, struct.error, ValueError, IndexError) as error:
        raise Unreadable(f"a block of {key} cannot be decoded: {error}") from error
    if len(part) != raw or hashed(manifest.get("hash", "sha256"), part) != digest:
        raise Unreadable(f"a block of {key} does not match its hash")
    return part


def hashed(name: str, data: bytes) -> str:
    """The hash that a manifest names, in hex."""
    if name == "blake3":
        import blake3

        return str(blake3.blake3(data).hexdigest())
    if name != "sha256":
        raise Unreadable(f"the hash {name!r} is not known")
    return hashlib.sha256(data).hexdigest()


def planes(data: bytes, raw: int, base: bytes) -> bytes:
    """Byte planes, one integer after the other; with a base, zigzag differences to it."""
    width, flags = data[0], data[1]
    if width not in (2, 4, 8) or raw % width or flags > (0 if base else 1) or (base and len(base) != raw):
        raise ValueError("impossible planes")
    place, rows = 2 + 5 * width, []
    for i in range(width):
        mode, length = struct.unpack_from("<BI", data, 2 + 5 * i)
        plane = data[place : place + length]
        place += length
        if mode == 1:
            import zstandard

            try:
                plane = bytes(zstandard.ZstdDecompressor().decompress(plane, max_output_size=raw // width))
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
        if mode > 1 or len(plane) != raw // width:
            raise ValueError("a plane of another length")
        rows.append(plane)
    if place != len(data):
        raise ValueError("bytes behind the planes")
    out, bits = bytearray(raw), 8 * width
    for i in range(width):
        out[i::width] = rows[i]
    if not flags and not base:
        return bytes(out)
    for at in range(0, raw, width):
        value = int.from_bytes(out[at : at + width], "little")
        if flags:  # rotate right by one bit
            value = value >> 1 | (value & 1) << (bits - 1)
        else:
            step = value >> 1 if value % 2 == 0 else -(value >> 1) - 1
            value = (int.from_bytes(base[at : at + width], "little") + step) % (1 << bits)
        out[at : at + width] = value.to_bytes(width, "little")
    return bytes(out)


def span(root: Path, manifest: dict[str, Any], first: int, last: int) -> bytes:
    """The raw bytes of some rows of `blocks`."""
    return b"".join(block(root, manifest, row) for row in manifest["blocks"][first:last])


def tensors(root: Path, manifest: dict[str, Any]) -> dict[str, tuple[str, list[int], list[int], bytes]]:
    """name -> (dtype, shape, stride, bytes); an alias has what its target has."""
    found: dict[str, tuple[str, list[int], list[int], bytes]] = {}
    for row in manifest["tensors"]:
        if "alias" in row:
            found[row["name"]] = found[row["alias"]]
        else:
            body = span(root, manifest, row["first"], row["last"])
            found[row["name"]] = (row["dtype"], row["shape"], row["stride"], body)
    return found


def folder(root: Path, manifest: dict[str, Any]) -> dict[str, tuple[int, bytes] | str]:
    """path -> (mode, bytes), or the target of a link."""
    rows = manifest["files"]
    return {
        row["path"]: row["link"] if "link" in row else (row["mode"], span(root, manifest, row["first"], row["last"]))
        for row in rows
    }


def plain(value: Any) -> Any:
    """State as Python values (section 5); what stands for a tensor or a torch value becomes ("x", mark)."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "~" not in value:
        return {key: plain(item) for key, item in value.items()}
    body = value["v"]
    makers: dict[str, Callable[[], Any]] = {
        "f": lambda: float(body),
        "i": lambda: int(body, 16),
        "b": lambda: base64.b64decode(body),
        "t": lambda: tuple(plain(item) for item in body),
        "s": lambda: {plain(item) for item in body},
        "z": lambda: frozenset(plain(item) for item in body),
        "d": lambda: {plain(key): plain(item) for key, item in body},
        "x": lambda: ("x", body),
    }
    return makers[value["~"]]()


def checkpoints(root: Path, job: str) -> list[tuple[int, int, Path]]:
    """(token, seq, path) of all manifests, newest first (R33)."""
    found = []
    for path in (root / "jobs" / job).glob("t*/manifest-*.json"):
        place = re.search(r"/t(\d{4,})/manifest-(\d{6,})\.json$", path.as_posix())
        if place:
            found.append((int(place.group(1)), int(place.group(2)), path))
    return sorted(found, reverse=True)


def newest(root: Path, job: str) -> dict[str, Any]:
    """The newest manifest that verifies, with all its blocks (R32)."""
    for token, seq, path in checkpoints(root, job):
        try:
            manifest = unseal(path.read_bytes(), "manifest")
            span(root, manifest, 0, len(manifest["blocks"]))
            return manifest
        except Unreadable as error:
            print(f"t{token:04d}/{seq}: {error}; falling back to the one before", file=sys.stderr)
    raise Unreadable(f"no checkpoint of {job} verifies")


def metrics(root: Path, job: str) -> list[dict[str, Any]]:
    """The lines of all sessions, each cut by the ones after it (R50)."""
    lines: list[dict[str, Any]] = []
    tokens = sorted((root / "jobs" / job).glob("t*"), key=lambda path: int(path.name[1:]))
    for session in tokens:
        segments = sorted(session.glob("metrics-*.gz"), key=lambda path: int(path.name[8:-3]))
        text = b"".join(gzip.decompress(path.read_bytes()) for path in segments)
        own = [plain(json.loads(line)) for line in text.splitlines()]
        if own:
            lines = [line for line in lines if line["step"] < own[0]["step"]]
        for line in own:
            if "~cut" in line:  # the command crashed and went on from this step (R51)
                lines = [one for one in lines if one["step"] < line["step"]]
            else:
                lines.append(line)
    return lines


def main(root: Path, job: str) -> None:
    manifest = newest(root, job)
    print(f"{job} t{manifest['token']:04d}/{manifest['seq']}: step {manifest['step']}, mode {manifest['mode']}")
    for name, (dtype, shape, _, body) in tensors(root, manifest).items():
        print(f"  tensor {name} {dtype} {shape} {hashlib.sha256(body).hexdigest()[:16]}")
    for path, entry in folder(root, manifest).items():
        print(f"  file {path} " + (f"-> {entry}" if isinstance(entry, str) else f"{len(entry[1])} bytes"))
    print(f"  state {json.dumps(manifest['state'])[:2000]}")
    print(f"  metrics {len(metrics(root, job))} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
