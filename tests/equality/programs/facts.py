"""Everything that two equal trainings have in common, read from the live objects without the engine's own code."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import torch


def text_of(value: Any) -> Any:
    """A value with every bit of its tensors and arrays, as plain text and tuples."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8) if value.numel() else value
        digest = hashlib.sha256(raw.numpy().tobytes()).hexdigest()[:16]
        return (str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, digest)
    if isinstance(value, numpy.ndarray):
        return (value.dtype.str, value.shape, value.tobytes().hex())
    if isinstance(value, dict):
        return tuple((text_of(key), text_of(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(text_of(item) for item in value))
    return f"{type(value).__name__} {value!r}"


def facts(parts: Any) -> dict[str, str]:
    """What is what -> a hash of it."""
    model, optimizer = parts.model, parts.optimizer
    found: dict[str, Any] = {
        "parameters": {name: value for name, value in model.named_parameters(remove_duplicate=False)},
        "buffers": dict(model.named_buffers()),
        "mode": [name for name, part in model.named_modules() if part.training],
        "extra": getattr(model, "extra", None),
        "ties": [[a is b for b in model.parameters()] for a in model.parameters()],
        "gradients": [_gradient(p) for p in model.parameters()],
        "options": [{k: v for k, v in sorted(g.items()) if k != "params"} for g in optimizer.param_groups],
        "moments": [sorted(optimizer.state[p].items()) for g in optimizer.param_groups for p in g["params"]],
        "schedule": parts.schedule.state_dict() if parts.schedule is not None else None,
        "scaler": parts.scaler.state_dict() if parts.scaler is not None else None,
        "average": parts.average.state_dict() if parts.average is not None else None,
        "own": parts.own.get_state(),
        "notes": {k: sorted(v.items()) if isinstance(v, dict) else v for k, v in parts.notes.state_dict().items()},
        "notes' aliases": (parts.notes.trace is parts.notes.again, parts.notes.sums is parts.notes.total),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    return {name: hashlib.sha256(repr(text_of(value)).encode()).hexdigest()[:16] for name, value in found.items()}


def _gradient(parameter: torch.nn.Parameter) -> Any:
    """Gradients that an optimizer has used already are no state; whether there are any is."""
    return parameter.grad is not None
