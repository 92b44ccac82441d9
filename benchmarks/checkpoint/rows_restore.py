"""From this machine's disk back into the live training, every byte verified, beside loads that verify nothing."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.checkpoint.engine import Session, folder_address, manifest_key, work_folder
from benchmarks.checkpoint.meter import Series, optional
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, ms

RAW, PACKED = "gpuhop, raw, verified, to live tensors", "gpuhop, packed, verified, to live tensors"
LOAD, LIVE, DCP = "torch.load", "torch.load + load_state_dict", "DCP load into live tensors"


def rows(quick: bool) -> list[Row]:
    shape, rounds = ("3M", 3) if quick else ("25M", 9)
    torch.set_num_threads(1)
    training = Training(shape)
    folder = work_folder()
    keys = {RAW: _saved(training, folder / "raw", code=False), PACKED: _saved(training, folder / "packed", code=True)}
    acts, missing = _baselines(training, folder)
    for name, key in keys.items():
        acts[name] = functools.partial(_restore, training, folder / name.split(", ")[1], key)
    series = Series()
    for number in range(rounds + 1):
        if number == 1:
            series = Series()
        for name, act in acts.items():
            series.take(name, act)
    shutil.rmtree(folder, ignore_errors=True)
    return [_row(series, training.size(), missing, rounds)]


def _saved(training: Training, folder: Path, code: bool) -> str:
    session = Session(folder / "session", folder_address(folder / "store"))
    session.saver().save(training.tracked(), 1, last=True)
    shipper = session.shipper(code=code)
    assert shipper.ship_newest()
    session.close()
    return manifest_key(shipper)


def _restore(training: Training, folder: Path, key: str) -> None:
    """A session's own way: new slots, packs verified and decoded into one, from there into the objects."""
    session = Session(folder / "again", folder_address(folder / "store"))
    restored = session.fetch(key)
    session.saver(restored).restore(training.tracked())
    session.close()


def _baselines(training: Training, folder: Path) -> tuple[dict[str, Callable[[], object]], list[str]]:
    file, tensors = folder / "a.pt", folder / "a.safetensors"
    torch.save(training.state(), file)
    found: dict[str, Callable[[], object]] = {
        LOAD: lambda: torch.load(file),
        LIVE: lambda: training.load(torch.load(file)),
    }
    dcp = optional("torch.distributed.checkpoint")
    dcp.save(training.state(), checkpoint_id=folder / "dcp", no_dist=True)
    found[DCP] = lambda: dcp.load(training.state(), checkpoint_id=folder / "dcp", no_dist=True)
    package = optional("safetensors.torch")
    if package is None:
        return found, ["safetensors"]
    package.save_file(training.flat(), tensors)

    def load() -> None:
        live = training.flat()
        with torch.no_grad():
            for name, value in package.load_file(tensors).items():
                live[name].copy_(value)

    found["safetensors load_file + copy to live"] = load
    return found, []


def _row(series: Series, size: int, missing: list[str], rounds: int) -> Row:
    row = Row(
        f"verified restore from local disk, {size / 1e9:.2f} GB",
        "raw <= 1.3 x, packed <= 2.2 x torch.load; raw >= 3 x faster than DCP load",
        f"{rounds} each, in turns, files in the page cache",
    )
    base = series.wall(LOAD)
    for name in series.of:
        figures = f"wall {ms(series.wall(name))}, CPU {ms(series.cpu(name))}"
        row.add(name, figures, f"{series.wall(name) / base:.2f} x torch.load")
    for name in missing:
        row.missing(name)
    row.judge("raw x torch.load", series.wall(RAW) / base, 1.3)
    row.judge("packed x torch.load", series.wall(PACKED) / base, 2.2)
    row.judge("x faster than DCP load", series.wall(DCP) / series.wall(RAW), 3.0, at_least=True)
    return row
