"""Ways to save a training: gpuhop's and those beside it, all with the same three calls."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
from benchmarks.checkpoint.engine import Session
from benchmarks.checkpoint.meter import optional
from benchmarks.checkpoint.states import SHAPES, Training


class Method:
    """`save` is where the loop calls it, `join` stands right before the optimizer's step, `drain` waits for the end."""

    name = ""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder / type(self).__name__
        self.folder.mkdir(parents=True)

    def save(self) -> None:
        raise NotImplementedError

    def join(self) -> None:
        """What must be over before the state may change."""

    def drain(self) -> None:
        """Wait until the save is whole, and remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()


class Gpuhop(Method):
    name = "gpuhop, overlapped"
    window = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.session = Session(self.folder)
        self.saver = self.session.saver()
        if self.window:
            self.saver.hook(training.tracked())
        self.step = 0

    def save(self) -> None:
        self.step += 1
        self.saver.join_s = 0.0
        self.saver.save(self.training.tracked(), self.step)

    def join(self) -> None:
        self.saver.join()

    def drain(self) -> None:
        self.saver.join()
        self.session.clear()


class GpuhopNow(Gpuhop):
    """As with a loop that has no tracked optimizer: all is copied before training goes on."""

    name = "gpuhop, no window"
    window = False


class Copy(Method):
    name = "numpy copy into warm buffers (the limit)"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        values = [v.reshape(-1).view(torch.uint8).numpy() for v in training.flat().values() if v.dim()]
        # Two sets in turns, as the two slots: neither side may profit from what is still in the cache.
        self.pairs = [[(numpy.full_like(v, 1), v) for v in values] for _ in range(2)]

    def save(self) -> None:
        self.pairs.reverse()
        for target, source in self.pairs[0]:
            numpy.copyto(target, source)


class TorchSave(Method):
    name = "torch.save"

    def save(self) -> None:
        torch.save(self.training.state(), self.folder / "a.pt")


class DcpSave(Method):
    name = "DCP save"

    def save(self) -> None:
        _dcp().save(self.training.state(), checkpoint_id=self.folder / "dcp", no_dist=True)


class DcpAsync(Method):
    name = "DCP async_save (default)"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        _process_group()
        self.future: Any = None

    def save(self) -> None:
        self.future = _dcp().async_save(self.training.state(), checkpoint_id=self.folder / "dcp")

    def drain(self) -> None:
        if self.future is not None:
            getattr(self.future, "upload_completion", self.future).result()
        super().drain()


class DcpStaged(DcpAsync):
    name = "DCP async_save, staged (cached buffers)"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        staging = importlib.import_module("torch.distributed.checkpoint.staging")
        self.stager = staging.DefaultStager(staging.StagingOptions(False, False, False, False))

    def save(self) -> None:
        target = self.folder / "dcp"
        self.future = _dcp().async_save(self.training.state(), checkpoint_id=target, async_stager=self.stager)

    def join(self) -> None:
        if hasattr(self.future, "staging_completion"):
            self.future.staging_completion.result()


class Torchsnapshot(Method):
    name = "torchsnapshot async_take"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.package = importlib.import_module("torchsnapshot")
        self.pending: Any = None
        self.number = 0

    def save(self) -> None:
        self.number += 1
        target = str(self.folder / f"t{self.number}")
        self.pending = self.package.Snapshot.async_take(target, self.training.tracked())

    def drain(self) -> None:
        self.pending.wait()
        super().drain()


class Lightning(Method):
    name = "Lightning save_checkpoint"
    plugin = False

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        package = importlib.import_module("pytorch_lightning")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        plugins = importlib.import_module("pytorch_lightning.plugins.io")
        self.trainer = package.Trainer(
            max_steps=0,
            logger=False,
            enable_checkpointing=False,
            accelerator="cpu",
            plugins=[plugins.AsyncCheckpointIO()] if self.plugin else [],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        self.trainer.fit(_lightning_module(package, training), _no_data())

    def save(self) -> None:
        self.trainer.save_checkpoint(self.folder / "l.ckpt")

    def drain(self) -> None:
        executor = getattr(self.trainer.strategy.checkpoint_io, "_executor", None)
        if executor is not None:
            executor.submit(int).result()
        super().drain()


class LightningAsync(Lightning):
    name = "Lightning, AsyncCheckpointIO"
    plugin = True


class Transformers(Method):
    name = "Transformers Trainer._save_checkpoint"
    shape = "25M"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        package = importlib.import_module("transformers")
        package.logging.set_verbosity_error()
        size = SHAPES[self.shape]
        config = package.GPT2Config(
            vocab_size=size.get("vocab", 256),
            n_positions=size.get("context", 256),
            n_embd=size["width"],
            n_layer=size["depth"],
            n_head=size["heads"],
        )
        self.model = package.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        options = package.TrainingArguments(output_dir=str(self.folder), use_cpu=True, report_to=[], save_total_limit=1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        self.trainer = package.Trainer(self.model, options, optimizers=(optimizer, schedule))
        self.trainer.state.global_step = 1

    def save(self) -> None:
        self.trainer._save_checkpoint(self.model, None)


ALL: list[type[Method]] = [
    Gpuhop,
    GpuhopNow,
    Copy,
    DcpAsync,
    DcpStaged,
    DcpSave,
    Torchsnapshot,
    Lightning,
    LightningAsync,
    Transformers,
    TorchSave,
]


def make(kinds: list[type[Method]], training: Training, folder: Path, shape: str) -> tuple[list[Method], list[str]]:
    """(methods, lines about those that are not here)."""
    made, missing = [], []
    Transformers.shape = shape
    warnings.simplefilter("ignore")
    for kind in kinds:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                made.append(kind(training, folder))
        except ImportError:
            missing.append(f"{kind.name}: not installed")
        except Exception as error:  # a baseline that breaks here is said to, and the rest is measured
            missing.append(f"{kind.name}: fails: {error!r:.150}")
    return made, missing


def _lightning_module(package: Any, training: Training) -> Any:
    def configure(self: Any) -> Any:
        return training.optimizer

    def step(self: Any, rows: Any, number: int) -> Any:
        return self.net.norm.weight.sum() * 0

    made = type("Module", (package.LightningModule,), {"configure_optimizers": configure, "training_step": step})()
    made.net = training.model
    return made


def _no_data() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 1)))


def _dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")


def _process_group() -> None:
    dist = optional("torch.distributed")
    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
