"""Checkpoints without a session: parts through a slot into packs in memory, and back."""

from __future__ import annotations

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

    def emit(self, body: list[Any]) -> str:
        key = f"jobs/j/t0001/pack-{len(self.packs) + 1:06d}"
        self.packs[key] = b"".join(body)
        return key

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self.reads += 1
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
    manifest = Manifest("j", 1, 1, 1, "api", packs, blocks, tensors=rows, state=state)
    manifest = Manifest.from_bytes(manifest.to_bytes())
    checkpoint.check_shape(manifest)
    return manifest, encoder, Known(manifest, slot, offsets)


def load(shelf: Any, manifest: Manifest) -> dict[str, bytes]:
    """name -> verified bytes of every part that has its own."""
    reader = restore.BlockReader(manifest, shelf)
    parts = [part for part in [*manifest.tensors, *manifest.files] if "alias" not in part]
    return {
        checkpoint.part_name(part): b"".join(reader.block(row) for row in manifest.blocks[part["first"] : part["last"]])
        for part in parts
    }


def fill(shelf: Any, manifest: Manifest, slot: Slot) -> dict[str, int]:
    """Into a slot, as a restore does; the offset of each part."""
    bodies = load(shelf, manifest)
    places, size = layout([len(body) for body in bodies.values()])
    slot.reserve(size)
    for body, place in zip(bodies.values(), places, strict=True):
        slot.view(place, len(body))[:] = body
    return dict(zip(bodies, places, strict=True))
