"""Rows of the table: what was measured, what stands beside it, and whether the target was met."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Line:
    """One method's figures."""

    method: str
    figures: str
    ratio: str = ""


@dataclasses.dataclass
class Row:
    """`value` and `limit` are in the same unit: the target is met while value <= limit (>= for `at_least`)."""

    what: str
    target: str
    samples: str = ""
    lines: list[Line] = dataclasses.field(default_factory=list)
    verdicts: list[str] = dataclasses.field(default_factory=list)

    def add(self, method: str, figures: str, ratio: str = "") -> None:
        self.lines.append(Line(method, figures, ratio))

    def missing(self, method: str, why: str = "not installed") -> None:
        self.lines.append(Line(method, why))

    def judge(self, what: str, value: float, limit: float, form: str = "{:.2f}", *, at_least: bool = False) -> None:
        """Hold one figure against its limit."""
        met = value >= limit if at_least else value <= limit
        sign = ">=" if at_least else "<="
        text = f"{what} {form.format(value)} ({sign} {form.format(limit)})"
        self.verdicts.append(f"{text} {'ok' if met else 'MISSED'}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Row:
        lines = [Line(**line) for line in body.pop("lines")]
        return cls(**body, lines=lines)

    @property
    def met(self) -> bool:
        return bool(self.verdicts) and all(verdict.endswith(" ok") for verdict in self.verdicts)

    def text(self) -> str:
        """For the terminal."""
        out = [f"\n{self.what}   [{self.samples}]", f"  target: {self.target}"]
        out += [f"    {line.method:<44} {line.figures:<58} {line.ratio}".rstrip() for line in self.lines]
        out += [f"  => {verdict}" for verdict in self.verdicts]
        return "\n".join(out)

    def markdown(self) -> str:
        out = [f"### {self.what}", "", f"Target: {self.target}. Samples: {self.samples}.", ""]
        out += ["| method | measured | ratio |", "| --- | --- | --- |"]
        out += [f"| {line.method} | {line.figures} | {line.ratio} |" for line in self.lines]
        out += ["", *(f"- {verdict}" for verdict in self.verdicts), ""]
        return "\n".join(out)


def mb(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
