"""Checkpoints without a session: parts through a slot into packs in memory, and back."""

from __future__ import annotations

import tempfile
from typing import Any

from gpuhop_worker import checkpoint, restore
from gpuhop_worker.encoder import Encoder, Known
from gpuhop_worker.slots import Slot, layout
from gpuhop_worker.wire import Manifest


class Shelf:
    """A store of packs in memory, with the one method that a reader needs."""

    def __init__(self) -> None:
        self.packs: dict[str, bytes] = {}
        self.reads = 0
        self.read_bytes = 0

    def emit(self, body: list[Any]) -> str:
        key = f"jobs/j/t0001/pack-{len(self.packs) + 1:06d}"
        self.packs[key] = b"".join(body)
        return key

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self.reads += 1
        self.read_bytes += stop - start
        return self.packs[key][start:stop]


Part = tuple[dict[str, Any], bytes, int, bool]  # entry without its rows, bytes, width, floating point


def save(
    shelf: Shelf, parts: list[Part], known: Known | None, slot: Slot, state: Any = None, **options: Any
) -> tuple[Manifest, Encoder, Known]:
    """One checkpoint, written and read back as a document, and what the next one knows."""
    places, size = layout([len(raw) for _, raw, _, _ in parts])
    slot.reserve(size)
    encoder = Encoder(known, shelf.emit, **options)
    rows, offsets = [], {}
    for (entry, raw, width, is_float), place in zip(parts, places, strict=True):
        if "alias" in entry:
            rows.append(entry)
            continue
        slot.view(place, len(raw))[:] = raw
        offsets[entry["name"]] = place
        first, last = encoder.add(entry["name"], slot.view(place, len(raw)), width, is_float)
        rows.append(dict(entry, first=first, last=last))
    packs, blocks = encoder.finish()
    manifest = Manifest("j", 1, 1, 1, "api", packs, blocks, tensors=rows, state=state, hash=encoder.hash)
    manifest = Manifest.from_bytes(manifest.to_bytes())
    checkpoint.check_shape(manifest)
    return manifest, encoder, Known(manifest, slot, offsets)


def load(shelf: Any, manifest: Manifest) -> dict[str, bytes]:
    """name -> verified bytes of every part that has its own, by the way of a restore."""
    with tempfile.TemporaryDirectory() as folder:
        restored = restore.fill(manifest, shelf, Slot(f"{folder}/slot"))
        found = {
            name: bytes(restored.slot.view(restored.offsets[name], size))
            for name, _, size in restore.part_sizes(manifest)
        }
        restored.slot.close()
    return found
