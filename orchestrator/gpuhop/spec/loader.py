"""PyYAML's SafeLoader with limits. Import this late: it imports yaml."""

from __future__ import annotations

from typing import Any

import yaml

from gpuhop.spec.source import MAX_ALIASED, MAX_DEPTH, BadSource


class Loader(yaml.SafeLoader):
    """Refuses, while it composes, what would be too deep or would grow through aliases. Raises BadSource."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._aliased = 0
        self._measure: dict[int, tuple[int, int]] = {}  # id of a finished node -> nodes in it, levels in it

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        _limit(self._depth, event.start_mark)
        node = super().compose_node(parent, index)
        if node is not None and isinstance(event, yaml.AliasEvent):
            self._follow(node, event.start_mark)
        elif node is not None:
            self._measure[id(node)] = self._size(node)
        self._depth -= 1
        return node

    def _follow(self, node: yaml.Node, mark: Any) -> None:
        """Count what an alias adds. A node without a measure is still open: the alias stands inside it."""
        if id(node) not in self._measure:
            raise _bad(mark, "this alias refers to a value that it is part of")
        nodes, levels = self._measure[id(node)]
        self._aliased += nodes
        _limit(self._depth + levels - 1, mark)
        if self._aliased > MAX_ALIASED:
            raise _bad(mark, f"aliases add more than {MAX_ALIASED} values here: write the values out")

    def _size(self, node: yaml.Node) -> tuple[int, int]:
        below: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            below = list(node.value)
        elif isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        sizes = [self._measure[id(part)] for part in below]
        return 1 + sum(nodes for nodes, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)


def _limit(depth: int, mark: Any) -> None:
    if depth > MAX_DEPTH:
        raise _bad(mark, f"more than {MAX_DEPTH} levels of nesting")


def _bad(mark: Any, message: str) -> BadSource:
    return BadSource(mark.line + 1, mark.column + 1, message)
