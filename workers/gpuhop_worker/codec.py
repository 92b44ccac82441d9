"""Plain state <-> JSON, exactly: what JSON cannot say is tagged, what cannot be said is refused at save.

Tensors and arrays are taken out by the caller (see `lift`), so that they travel as raw bytes. No pickle, ever:
whoever can write to the bucket must not get code to run in the worker.
"""

from __future__ import annotations

import base64
import collections
import json
import math
from typing import Any, Callable, List, Optional

TAG = "~"  # a dict with this one key is a tag; a user's dict that has it is itself tagged
BIG = 2000  # bits; Python refuses to read or print longer decimal numbers than its limit, 640 digits at least
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)

Lift = Callable[[Any, str], Optional[Any]]
"""lift(value, path) -> a JSON value that stands for it (inside a tag "x"), or None: not mine."""
Lower = Callable[[Any], Any]
"""The inverse: the tagged JSON value -> the object."""


class StateError(TypeError):
    """A value that cannot be saved exactly, or a saved one that cannot be read. Names its path."""


def encode(value: Any, lift: Lift = lambda value, path: None, path: str = "state") -> Any:
    """Raises StateError, naming the path, for an object that cannot come back equal."""
    try:
        return _encode(value, lift, path)
    except RecursionError:
        raise StateError(f"{path} holds itself, or is nested too deeply to be saved") from None


def _encode(value: Any, lift: Lift, path: str) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= BIG else {TAG: "i", "v": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {TAG: "f", "v": repr(value)}
    if kind is bytes:
        return {TAG: "b", "v": base64.b64encode(value).decode("ascii")}
    if kind is list:
        return _items(value, lift, path)
    if kind is tuple:
        return {TAG: "t", "v": _items(value, lift, path)}
    if kind in _DICTS:
        return _encode_dict(value, lift, path)
    if kind in (set, frozenset):
        items = [_encode(item, lift, f"{path} (an item of the set)") for item in value]
        return {TAG: "s" if kind is set else "z", "v": sorted(items, key=json.dumps)}
    lifted = lift(value, path)
    if lifted is None:
        raise StateError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved exactly; track an object "
            "whose state_dict() holds numbers, text, bytes, lists, dicts and tensors"
        )
    return {TAG: "x", "v": lifted}


def _items(value: Any, lift: Lift, path: str) -> List[Any]:
    # Python's generator holds 625 numbers: they need no look at each.
    if len(value) > 64 and all(type(item) is int and -(1 << 63) <= item < 1 << 64 for item in value):
        return list(value)
    return [_encode(item, lift, f"{path}[{i}]") for i, item in enumerate(value)]


def _encode_dict(value: Any, lift: Lift, path: str) -> Any:
    # OrderedDict, defaultdict and Counter come back as plain dicts in the same order: load_state_dict takes them.
    if all(type(key) is str for key in value) and TAG not in value:
        return {key: _encode(item, lift, f"{path}.{key}") for key, item in value.items()}
    rows = []
    for key, item in value.items():
        if type(key) not in (str, int, bool, float, tuple, bytes, frozenset, type(None)):
            raise StateError(f"{path} has a key of type {type(key).__name__}")
        rows.append([_encode(key, lift, path), _encode(item, lift, f"{path}[{_short(key)}]")])
    return {TAG: "d", "v": rows}


def _short(key: Any) -> str:
    return repr(key) if type(key) is not int or key.bit_length() <= BIG else hex(key)


def _no_lower(value: Any) -> Any:
    raise StateError(f"the state holds {value!r}, which this reader has no decoder for")


def decode(value: Any, lower: Lower = _no_lower) -> Any:
    """The inverse of encode. Raises StateError for a tag that is not known."""
    if isinstance(value, list):
        return [decode(item, lower) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, lower) for key, item in value.items()}
    tag, body = value[TAG], value.get("v")
    if tag == "x":
        return lower(body)
    return _decode_tag(tag, body, lower)


def _decode_tag(tag: str, body: Any, lower: Lower) -> Any:
    if tag == "f":
        return float(body)
    if tag == "i":
        return int(body, 16)
    if tag == "b":
        return base64.b64decode(body)
    if tag == "t":
        return tuple(decode(item, lower) for item in body)
    if tag == "s":
        return {decode(item, lower) for item in body}
    if tag == "z":
        return frozenset(decode(item, lower) for item in body)
    if tag == "d":
        return {decode(key, lower): decode(item, lower) for key, item in body}
    raise StateError(f"the state holds the unknown tag {tag!r}")
