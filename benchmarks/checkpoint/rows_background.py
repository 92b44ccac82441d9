"""CPU of the runner's process per GB of state, from a whole snapshot to committed in a folder store."""

from __future__ import annotations

import shutil

import torch
from benchmarks.checkpoint.engine import Session, folder_address, work_folder
from benchmarks.checkpoint.meter import Series
from benchmarks.checkpoint.methods import fsync
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row

PLAIN, DURABLE = "torch.save", "torch.save + fsync"
RAW, PACKED = "gpuhop, raw", "gpuhop, packed"


def rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    shape, rounds = ("3M", 3) if quick else ("25M", 7)
    training = Training(shape)
    folder = work_folder()
    session = Session(folder / "session", folder_address(folder / "store"))
    saver, series = session.saver(), Series()
    file = folder / "a.pt"

    def save(durable: bool) -> None:
        torch.save(training.state(), file)
        if durable:
            fsync(file)

    for number in range(rounds + 1):
        if number == 1:
            series = Series()  # the first round only warms up
        for name in (PLAIN, RAW, DURABLE, PACKED):
            file.unlink(missing_ok=True)
            if name in (PLAIN, DURABLE):
                series.take(name, lambda durable=name == DURABLE: save(durable))  # type: ignore[misc]
                continue
            session.token += 1
            saver.save(training.tracked(), session.token, last=True)
            shipper = session.shipper(code=name == PACKED)
            series.take(name, shipper.ship_newest)
            shutil.rmtree(folder / "store")
    session.close()
    shutil.rmtree(folder, ignore_errors=True)
    return [_row(series, training.size() / 1e9, rounds)]


def _row(series: Series, size: float, rounds: int) -> Row:
    row = Row(f"background CPU per GB, {size:.2f} GB", "raw <= 1.5 x, packed <= 3 x torch.save", f"{rounds} each")
    base = series.cpu(PLAIN)
    for name in (PLAIN, DURABLE, RAW, PACKED):
        figures = f"{series.cpu(name) / size:.2f} CPU s/GB, wall {series.wall(name) / size:.2f} s/GB"
        row.add(name, figures, f"{series.cpu(name) / base:.2f} x")
    row.judge("raw x torch.save", series.cpu(RAW) / base, 1.5)
    row.judge("packed x torch.save", series.cpu(PACKED) / base, 3.0)
    return row
