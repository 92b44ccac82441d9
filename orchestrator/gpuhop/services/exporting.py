"""A checkpoint's weights in a form that other programs read. No pickle is read; `torch` writes one, by torch itself."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuhop.errors import InvalidInput

Named = tuple[str, dict[str, Any], bytes]

_SAFE = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def weights(found: Iterable[tuple[dict[str, Any], bytes]], title: str | None) -> list[Named]:
    """(name in the module's state_dict, entry, bytes) of the tracked module `title`; None: the only one there is.

    Raises InvalidInput when there is none, or more than one to choose from.
    """
    modules: dict[str, list[Named]] = {}
    for entry, data in found:
        match = re.fullmatch(r"([^.]+)\.state_dict\.(.+)", entry["name"])
        if match:
            modules.setdefault(match.group(1), []).append((match.group(2), entry, data))
    if title is None and len(modules) == 1:
        title = next(iter(modules))
    if title not in modules:
        names = ", ".join(sorted(modules)) or "none"
        raise InvalidInput(f"choose one of the tracked modules: {names}", "gpuhop export JOB --part NAME")
    return modules[title]


def safetensors(path: Path, named: list[Named], note: dict[str, str]) -> None:
    """The safetensors format: u64 length, JSON header, raw data. Raises InvalidInput for a dtype that it lacks."""
    header: dict[str, Any] = {"__metadata__": note}
    place = 0
    for name, entry, data in named:
        if entry["dtype"] not in _SAFE:
            raise InvalidInput(f"{name} is {entry['dtype']}, which safetensors has not", "use --format torch")
        header[name] = {
            "dtype": _SAFE[entry["dtype"]],
            "shape": entry["shape"],
            "data_offsets": [place, place + len(data)],
        }
        place += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temp = path.with_name(path.name + ".tmp")
    with temp.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in named:
            out.write(data)
    temp.replace(path)


def torch_file(path: Path, named: list[Named]) -> None:
    """A state_dict for torch.load(weights_only=True). Raises MissingExtra without torch."""
    from gpuhop.errors import MissingExtra

    try:
        import torch

        from gpuhop_worker import torch_state
    except ImportError as error:
        raise MissingExtra("torch", "torch") from error
    temp = path.with_name(path.name + ".tmp")
    torch.save({name: torch_state.tensor_from(data, entry) for name, entry, data in named}, temp)
    temp.replace(path)
