"""Optimizers, schedules and averages by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.equality.programs.spec import Program
from torch.optim import lr_scheduler as lr

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.05}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.01}),
    "amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adagrad": ("Adagrad", {"lr": 0.05}),
    "nadam": ("NAdam", {"lr": 0.01}),
    "radam": ("RAdam", {"lr": 0.02}),
    "adamax": ("Adamax", {"lr": 0.01}),
    "adadelta": ("Adadelta", {"lr": 0.5}),
    "asgd": ("ASGD", {"lr": 0.02, "t0": 2.0}),
    "rprop": ("Rprop", {"lr": 0.01}),
    "adafactor": ("Adafactor", {"lr": 0.02}),
}
FUSED = ("sgd", "momentum", "adam", "amsgrad", "adamw", "adagrad")

SCHEDULES: dict[str, Callable[[Any, int], Any]] = {
    "": lambda optimizer, total: None,
    "step": lambda optimizer, total: lr.StepLR(optimizer, 3, 0.5),
    "cosine": lambda optimizer, total: lr.CosineAnnealingLR(optimizer, T_max=total),
    "onecycle": lambda optimizer, total: lr.OneCycleLR(
        optimizer,
        max_lr=0.05,
        total_steps=total + 1,
        cycle_momentum="betas" in optimizer.defaults or "momentum" in optimizer.defaults,
    ),
    "lambda": lambda optimizer, total: lr.LambdaLR(optimizer, lambda n: 0.9**n),
    "sequential": lambda optimizer, total: lr.SequentialLR(
        optimizer, [lr.LinearLR(optimizer, 0.1, total_iters=3), lr.CosineAnnealingLR(optimizer, T_max=6)], [3]
    ),
    "plateau": lambda optimizer, total: lr.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3),
    "restarts": lambda optimizer, total: lr.CosineAnnealingWarmRestarts(optimizer, T_0=3),
    "chained": lambda optimizer, total: lr.ChainedScheduler(
        [lr.ConstantLR(optimizer, 0.5, 4), lr.ExponentialLR(optimizer, 0.9)], optimizer=optimizer
    ),
    "cyclic": lambda optimizer, total: lr.CyclicLR(optimizer, 0.001, 0.05, step_size_up=3, cycle_momentum=False),
}


def make_optimizer(program: Program, model: torch.nn.Module) -> Any:
    kind, options = OPTIMIZERS[program.optimizer]
    options = dict(options, maximize=program.maximize)
    if program.impl:
        options |= {"foreach": program.impl == "foreach"}
        options |= {"fused": True, "foreach": None} if program.impl == "fused" else {}
    parts = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": parts}]
    if program.groups > 1:
        groups = [{"params": parts[:1], "weight_decay": 0.1}, {"params": parts[1:2], "lr": 0.003}]
        groups.append({"params": parts[2:], "weight_decay": 0.0})
        groups = [group for group in groups if group["params"]][: program.groups + 1]
    return getattr(torch.optim, kind)(groups, **options)


class Average:
    """A hand-made average of weights: a dict of tensors and a few Python objects."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.count = 0
        self.history: list[tuple[int, float]] = []

    def update_parameters(self, model: torch.nn.Module) -> None:
        self.count += 1
        rate = 1 / (1 + self.count)
        for name, value in model.named_parameters():
            self.shadow[name].lerp_(value.detach(), rate)
        self.history = [*self.history[-3:], (self.count, rate)]

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "count": self.count, "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.count, self.history = state["shadow"], state["count"], state["history"]


def make_average(program: Program, model: torch.nn.Module) -> Any:
    if program.ema == "averaged":
        average: Any = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        return torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=True)
    return Average(model) if program.ema else None
