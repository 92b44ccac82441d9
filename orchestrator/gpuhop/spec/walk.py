"""Reading a composed tree key by key: every fault goes into one Report, and reading goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpuhop.spec.errors import SpecError, excerpt, printable, quote
from gpuhop.spec.masking import mask_secrets
from gpuhop.spec.schema import children, example_of, nearest_key
from gpuhop.spec.source import split_lines
from gpuhop.spec.values import Bad

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")

_TAG = "tag:yaml.org,2002:"
_WORDS = {
    "int": "the number",
    "float": "the number",
    "bool": "the truth value",
    "timestamp": "the date",
}
_SCALARS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "merge", "value"})


class Report:
    """Collects the faults of one file. `errors` grows; the excerpts are cut from the masked source."""

    def __init__(self, source: str) -> None:
        self.errors: list[SpecError] = []
        self._lines = mask_secrets(split_lines(source))

    def at(
        self,
        line: int,
        col: int,
        path: str,
        message: str,
        *,
        nearest: str | None = None,
        example: str | None = None,
    ) -> None:
        """Add a fault at a place that counts from 1."""
        line = min(max(line, 1), len(self._lines))
        shown = excerpt(self._lines[line - 1], col)
        near = None if nearest is None else printable(nearest)
        self.errors.append(SpecError(line, col, path, printable(message), shown, near, example))

    def node(
        self,
        node: yaml.Node,
        path: str,
        message: str,
        *,
        nearest: str | None = None,
        example: str | None = None,
    ) -> None:
        """Add a fault where `node` begins; the example is the schema's unless one is given."""
        mark = node.start_mark
        self.at(
            mark.line + 1,
            mark.column + 1,
            path,
            message,
            nearest=nearest,
            example=example or example_of(path),
        )


def kind_of(node: yaml.Node) -> str:
    """YAML's short name for a node: str, int, float, bool, null, timestamp, map, seq, or a foreign tag."""
    return node.tag.removeprefix(_TAG)


def describe(node: yaml.Node) -> str:
    """What a node is, for `expected ..., got ...`."""
    import yaml

    tagged = "" if kind_of(node) in ("map", "seq") else f" with the tag {quote(node.tag)}"
    if isinstance(node, yaml.MappingNode):
        return f"a mapping{tagged}"
    if isinstance(node, yaml.SequenceNode):
        return f"a list{tagged}"
    if kind_of(node) == "null":
        return "nothing"
    return f"{_WORDS.get(kind_of(node), 'the text')} {quote(str(node.value))}"


def mapping(report: Report, node: yaml.Node, path: str, wanted: str) -> yaml.MappingNode | None:
    """The node if it is a plain mapping; else None, and a fault."""
    import yaml

    if isinstance(node, yaml.MappingNode) and kind_of(node) == "map":
        return node
    report.node(node, path, f"{path}: expected {wanted}, got {describe(node)}")
    return None


