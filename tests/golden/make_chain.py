"""Made tests/golden/v2 and v3 once, each with the worker that wrote manifests of that format (see make_v1.py). What
they hold stands here: five checkpoints of one job, in two sessions, each a difference to the one before as far as that
goes. Format 3 with BLAKE3."""

from __future__ import annotations

import functools
import hashlib
import random
import struct
import sys
from pathlib import Path
from typing import Any

STEPS = (0, 1, 2, 3, 4)
ELEMENTS = 20_000
DTYPES = {"w": "float32", "m": "float64", "half": "bfloat16", "count": "int32", "frozen": "float32", "bytes": "uint8"}
PLACES = {0: (1, 1), 1: (1, 2), 2: (1, 3), 3: (2, 1), 4: (2, 2)}  # step -> token, seq


@functools.cache
def values(name: str, step: int) -> bytes:
    """What a tensor holds after `step` steps, in plain Python so that every machine makes the same bytes."""
    dice = random.Random(name)
    count = ELEMENTS
    if name == "bytes":
        return bytes(dice.choice(b"abcd") for _ in range(4 * count))
    if name == "count":
        return struct.pack(f"<{count}i", *(dice.randrange(1000) + step for _ in range(count)))
    if name == "frozen":
        return struct.pack(f"<{count}f", *(dice.uniform(-1, 1) for _ in range(count)))
    if name == "m":
        moved = 1 + step * 1e-9
        return struct.pack(f"<{count // 2}d", *(dice.gauss(0, 1) * moved for _ in range(count // 2)))
    whole = struct.pack(f"<{count}f", *(dice.gauss(0, 0.02) * (1 + step * 1e-4) for _ in range(count)))
    if name == "half":
        return b"".join(whole[i + 2 : i + 4] for i in range(0, len(whole), 4)) * 2
    return whole


def expected(step: int) -> dict[str, tuple[str, list[int], list[int], bytes]]:
    """As tools/decode.py gives them."""
    sizes = {"float32": 4, "float64": 8, "bfloat16": 2, "int32": 4, "uint8": 1}
    found = {}
    for name, dtype in DTYPES.items():
        body = values(name, step)
        found[name] = (dtype, [len(body) // sizes[dtype]], [1], body)
    return found


def main(root: Path) -> None:
    from gpuhop_worker import wire
    from gpuhop_worker.containers import number_of
    from gpuhop_worker.encoder import Encoder, Known
    from gpuhop_worker.slots import Slot, layout
    from gpuhop_worker.wire import Manifest

    known, packs = None, {1: 0, 2: 0}
    for step in STEPS:
        token, seq = PLACES[step]

        def emit(pieces: list[Any], token: int = token) -> str:
            packs[token] += 1
            key = wire.numbered_key("golden", token, "pack", packs[token])
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(b"".join(pieces))
            return key

        parts = {name: body for name, (_, _, _, body) in expected(step).items()}
        places, size = layout([len(body) for body in parts.values()])
        slot = Slot(str(root / f"slot-{step % 2}"))
        slot.reserve(size)
        encoder = Encoder(known, emit, block=64 * 1024 + 512, pack=100_000)
        rows = []
        for (name, body), place in zip(parts.items(), places, strict=True):
            slot.view(place, len(body))[:] = body
            width, is_float = number_of(DTYPES[name])
            first, last = encoder.add(name, slot.view(place, len(body)), width, is_float)
            shape = expected(step)[name][1]
            rows.append(
                {"name": name, "dtype": DTYPES[name], "shape": shape, "stride": [1], "first": first, "last": last}
            )
        named, blocks = encoder.finish()
        parent = [1, 3] if token == 2 else None
        state = {"step": step, "~rng": {}}
        manifest = Manifest(
            "golden", token, seq, step, "api", named, blocks, rows, state=state, parent=parent, hash=encoder.hash
        )
        key = wire.numbered_key("golden", token, "manifest", seq)
        (root / key).write_bytes(manifest.to_bytes())
        known = Known(manifest, slot, dict(zip(parts, places, strict=True)))
    for path in root.glob("slot-*"):
        path.unlink()
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        print(path.relative_to(root), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()[:12])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
