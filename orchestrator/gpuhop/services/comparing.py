"""Are two runs the same run? Bit for bit: every tensor, every other piece of state, every logged value."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuhop_worker.wire import Manifest


@dataclass(frozen=True)
class Row:
    """One kind of state: how many pieces, how many of them differ (the first few by name)."""

    what: str
    count: int
    different: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.different and self.count > 0


def compare(a: Manifest, b: Manifest, a_log: Sequence[dict[str, Any]], b_log: Sequence[dict[str, Any]]) -> list[Row]:
    """`a_log`, `b_log`: stitched metrics (gpuhop.services.streams.metrics); who logged a line does not matter.
    Kinds of which neither run has a piece are left out; nothing at all to compare is not equality."""
    tensors_a, tensors_b = _tensors(a), _tensors(b)
    is_rng = {name for name in tensors_a | tensors_b if name.startswith("~rng")}
    is_optimizer = {name for name in tensors_a | tensors_b if ".state." in name} - is_rng
    rows = [
        _row("weights and buffers", tensors_a, tensors_b, lambda name: name not in is_optimizer | is_rng),
        _row("optimizer moments", tensors_a, tensors_b, lambda name: name in is_optimizer),
        _row("other state", _leaves(a, rng=False), _leaves(b, rng=False), lambda name: True),
        _row(
            "random generators",
            {**{n: tensors_a[n] for n in is_rng & set(tensors_a)}, **_leaves(a, rng=True)},
            {**{n: tensors_b[n] for n in is_rng & set(tensors_b)}, **_leaves(b, rng=True)},
            lambda name: True,
        ),
        _row("logged values", _values(a_log), _values(b_log), lambda name: True),
    ]
    return [row for row in rows if row.count] or [Row("state", 0, ())]


def _tensors(manifest: Manifest) -> dict[str, str]:
    """name -> everything that makes the tensor what it is, as text: layout and the hashes of its bytes."""
    found = {}
    for entry in manifest.tensors:
        shown = {k: v for k, v in entry.items() if k not in ("first", "last")}
        if "alias" not in entry:
            shown["sha256"] = [row[5] for row in manifest.blocks[entry["first"] : entry["last"]]]
        found[entry["name"]] = json.dumps(shown, sort_keys=True)
    return found


def _leaves(manifest: Manifest, *, rng: bool) -> dict[str, str]:
    state = manifest.state or {}
    return {k: json.dumps(v, sort_keys=True) for k, v in state.items() if k.startswith("~rng") is rng}


def _values(log: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {f"step {row['step']}": repr({k: v for k, v in row.items() if k != "~token"}) for row in log}


def _row(what: str, a: dict[str, str], b: dict[str, str], want: Callable[[str], bool]) -> Row:
    names = sorted(name for name in a.keys() | b.keys() if want(name))
    return Row(what, len(names), tuple(name for name in names if a.get(name) != b.get(name)))
