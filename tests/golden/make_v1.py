"""Made tests/golden/v1 once, with the worker of version 1. Run it again only for a new folder of a new version:

    python tests/golden/make_v1.py FOLDER

The files are never made anew: that today's readers read them is what they are for. What they hold stands here.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

from gpuhop_worker import codec, wire
from gpuhop_worker.wire import Beat, Control, Grant, Manifest, Result

TENSORS: dict[str, tuple[str, list[int], list[int], bytes]] = {
    # name -> dtype, shape, stride, bytes
    "model.w": ("float32", [2, 3], [3, 1], bytes.fromhex("0000803f000000c00000c07f010000000000008000007f7f")),
    "model.turned": ("float32", [2, 2], [1, 2], bytes.fromhex("0000803f0000004000004040000080bf")),
    "model.half": ("bfloat16", [3], [1], bytes.fromhex("803f00c0c17f")),
    "model.flag": ("bool", [2], [1], b"\x01\x00"),
    "model.count": ("int64", [], [], (-3).to_bytes(8, "little", signed=True)),
    "model.none": ("float64", [0, 4], [4, 1], b""),
    "ema.noise": ("numpy:<f8", [2], [], bytes.fromhex("000000000000f03f000000000000f0bf")),
    "ema.turned": ("numpy:>i2", [2, 2], [1, 2], bytes.fromhex("0001000200030004")),
    "long": ("uint8", [2_500], [1], bytes(range(250)) * 10),
}
ALIASES = {"model.tied": "model.w"}
STATE: dict[str, Any] = {
    "text": "ü\ud800\n",
    "numbers": [0, -1, 1 << 70, -(1 << 3000), 0.1, -0.0, 5e-324, math.inf, -math.inf],
    "bytes": b"\x00\xff",
    "nested": ((1, ("a", None)), [True, False], {}),
    "sets": {"s": {1, 2}, "z": frozenset({"x", frozenset()})},
    "order": {"b": 1, "a": 2},
    "keys": {1: "one", (2, "x"): "pair", "~": "tilde", None: 0, -1.5: 0, b"k": 0},
    "tilde": {"~": "f", "v": "nan"},
}
FILES: dict[str, Any] = {
    # path -> (mode, time in ns, bytes) or the target of a link
    "ckpt-10/model.bin": (0o644, 1_700_000_000_123_456_789, bytes(range(256)) * 10),
    "ckpt-10/.metadata": (0o600, 1_700_000_000_000_000_001, b"{}"),
    "ckpt-9/model.bin": (0o644, 1_600_000_000_000_000_000, b"old"),
    "empty": (0o755, 1_600_000_000_000_000_000, b""),
    "latest": "ckpt-10",
    "ckpt-9/next": "../ckpt-10",
}
METRICS = {1: [0, 1, 2, 3, 4, 5], 2: [4, 5, 6], 3: []}  # token -> steps logged; 2 began at 4
STITCHED = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]  # step, token
DOCUMENTS = [
    Control(token=3, order="pause"),
    Beat(token=3, seq=9, phase="train", step=7, saved_step=6, saved_seq=2, train_s=1.5, speed=0.25, note="x"),
    Result(3, "drained", "budget", 7, 7, 2, 1.5, exit_code=75, message="m", outputs=["k"], progressed=True),
    Grant("golden", 3, "t3", "lab", "python t.py", "c", "s", 60.0, parents=["p"], addresses={"k": {"get": "u"}}),
]


class _Writer:
    """Blocks into pack files, as version 1 wrote them: cut every `block` bytes, nothing coded, nothing shared."""

    def __init__(self, folder: Path, pack: int, block: int) -> None:
        self._folder, self._pack, self._block = folder, pack, block
        self.packs: list[dict[str, Any]] = []
        self.blocks: list[list[Any]] = []

    def add(self, data: bytes) -> tuple[int, int]:
        first = len(self.blocks)
        for start in range(0, len(data), self._block):
            raw = data[start : start + self._block]
            if not self.packs or self.packs[-1]["size"] >= self._pack:
                self.packs.append({"key": f"pack-{len(self.packs) + 1}", "size": 0})
            pack = self.packs[-1]
            with (self._folder / pack["key"]).open("ab") as out:
                out.write(raw)
            row = [len(self.packs) - 1, pack["size"], len(raw), len(raw), 0, hashlib.sha256(raw).hexdigest()]
            self.blocks.append(row)
            pack["size"] += len(raw)
        return first, len(self.blocks)


class _Pack:
    """Collects blocks in a pack of one session and moves it under its key."""

    def __init__(self, root: Path, job: str, token: int) -> None:
        self.root, self.job, self.token = root, job, token
        self.folder = root / "work"
        self.folder.mkdir(parents=True)
        # Small, so that the files are; a reader goes by the rows.
        self.writer = _Writer(self.folder, 1500, 1000)

    def packs(self) -> list[dict[str, Any]]:
        rows = []
        for number, pack in enumerate(self.writer.packs, 1):
            key = wire.numbered_key(self.job, self.token, "pack", number)
            _write(self.root, key, (self.folder / pack["key"]).read_bytes())
            (self.folder / pack["key"]).unlink()
            rows.append({"key": key, "size": pack["size"]})
        self.folder.rmdir()
        return rows


def _write(root: Path, key: str, body: bytes) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(body)


def _api(root: Path, token: int, seq: int, step: int) -> None:
    pack = _Pack(root, "golden", token)
    rows: list[dict[str, Any]] = []
    for name, (dtype, shape, stride, body) in TENSORS.items():
        first, last = pack.writer.add(body)
        rows.append({"name": name, "dtype": dtype, "shape": shape, "stride": stride, "first": first, "last": last})
    rows += [{"name": name, "alias": target} for name, target in ALIASES.items()]
    state = codec.encode(STATE)
    state["w"] = {"~": "x", "v": {"tensor": "model.w"}}
    manifest = Manifest("golden", token, seq, step, "api", pack.packs(), pack.writer.blocks, rows, state=state)
    _write(root, wire.numbered_key("golden", token, "manifest", seq), manifest.to_bytes())


def _folder(root: Path) -> None:
    pack = _Pack(root, "folder", 1)
    rows: list[dict[str, Any]] = []
    for path, entry in FILES.items():
        if isinstance(entry, str):
            rows.append({"path": path, "link": entry, "first": 0, "last": 0})
            continue
        mode, mtime, body = entry
        first, last = pack.writer.add(body)
        more = {"size": len(body), "mode": mode, "mtime": mtime}
        rows.append({"path": path, **more, "first": first, "last": last})
    manifest = Manifest("folder", 1, 1, 10, "folder", pack.packs(), pack.writer.blocks, files=rows)
    _write(root, wire.numbered_key("folder", 1, "manifest", 1), manifest.to_bytes())


def main(root: Path) -> None:
    _api(root, 2, 1, 7)
    pack = wire.numbered_key("golden", 3, "pack", 1)
    bad = Manifest("golden", 3, 1, 9, "api", [{"key": pack, "size": 4}], [[0, 0, 4, 4, 0, "00"]])
    _write(root, wire.numbered_key("golden", 3, "manifest", 1), bad.to_bytes())  # the newest, and its pack is damaged
    _write(root, pack, b"torn")
    _folder(root)
    for token, steps in METRICS.items():
        lines = [b'{"step":%d,"token":%d,"loss":{"~":"f","v":"nan"}}\n' % (step, token) for step in steps]
        for number, part in enumerate((lines[:3], lines[3:]), 1):
            if part:
                key = wire.numbered_key("golden", token, "metrics", number)
                _write(root, key, gzip.compress(b"".join(part), mtime=0))
    for document in DOCUMENTS:
        name = type(document).__name__.lower()
        body = document.to_gzip() if isinstance(document, Grant) else document.to_bytes()
        _write(root, f"documents/{name}", body)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
