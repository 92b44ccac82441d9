"""gpuhop demo"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.demo.director import Outcome
    from gpuhop.services.comparing import Row


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("gpuhop-demo"), show_default=True)
def command(folder: Path) -> None:
    """A real training hops over four simulated platforms with short sessions, a click and two silent kills; then the
    same job runs unbroken, and both are compared bit for bit. About two minutes; needs torch. The folder --dir is
    replaced."""
    from gpuhop.demo import director
    from gpuhop.errors import Exit

    claim(folder)
    began = time.monotonic()
    output.say(
        click.style("gpuhop demo", bold=True) + "  a 2-layer transformer on real text, PyTorch, this machine's CPU"
    )
    machine = director.measure()
    output.say(
        f"this machine makes a step in {machine.step_ms:.0f} ms; the job is {machine.steps} steps. "
        f"Lab clock: 1 hour = {machine.hour_s:.1f} s."
    )
    job_file = director.write_job(folder.absolute() / "job", machine.steps)
    home = folder.absolute()
    output.say("\n1. Hopping over kaggle, studiolab, oracle and colab (simulated), submitted once:")
    hopped = play(home / "hopped", director.HOPPED.format(hour_s=machine.hour_s), job_file, director.KILL_AT)
    output.say("\n2. The same job, unbroken, in one session:")
    unbroken = play(home / "unbroken", director.UNBROKEN.format(hour_s=machine.hour_s), job_file, ())
    rows = show(hopped, unbroken)
    page = _report(folder, hopped, rows)
    output.say(f"\nreport   {page}")
    output.say(f"look on  GPUHOP_HOME={folder / 'hopped'} gpuhop status demo   (or: logs demo)")
    output.say(f"took     {time.monotonic() - began:.0f} s")
    if not all(row.equal for row in rows):
        raise click.exceptions.Exit(Exit.FAILED)


_MARK = ".gpuhop-demo"


def claim(folder: Path) -> None:
    """Replace our own earlier demo, and nothing else."""
    from gpuhop.errors import InvalidInput

    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise InvalidInput(f"{folder} exists and is not an earlier demo", "gpuhop demo --dir ANOTHER_FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()


def play(home: Path, config: str, job_file: Path, kills: tuple[float, ...]) -> Outcome:
    from gpuhop.cli.demo_view import View
    from gpuhop.demo import director

    with director.stage(home, config, job_file, kills=kills) as stage, View(stage) as view:
        going = True
        while going:
            going = stage.turn(view.say)
            view.refresh()
            time.sleep(0.2)
        return stage.outcome()


def show(hopped: Outcome, unbroken: Outcome) -> list[Row]:
    from gpuhop.services.comparing import compare

    rows = compare(hopped.manifest, unbroken.manifest, hopped.metrics, unbroken.metrics)
    lost = sum(max(0, row.step - row.saved_step) for row in hopped.rows if row.state.value == "lost")
    output.say(
        f"\n3. {len(hopped.rows)} sessions on {len({row.platform for row in hopped.rows})} platforms against one "
        f"unbroken session ({lost} steps were lost to kills and trained again):"
    )
    table = [[row.what, str(row.count), _verdict(row)] for row in rows]
    output.say("\n".join(f"   {line}" for line in output.table(["WHAT", "PIECES", "RESULT"], table)))
    return rows


def _verdict(row: Row) -> str:
    if row.equal:
        return click.style("identical, bit for bit", fg="green")
    return click.style(f"{len(row.different)} differ: {', '.join(row.different[:3])}", fg="red")


def _report(folder: Path, hopped: Outcome, rows: list[Row]) -> Path:
    from gpuhop.services.reporting import Report, render

    page = folder / "report.html"
    page.write_text(render(Report(hopped.job, hopped.rows, hopped.metrics, rows)), encoding="utf-8")
    return page
