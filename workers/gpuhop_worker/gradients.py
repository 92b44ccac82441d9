"""Gradients between two steps: state while they are being accumulated, rubbish once an optimizer has used them.

A step of the session may be one of several backward passes before an optimizer acts (accumulation), and a GradScaler
may leave an optimizer's step out. Gradients that changed since an optimizer used them are saved. Of the others only
their existence counts: an optimizer passes over a parameter whose gradient is None, and not over one of zeros.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

import torch

_USED = "_gpuhop_used"  # on a gradient tensor: its version when an optimizer used it


def mark_used(optimizer: torch.optim.Optimizer) -> None:
    """Call after each step of the optimizer."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradient.__dict__[_USED] = gradient._version


def capture(tracked: Dict[str, Any], names: Dict[int, str]) -> Dict[str, Any]:
    """{} when there are none, else `fresh`: name -> gradient; `used`: names, or True for all the rest."""
    fresh, used, none = {}, [], False
    for name, parameter in _parameters(tracked, names):
        gradient = parameter.grad
        if gradient is None or (gradient.layout != torch.strided and _is_used(gradient)):
            none = True
        elif _is_used(gradient):
            used.append(name)
        else:
            fresh[name] = gradient
    return {"fresh": fresh, "used": used if none else True} if fresh or used else {}


def _is_used(gradient: torch.Tensor) -> bool:
    return gradient.__dict__.get(_USED) == gradient._version


def restore(tracked: Dict[str, Any], names: Dict[int, str], state: Dict[str, Any]) -> None:
    """Write what `capture` gave. Used gradients come back as zeros: nothing but their existence may count."""
    fresh, used = state.get("fresh", {}), state.get("used", [])
    for name, parameter in _parameters(tracked, names):
        if name in fresh:
            parameter.grad = fresh[name].to(parameter.device)
        elif used is True or name in used:
            parameter.grad = torch.zeros_like(parameter)
            mark = parameter.grad
            mark.__dict__[_USED] = mark._version
        else:
            parameter.grad = None


def _parameters(tracked: Dict[str, Any], names: Dict[int, str]) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """Every parameter of the tracked modules and optimizers that takes gradients, once."""
    seen = set()
    for title, thing in tracked.items():
        if isinstance(thing, torch.nn.Module):
            found = [(f"{title}.{name}", parameter) for name, parameter in thing.named_parameters()]
        elif isinstance(thing, torch.optim.Optimizer):
            found = [
                (f"{title}.group{number}.{place}", parameter)
                for number, group in enumerate(thing.param_groups)
                for place, parameter in enumerate(group["params"])
            ]
        else:
            continue
        for name, parameter in found:
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield names.get(id(parameter), name), parameter
