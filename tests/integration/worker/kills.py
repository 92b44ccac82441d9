"""A job run over sessions that are killed at chosen moments, until it reaches its target."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.sessions import Bench, finish, kill
from tests.support.waiting import until

from gpuhop_worker import wire


@dataclass(frozen=True)
class Moment:
    """When to strike: after so many logged steps of the session, then at the first sign of `sign`."""

    steps: int
    sign: str  # step | save | half-saved | ship | half-shipped | term
    drain: bool = False


def moments(seed: int, count: int, steps: int) -> list[Moment]:
    """`count` moments, drawn from the seed alone."""
    draw = random.Random(seed)
    signs = ["step", "save", "half-saved", "ship", "half-shipped"]
    return [Moment(draw.randrange(1, steps), draw.choice(signs), drain=draw.random() < 0.25) for _ in range(count)]


def hop(bench: Bench, strikes: list[Moment], env: dict[str, str] | None = None, **changes: Any) -> list[str]:
    """Run sessions, one for each strike and then as many as it takes. Returns what happened in each."""
    story = []
    for strike in strikes:
        process = bench.start(bench.grant(**changes), env)
        story.append(_strike(bench, process, strike))
        if story[-1].startswith("target"):
            return story
    for _ in range(3):
        code, output = bench.run(env, **changes)
        assert code == 0, output
        story.append(bench.result().status)
        if bench.result().status == "target":
            return story
    raise AssertionError(f"no end: {story}")


def _strike(bench: Bench, process: subprocess.Popen[bytes], moment: Moment) -> str:
    """Wait for the moment and strike; a session that ends before it is no failure of the test."""
    sign = _SIGNS[moment.sign](bench, bench.token)
    seen = until(
        lambda: process.poll() is not None or (bench.steps_logged() >= moment.steps and sign()),
        60.0,
        f"{moment} of session {bench.token}",
        0.0005,
    )
    assert seen
    if moment.drain:
        process.send_signal(signal.SIGTERM)
        code, output = finish(process)
        assert code == 0, output
        return f"{bench.result().status} at {bench.result().step}"
    output = kill(process)
    assert "Traceback" not in output, output
    place = f"{moment.sign} after {moment.steps}"
    try:
        return f"{bench.result().status} before {place}"
    except FileNotFoundError:
        return f"killed: {place}"


def _any_step(bench: Bench, token: int) -> Callable[[], bool]:
    return lambda: True


def _saving(bench: Bench, token: int) -> Callable[[], bool]:
    return lambda: bool(bench.snapshots(token))


def _half_saved(bench: Bench, token: int) -> Callable[[], bool]:
    spool = bench.folder(token) / "spool"
    return lambda: any(not (spool / name / "draft.json").exists() for name in bench.snapshots(token))


def _shipping(bench: Bench, token: int) -> Callable[[], bool]:
    before = set(_keys(bench, token))
    return lambda: bool(set(_keys(bench, token)) - before)


def _half_shipped(bench: Bench, token: int) -> Callable[[], bool]:
    """A pack that no manifest names yet."""

    def sign() -> bool:
        keys = _keys(bench, token)
        packs = sum("pack-" in key for key in keys)
        return packs > sum("manifest-" in key for key in keys)

    return sign


def _keys(bench: Bench, token: int) -> list[str]:
    folder: Path = bench.store / wire.session_prefix(bench.job, token)
    return [p.name for p in folder.glob("*-*")] if folder.exists() else []


_SIGNS = {
    "step": _any_step,
    "save": _saving,
    "half-saved": _half_saved,
    "ship": _shipping,
    "half-shipped": _half_shipped,
}
