"""gpuhop drill job.yaml"""

from __future__ import annotations

import random
from pathlib import Path

import click

from gpuhop.cli import output


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="job.yaml")
@click.option("--kills", type=click.IntRange(1, 20), default=3, show_default=True, help="Silent SIGKILLs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the moments.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("gpuhop-drill"), show_default=True)
def command(file: Path, kills: int, seed: int, folder: Path) -> None:
    """Run FILE on this machine twice: once with its sessions killed at random steps, once unbroken, and compare every
    tensor, every other piece of state and every logged value. Exit 1 when they differ: then something that your
    script depends on is not saved or not seeded. Needs a job in mode api with a target in steps."""
    from gpuhop.cli.demo import claim, play, show
    from gpuhop.demo import director
    from gpuhop.errors import Exit, InvalidInput
    from gpuhop.spec.parse import parse_file

    spec = parse_file(file, known_platforms=[*director.LAB_NAMES, "local"])
    if spec.target.steps is None or spec.checkpoint.mode != "api":
        raise InvalidInput("a drill needs mode api and a target in steps", f"gpuhop submit --dry-run {file}")
    claim(folder)
    draw = random.Random(seed)  # noqa: S311  chance, not secrecy
    moments = tuple(sorted(draw.uniform(0.1, 0.95) for _ in range(kills)))
    config = director.UNBROKEN.format(hour_s=2.0)
    home = folder.absolute()
    output.say(f"1. {spec.name}, {spec.target.steps} steps, killed {kills} times:")
    broken = play(home / "killed", config, file.absolute(), moments)
    output.say("\n2. The same job, unbroken:")
    unbroken = play(home / "unbroken", config, file.absolute(), ())
    rows = show(broken, unbroken)
    if any(not row.equal and row.what == "random generators" for row in rows):
        output.say(
            "   A generator that the script never seeds begins differently in each run: seed random, numpy and torch."
        )
    if not all(row.equal for row in rows):
        raise click.exceptions.Exit(Exit.FAILED)
