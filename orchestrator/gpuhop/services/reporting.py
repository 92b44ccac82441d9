"""One static HTML file about a job: the loss curve stitched over hops, the timeline of sessions. No server, no CDN."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.states import WORDS
from gpuhop.services.comparing import Row

_PALETTE = ("#3566c5", "#c2562d", "#2e8b57", "#8a4fbf", "#b58900", "#1f8a99", "#b03a6f", "#667085")
W, H, PAD = 960, 300, 44


@dataclass(frozen=True)
class Report:
    """What the page shows. `comparison` is empty where nothing was compared."""

    job: JobRow
    sessions: Sequence[SessionRow]
    metrics: Sequence[dict[str, Any]]
    comparison: Sequence[Row] = ()


def render(report: Report) -> str:
    """The whole page as text; everything that comes from a job is escaped."""
    colours = _colours(report.sessions)
    body = [
        f"<h1>{_e(report.job.name)} <small>{_e(report.job.id)}</small></h1>",
        f"<p>{_e(report.job.state.value)} at step {report.job.step}, {len(report.sessions)} sessions on "
        f"{len({s.platform for s in report.sessions})} platforms.</p>",
        _legend(colours),
        "<h2>Loss</h2>",
        _curve(report, colours),
        "<h2>Sessions</h2>",
        _timeline(report.sessions, colours),
        _table(report.sessions),
    ]
    if report.comparison:
        body += ["<h2>Hopped run against the unbroken run</h2>", _comparison(report.comparison)]
    return _PAGE.format(title=_e(report.job.id), body="\n".join(body))


def _e(text: object) -> str:
    return html.escape(str(text))


def _colours(rows: Sequence[SessionRow]) -> dict[str, str]:
    return {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(sorted({row.platform for row in rows}))}


def _legend(colours: dict[str, str]) -> str:
    items = [f'<span class="key"><i style="background:{c}"></i>{_e(name)}</span>' for name, c in colours.items()]
    return f'<p class="legend">{"".join(items)}</p>'


def _loss_name(metrics: Sequence[dict[str, Any]]) -> str | None:
    names = [
        k for row in metrics[:1] for k, v in row.items() if k not in ("step", "~token") and isinstance(v, int | float)
    ]
    return "loss" if "loss" in names else (names[0] if names else None)


def _curve(report: Report, colours: dict[str, str]) -> str:
    name = _loss_name(report.metrics)
    points = [(row["step"], float(row[name]), row["~token"]) for row in report.metrics if name and name in row]
    points = [p for p in points if p[1] == p[1] and abs(p[1]) != float("inf")]
    if len(points) < 2:
        return "<p>No logged values.</p>"
    platform = {row.token: row.platform for row in report.sessions}
    last = max(p[0] for p in points) or 1
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    high = high if high > low else low + 1.0

    def x(step: float) -> float:
        return PAD + (W - 2 * PAD) * step / last

    def y(value: float) -> float:
        return H - PAD + (2 * PAD - H) * (value - low) / (high - low)

    parts = [_axes(last, low, high, name or "", x, y)]
    for token in dict.fromkeys(p[2] for p in points):
        own = [p for p in points if p[2] == token]
        thin = own[:: max(1, len(own) // 400)]
        path = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v, _ in thin)
        colour = colours.get(platform.get(token, ""), "#667085")
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        parts.append(
            f'<line class="hop" x1="{x(own[0][0]):.1f}" x2="{x(own[0][0]):.1f}" y1="{PAD}" y2="{H - PAD}">'
            f"<title>t{token:04d} on {_e(platform.get(token, '?'))} from step {own[0][0]}</title></line>"
        )
    return f'<svg viewBox="0 0 {W} {H}" role="img" aria-label="{_e(name)} over steps">{"".join(parts)}</svg>'


def _axes(last: int, low: float, high: float, name: str, x: Any, y: Any) -> str:
    parts = []
    for i in range(5):
        value, step = low + (high - low) * i / 4, last * i / 4
        parts.append(f'<line class="grid" x1="{PAD}" x2="{W - PAD}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{PAD - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        parts.append(f'<text x="{x(step):.1f}" y="{H - PAD + 18}" text-anchor="middle">{step:.0f}</text>')
    parts.append(f'<text x="{W / 2}" y="{H - 6}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{PAD}" y="{PAD - 12}">{_e(name)}</text>')
    return "".join(parts)


def _span(row: SessionRow) -> tuple[datetime, datetime]:
    start = row.started_at or row.launched_at
    return row.launched_at, max(start, row.ended_at or start)


def _timeline(rows: Sequence[SessionRow], colours: dict[str, str]) -> str:
    if not rows:
        return "<p>No sessions.</p>"
    names = list(colours)
    first = min(_span(row)[0] for row in rows)
    whole = max((_span(row)[1] - first) / timedelta(seconds=1) for row in rows) or 1.0
    height = 28 * len(names) + 30

    def x(moment: datetime) -> float:
        return 110 + (W - 130) * ((moment - first) / timedelta(seconds=1)) / whole

    parts = [f'<text x="100" y="{28 * i + 22}" text-anchor="end">{_e(name)}</text>' for i, name in enumerate(names)]
    for row in rows:
        start, end = _span(row)
        width = max(2.0, x(end) - x(start))
        look = "" if row.state.value == "ended" else ' fill-opacity="0.45" stroke="#b42318" stroke-dasharray="3 2"'
        why = row.reason.value if row.reason else row.state.value
        parts.append(
            f'<rect x="{x(start):.1f}" y="{28 * names.index(row.platform) + 8}" width="{width:.1f}" height="20" rx="3" '
            f'fill="{colours[row.platform]}"{look}><title>t{row.token:04d}: steps {row.start_step} to '
            f"{max(row.step, row.saved_step)}, {_e(why)}</title></rect>"
        )
    parts.append(f'<text x="110" y="{height - 4}">0 h</text>')
    parts.append(f'<text x="{W - 20}" y="{height - 4}" text-anchor="end">{whole / 3600:.1f} h</text>')
    return f'<svg viewBox="0 0 {W} {height}" role="img" aria-label="sessions over time">{"".join(parts)}</svg>'


def _table(rows: Sequence[SessionRow]) -> str:
    head = "<tr><th>session</th><th>platform</th><th>steps</th><th>lost steps</th><th>ended because</th></tr>"
    lines = []
    for row in rows:
        lost = max(0, row.step - row.saved_step) if row.saved_step or row.step > row.start_step else 0
        why = WORDS[row.reason][0] if row.reason else row.state.value
        cells = [
            f"t{row.token:04d}",
            row.platform,
            f"{row.start_step} to {max(row.start_step, row.saved_step)}",
            str(lost),
            why,
        ]
        lines.append("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{head}{''.join(lines)}</table>"


def _comparison(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        word = "identical, bit for bit" if row.equal else f"{len(row.different)} differ: {', '.join(row.different[:3])}"
        mark = "same" if row.equal else "diff"
        lines.append(f'<tr><td>{_e(row.what)}</td><td>{row.count}</td><td class="{mark}">{_e(word)}</td></tr>')
    return f"<table><tr><th>what</th><th>pieces</th><th>result</th></tr>{''.join(lines)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; --ink: #1d2939; --dim: #667085; --line: #d0d5dd; --page: #fff; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e4e7ec; --dim: #98a2b3; --line: #344054; --page: #101828; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }}
h1 small {{ color: var(--dim); font-weight: 400; font-size: 60%; }} h2 {{ margin-top: 2rem; font-size: 1.1rem; }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: var(--dim); font-size: 12px; }}
.grid {{ stroke: var(--line); stroke-width: 0.5; }} .hop {{ stroke: var(--dim); stroke-dasharray: 2 3; }}
.key {{ margin-right: 1.2rem; }} .key i {{ display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }}
table {{ border-collapse: collapse; width: 100%; }} th, td {{ text-align: left; padding: 5px 10px;
  border-bottom: 1px solid var(--line); }} th {{ color: var(--dim); font-weight: 500; }}
.same {{ color: #2e8b57; }} .diff {{ color: #b42318; font-weight: 600; }}
</style></head><body>
{body}
</body></html>
"""
