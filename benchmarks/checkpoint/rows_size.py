"""Bytes that leave the machine, for a really trained AdamW state and for the one some steps later."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from benchmarks.checkpoint.engine import Session, folder_address, manifest_key, work_folder
from benchmarks.checkpoint.meter import Clock, optional
from benchmarks.checkpoint.states import APART, STEPS, Training, trained
from benchmarks.checkpoint.table import Row, mb

LIMITS = {"fp32": (0.84, 0.77), "bf16": (0.67, 0.50)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    found: list[Row] = []
    for kind, (first, later) in LIMITS.items():
        files = trained(kind)
        shipped, raw = _ship(kind, files)
        for number, limit in enumerate((first, later)):
            when = "first checkpoint" if number == 0 else f"next checkpoint {APART} steps later"
            row = Row(
                f"shipped bytes, {when}, {kind}",
                f"<= {limit:.2f} of raw",
                f"one state, {mb(raw)}, {STEPS} steps of AdamW",
            )
            row.add("gpuhop (manifest and packs)", mb(shipped[number]), f"{shipped[number] / raw:.3f}")
            _others(row, files[number], raw, kind)
            row.judge("of raw", shipped[number] / raw, limit, "{:.3f}")
            found.append(row)
    return found


def _ship(kind: str, files: tuple[Path, Path]) -> tuple[list[int], int]:
    """(shipped bytes of both checkpoints, raw bytes)"""
    training = Training("10M", DTYPES[kind])
    folder = work_folder()
    session = Session(folder / "session", folder_address(folder / "store"))
    saver, shipper = session.saver(), session.shipper(code=True)
    shipped = []
    for step, file in enumerate(files, 1):
        training.load(torch.load(file))
        saver.save(training.tracked(), step, last=True)
        assert shipper.ship_newest()
        manifest = (folder / "store" / manifest_key(shipper)).stat().st_size
        shipped.append(shipper.shipped_bytes + manifest)
    session.close()
    shutil.rmtree(folder, ignore_errors=True)
    return shipped, shipper.raw_bytes


def _others(row: Row, file: Path, raw: int, kind: str) -> None:
    """On the whole file that torch.save wrote."""
    data = file.read_bytes()
    zstandard = optional("zstandard")
    for level in (1, 3):
        if zstandard is None:
            row.missing(f"zstd-{level}")
            continue
        with Clock() as clock:
            size = len(zstandard.ZstdCompressor(level=level).compress(data))
        row.add(
            f"zstd-{level} on torch.save's file", f"{mb(size)}, {clock.sample.process:.2f} CPU s", f"{size / raw:.3f}"
        )
    zipnn = optional("zipnn")
    if zipnn is None:
        row.missing("zipnn")
        return
    width = {"fp32": "float32", "bf16": "bfloat16"}[kind]
    engine = zipnn.ZipNN(method="huffman", input_format="byte", bytearray_dtype=width, threads=1)
    with Clock() as clock:
        size = len(engine.compress(bytearray(data)))  # it writes into what it is given
    row.add("zipnn on torch.save's file", f"{mb(size)}, {clock.sample.process:.2f} CPU s", f"{size / raw:.3f}")
