"""One peak of memory in a fresh process: prints bytes beyond the live training.

Counted: private memory of the process (and of the runner's) plus the slots, once. What the kernel would give back
(page cache) is not counted; packages are imported and have run once on a small state before the count begins.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.checkpoint import methods
from benchmarks.checkpoint.engine import Session, folder_address, manifest_key, work_folder
from benchmarks.checkpoint.meter import optional
from benchmarks.checkpoint.runner_side import Runner
from benchmarks.checkpoint.states import Training


class Peak:
    """Polls while it is open. `paths`: memory that processes share, counted by its own size."""

    def __init__(self, pids: list[int], paths: list[str]) -> None:
        self._pids, self._paths = pids, paths
        self.start = self.peak = self.now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def now(self) -> int:
        private = sum(_private(pid, shared=not self._paths) for pid in self._pids)
        return private + sum(Path(path).stat().st_blocks * 512 for path in self._paths if Path(path).exists())

    def _poll(self) -> None:
        while not self._over.wait(0.005):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.peak - self.start


def _private(pid: int, *, shared: bool) -> int:
    """Anonymous memory. `shared`: also what is mapped of memory that processes may share."""
    text = Path(f"/proc/{pid}/status").read_text()
    kinds = "Anon|Shmem" if shared else "Anon"
    return sum(1024 * int(size) for size in re.findall(rf"Rss(?:{kinds}):\s+(\d+)", text))


def _settle() -> None:
    """Give freed memory back, so that what comes next is not served from it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def probe(name: str, shape: str) -> None:
    torch.set_num_threads(1)
    folder = work_folder()
    try:
        print(json.dumps(PROBES[name](shape, folder)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


# ---------------------------------------------------------------- saves


def _gpuhop_save(nth: int) -> Callable[[str, Path], int]:
    def measure(shape: str, folder: Path) -> int:
        from gpuhop_worker.saving import Saver

        child = Runner(folder / "session", "on")
        training = Training(shape)
        saver = Saver(child.config)
        saver.hook(training.tracked())
        _settle()
        spool = Path(child.config["spool"])
        peak = Peak([os.getpid(), child.process.pid], list(child.config["slots"].values()))
        with peak:
            for step in range(nth):
                saver.save(training.tracked(), step + 1)
                saver.join()
                while any(spool.iterdir()):
                    time.sleep(0.01)
                _nudge(training)
        child.close()
        return peak.growth

    return measure


def _nudge(training: Training) -> None:
    """Other values everywhere, without the memory that a step takes."""
    with torch.no_grad():
        for value in training.flat().values():
            value.mul_(1.001)


def _other_save(kind: type[methods.Method]) -> Callable[[str, Path], int]:
    def measure(shape: str, folder: Path) -> int:
        warm = kind(Training("tiny"), folder / "warm")
        warm.save()
        warm.drain()
        training = Training(shape)
        method = kind(training, folder / "real")
        _settle()
        with Peak([os.getpid()], []) as peak:
            for _ in range(2):
                method.save()
                method.join()
                method.drain()
        return peak.growth

    return measure


# ---------------------------------------------------------------- restores


def _gpuhop_restore(shape: str, folder: Path) -> int:
    key = _fork_save(shape, folder)
    _gpuhop_once("tiny", folder / "warm", _fork_save("tiny", folder / "warm"))
    return _gpuhop_once(shape, folder, key)


def _gpuhop_once(shape: str, folder: Path, key: str) -> int:
    training = Training(shape, moments=False)
    session = Session(folder / "again", folder_address(folder / "store"))
    _settle()
    with Peak([os.getpid()], list(session.keeper.paths.values())) as peak:
        restored = session.fetch(key)
        session.saver(restored).restore(training.tracked())
    session.close()
    return peak.growth - _moments(training)


def _moments(training: Training) -> int:
    """They are not there before a restore and are after it, whoever restores."""
    weights = sum(p.numel() * p.element_size() for p in training.model.parameters())
    return training.size() - weights


def _fork_save(shape: str, folder: Path) -> str:
    """Save in a child, so that nothing of it stays in this process' memory."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        session = Session(folder / "session", folder_address(folder / "store"))
        session.saver().save(Training(shape).tracked(), 1, last=True)
        shipper = session.shipper(code=True)
        shipper.ship_newest()
        os.write(writer, manifest_key(shipper).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(reader, 1000).decode()


def _torch_load(shape: str, folder: Path) -> int:
    file = folder / "a.pt"
    pid = os.fork()
    if pid == 0:
        torch.save(Training(shape).state(), file)
        os._exit(0)
    os.waitpid(pid, 0)
    training = Training(shape, moments=False)
    _settle()
    with Peak([os.getpid()], []) as peak:
        training.load(torch.load(file))
    return peak.growth - _moments(training)


def _dcp_load(shape: str, folder: Path) -> int:
    dcp = optional("torch.distributed.checkpoint")
    training = Training(shape)
    dcp.save(training.state(), checkpoint_id=folder / "dcp", no_dist=True)
    _settle()
    with Peak([os.getpid()], []) as peak:
        dcp.load(training.state(), checkpoint_id=folder / "dcp", no_dist=True)
    return peak.growth


PROBES: dict[str, Callable[[str, Path], int]] = {
    "gpuhop, first save": _gpuhop_save(1),
    "gpuhop, third save": _gpuhop_save(3),
    "DCP async_save (default)": _other_save(methods.DcpAsync),
    "DCP async_save, staged": _other_save(methods.DcpStaged),
    "torchsnapshot async_take": _other_save(methods.Torchsnapshot),
    "Lightning, AsyncCheckpointIO": _other_save(methods.LightningAsync),
    "torch.save": _other_save(methods.TorchSave),
    "gpuhop restore": _gpuhop_restore,
    "torch.load + load_state_dict": _torch_load,
    "DCP load into live tensors": _dcp_load,
}
RESTORES = {"gpuhop restore", "torch.load + load_state_dict", "DCP load into live tensors"}