def sequence(report: Report, node: yaml.Node, path: str, wanted: str) -> yaml.SequenceNode | None:
    """The node if it is a plain list; else None, and a fault."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and kind_of(node) == "seq":
        return node
    report.node(node, path, f"{path}: expected {wanted}, got {describe(node)}")
    return None


def scalar_text(report: Report, node: yaml.Node, path: str, wanted: str) -> str | None:
    """The text of a scalar as it stands in the source; None, and a fault, when it is none or empty."""
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        report.node(node, path, f"{path}: expected {wanted}, got {describe(node)}")
        return None
    if kind_of(node) == "null":
        report.node(node, path, f"{path}: expected {wanted}, got nothing: give a value or remove it")
        return None
    if kind_of(node) not in _SCALARS:
        report.node(node, path, f"{path}: the tag {quote(node.tag)} cannot be used here: write {wanted} without a tag")
        return None
    return str(node.value)


class Section:
    """One mapping of the file, checked: no unknown, repeated, empty or non-text key. `path` is "" on top."""

    def __init__(self, report: Report, node: yaml.MappingNode, path: str) -> None:
        self.report = report
        self.path = path
        self.root = node
        self._values: dict[str, yaml.Node] = {}
        self._keys: dict[str, yaml.Node] = {}
        self.meant: set[str] = set()  # keys of this section that an unknown one probably stands for
        known = {row.name for row in children(path)}
        for key_node, value in node.value:
            name = self._key(key_node)
            if name is None:
                continue
            if name not in known:
                self._unknown(key_node, name)
            elif kind_of(value) == "null":
                said = f"{self.sub(name)}: no value: give one or remove the key"
                self.report.node(key_node, self.sub(name), said)
                self._keys[name] = key_node
            else:
                self._keys[name], self._values[name] = key_node, value

    def sub(self, name: str) -> str:
        """The dotted path of a key of this section."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """True when the key is written, with or without a usable value."""
        return name in self._keys

    def value(self, name: str) -> yaml.Node | None:
        """The node of a key's value."""
        return self._values.get(name)

    def key(self, name: str) -> yaml.Node:
        """The node of a written key itself."""
        return self._keys[name]

    def names(self) -> list[str]:
        """The known keys that are written, in the order of the file."""
        return list(self._keys)

    def scalar(self, name: str, read: Callable[[str], T], default: T, wanted: str) -> T:
        """A key's value by `read`; `default` when it is not written, or is no use (then a fault is noted)."""
        node = self.value(name)
        if node is None:
            return default
        found = scalar_text(self.report, node, self.sub(name), wanted)
        return default if found is None else apply(self.report, node, self.sub(name), read, found, default)

    def text(self, name: str, read: Callable[[str], T], default: T) -> T:
        """As `scalar`, for keys that hold text: a number, a date or true/false must be quoted."""
        node = self.value(name)
        if node is not None and kind_of(node) in ("int", "float", "bool", "timestamp"):
            value = str(node.value)
            said = f"{self.sub(name)}: expected text, got {describe(node)}: put it in quotes"
            self.report.node(node, self.sub(name), said, nearest=f'{name}: "{value[:40]}"')
            return default
        return self.scalar(name, read, default, "text")

    def section(self, name: str) -> Section | None:
        """A key's value as a section; None when it is not written or no mapping (then a fault is noted)."""
        node = self.value(name)
        found = None if node is None else mapping(self.report, node, self.sub(name), "a mapping")
        return None if found is None else Section(self.report, found, self.sub(name))

    def _key(self, node: yaml.Node) -> str | None:
        name = key_text(self.report, node, self.path)
        if name is not None and name in self._keys:
            first = self._keys[name].start_mark.line + 1
            said = f"{self.sub(name)}: the key stands twice, first in line {first}"
            self.report.node(node, self.sub(name), said)
            return None
        return name

    def _unknown(self, node: yaml.Node, name: str) -> None:
        names = ", ".join(row.name for row in children(self.path))
        where = f" in {self.path}" if self.path else ""
        near = nearest_key(name, self.path)
        if name == "<<":
            said = "merging with `<<` is not supported: write the keys out"
        elif near is None:
            said = f"unknown key {quote(name)}{where}; the keys here are: {names}"
        else:
            said = f"unknown key {quote(name)}{where}"
        full = None if near is None else (near if "." in near or not self.path else self.sub(near))
        example = None if full is None else (example_of(full) or example_of(near or ""))
        if near is not None:
            self.meant.add(near)
        self.report.node(node, self.sub(printable(name[:64])), said, nearest=near, example=example)


def key_text(report: Report, node: yaml.Node, path: str) -> str | None:
    """A mapping's key as text; None, and a fault, when it is a list, a mapping or empty."""
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        report.node(node, path, f"a key must be plain text, not {describe(node)}")
        return None
    if not node.value.strip():
        report.node(node, path, "a key is empty")
        return None
    return str(node.value)


def apply(report: Report, node: yaml.Node, path: str, read: Callable[[str], T], value: str, default: T) -> T:
    """`read(value)`; `default`, and a fault at `node`, when it raises Bad."""
    try:
        return read(value)
    except Bad as bad:
        report.node(node, path, f"{path}: {bad.message}", nearest=bad.nearest)
        return default
