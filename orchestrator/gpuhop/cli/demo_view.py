"""What the demo shows while it runs: quota bars, the session, a progress bar; plain lines through a pipe."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpuhop.cli import quota
from gpuhop.db.records import SessionRow
from gpuhop.demo.director import Stage
from gpuhop.domain.states import LIVE_SESSIONS
from gpuhop.engine import observe
from gpuhop.services import streams


class View:
    """A context manager around one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._told: set[str] = set()
        self._turns = 0
        self._loss: float | None = None

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text(f"   {text}", style="red" if "SIGKILL" in text else "magenta"))

    def refresh(self) -> None:
        rows = self._stage.rows()
        for row in rows:
            self._tell(row)
        self._turns += 1
        if self._turns % 5 == 0:
            self._loss = self._newest_loss(rows)
        if self._console.is_terminal:
            self._live.update(self._screen(rows), refresh=True)
        sys.stdout.flush()

    def _tell(self, row: SessionRow) -> None:
        """One line when a session begins and one when it ends; they scroll above the live part."""
        begin, end = f"{row.name} begins", f"{row.name} {row.state.value}"
        if row.started_at is not None and begin not in self._told:
            self._told.add(begin)
            self._console.print(Text(f"   t{row.token:04d} on {row.platform}: begins at step {row.start_step}"))
        if row.state not in LIVE_SESSIONS and end not in self._told:
            self._told.add(end)
            why = row.reason.value if row.reason else ""
            safe = max(row.saved_step, row.start_step)
            text = f"   t{row.token:04d} on {row.platform}: {row.state.value} ({why}), safe at step {safe}"
            self._console.print(Text(text, style="dim"))

    def _newest_loss(self, rows: list[SessionRow]) -> float | None:
        live = [row for row in rows if row.started_at is not None]
        found = streams.metrics(self._stage.app.store, live[-1:]) if live else []
        return found[-1].get("loss", self._loss) if found else self._loss

    def _screen(self, rows: list[SessionRow]) -> Group:
        app = self._stage.app
        with app.db.read() as c:
            world = observe.world(app.parts, c)
        live = next((row for row in rows if row.state in LIVE_SESSIONS), None)
        step = max(self._stage.job().step, live.step if live else 0)
        where = f"{live.platform} t{live.token:04d} ({live.state.value})" if live else self._stage.job().state.value
        line = Table.grid(padding=(0, 2))
        loss = f"loss {self._loss:.3f}" if self._loss is not None else ""
        line.add_row(
            ProgressBar(total=self._stage.target, completed=step, width=40), f"{step}/{self._stage.target}", where, loss
        )
        bars = Text.from_ansi("\n".join(quota.lines(world)[:-2]))
        return Group(Text(), line, Text(), bars)
