"""The keys of job.yaml that hold several values: names, patterns, environment, names of secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuhop.spec.errors import quote
from gpuhop.spec.masking import is_name, looks_like_value
from gpuhop.spec.schema import example_of
from gpuhop.spec.values import plain
from gpuhop.spec.walk import (
    Report,
    Section,
    apply,
    describe,
    key_text,
    kind_of,
    mapping,
    scalar_text,
    sequence,
)

if TYPE_CHECKING:
    import yaml

MAX_ITEMS = 1000
RESERVED = "GPUHOP_"

_NEVER = "secrets: only names stand here, never values; a value in this file would reach disks, stores and logs"

_A_LIST = "secrets: expected a list of names, got a text"

Named = dict[str, "yaml.Node"]
"""Names, in the order of the file, with the nodes that they stand at."""


def unique(section: Section, name: str, read: Callable[[str], str], wanted: str) -> tuple[str, ...]:
    """A list of texts, each usable by `read`, none twice; () for a missing key, a fault for an empty list."""
    found: dict[str, yaml.Node] = {}
    for path, node in _items(section, name, wanted):
        text = scalar_text(section.report, node, path, wanted)
        if text is None:
            continue
        if kind_of(node) in ("int", "float", "bool", "timestamp"):
            said = f"{path}: expected {wanted}, got {describe(node)}: put it in quotes"
            section.report.node(node, path, said)
            continue
        value = apply(section.report, node, path, read, text, "")
        if value and value in found:
            section.report.node(node, path, f"{path}: {quote(value)} stands twice")
        elif value:
            found[value] = node
    return tuple(found)


def _items(section: Section, name: str, wanted: str) -> list[tuple[str, yaml.Node]]:
    node, path = section.value(name), section.sub(name)
    items = None if node is None else sequence(section.report, node, path, f"a list, each item {wanted}")
    if items is None:
        return []
    if not items.value:
        section.report.node(items, path, f"{path}: the list is empty: leave the key out")
    if len(items.value) > MAX_ITEMS:
        section.report.node(items, path, f"{path}: more than {MAX_ITEMS} items")
        return []
    return [(f"{path}[{index}]", item) for index, item in enumerate(items.value)]


def env(section: Section) -> tuple[tuple[tuple[str, str], ...], Named]:
    """`env` as pairs in the order of the file, numbers and booleans as written; where each name stands."""
    report, written = section.report, section.value("env")
    node = None if written is None else mapping(report, written, "env", "a mapping of names to values")
    if node is None:
        return (), {}
    if len(node.value) > MAX_ITEMS:
        report.node(node, "env", f"env: more than {MAX_ITEMS} names")
        return (), {}
    pairs: dict[str, str] = {}
    names: Named = {}
    for key_node, value in node.value:
        name = key_text(report, key_node, "env")
        if name is None or not _env_name(report, key_node, name, names):
            continue
        names[name] = key_node
        path = f"env.{name}"
        if kind_of(value) == "null":
            report.node(key_node, path, f'{path}: no value: write "" for an empty one')
            continue
        text = scalar_text(report, value, path, "a text, a number or true/false")
        if text is not None:
            pairs[name] = apply(report, value, path, plain, text, "")
    return tuple(pairs.items()), names


def _env_name(report: Report, node: yaml.Node, name: str, seen: Named) -> bool:
    if not is_name(name):
        said = f"env: {quote(name)} cannot name an environment variable: letters, digits and `_`, no digit first"
        report.node(node, "env", said)
    elif name.upper().startswith(RESERVED):
        report.node(node, f"env.{name}", f"env.{name}: names that begin with {RESERVED} belong to gpuhop")
    elif name in seen:
        first = seen[name].start_mark.line + 1
        report.node(node, f"env.{name}", f"env.{name}: the key stands twice, first in line {first}")
    else:
        return True
    return False


def secrets(section: Section) -> Named:
    """The names under `secrets` and where each stands. No message holds what may be a value."""
    import yaml

    report, node = section.report, section.value("secrets")
    if node is not None and not isinstance(node, yaml.SequenceNode):
        parts = [part for part, _ in node.value] if isinstance(node, yaml.MappingNode) else [node]
        names = [part.value for part in parts if isinstance(part, yaml.ScalarNode) and _shown(part.value)]
        near = f"secrets: [{', '.join(names[:5])}]" if names else None
        report.node(node, "secrets", _NEVER if parts != [node] else _A_LIST, nearest=near)
        return {}
    found: Named = {}
    for path, item in _items(section, "secrets", "the name of an environment variable"):
        _secret(report, path, item, found)
    return found


def _shown(text: str) -> bool:
    return is_name(text) and not looks_like_value(text)


def _secret(report: Report, path: str, node: yaml.Node, found: Named) -> None:
    import yaml

    example = example_of("secrets")
    if not isinstance(node, yaml.ScalarNode):
        report.node(node, path, _NEVER, example=example)
    elif kind_of(node) == "null":
        report.node(node, path, f"{path}: an item is empty")
    elif not _shown(node.value):
        name = node.value.split("=")[0].split(":")[0].strip()
        cut = name != node.value and _shown(name)
        report.node(node, path, _NEVER, nearest=name if cut else None)
    elif node.value.upper().startswith(RESERVED):
        report.node(node, path, f"{path}: names that begin with {RESERVED} belong to gpuhop")
    elif node.value in found:
        report.node(node, path, f"{path}: {quote(node.value)} stands twice")
    else:
        found[node.value] = node


def apart(report: Report, env_names: Named, secret_names: Named) -> None:
    """A fault for each name that stands both in `env` and in `secrets`."""
    for name, node in secret_names.items():
        if name in env_names:
            line = env_names[name].start_mark.line + 1
            said = f"secrets: {quote(name)} stands in `env` too (line {line}): which one should the run see?"
            report.node(node, "secrets", said)
