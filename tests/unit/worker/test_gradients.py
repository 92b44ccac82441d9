"""Gradients between steps: kept while an optimizer has yet to use them, and only their existence afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpuhop_worker import gradients, torch_state
from gpuhop_worker.codec import StateError

pytestmark = pytest.mark.torch


def made(optimizer: Any = torch.optim.AdamW, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(9, 9).requires_grad_(False), nn.Linear(5, 5))
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1, **options)
    torch_state.before_steps({"o": optimizer}, lambda: None)
    return model, optimizer


def backward(model: Any) -> None:
    """The last layer takes no part."""
    model[1](model[0](torch.ones(2, 3))).square().sum().backward()


def carried(model: Any, optimizer: Any) -> tuple[Any, Any]:
    """The same in new objects, as a hop leaves them."""
    tracked = {"m": model, "o": optimizer}
    body, found = torch_state.capture(tracked)
    kept = {name: value.detach().clone() for name, value in found.tensors if isinstance(value, torch.Tensor)}
    kept |= {name: torch.from_numpy(value) for name, value in found.tensors if not isinstance(value, torch.Tensor)}
    other, again = made(type(optimizer))
    torch_state.restore({"m": other, "o": again}, dict(body, **{"~rng": _generators()}), lambda name, *own: kept[name])
    return other, again


def _generators() -> Any:
    from gpuhop_worker import codec

    return codec.encode({"python": torch_state.rng_state()["python"]})


def values(model: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]


def test_what_was_accumulated_is_carried() -> None:
    model, optimizer = made()
    backward(model)
    backward(model)
    other, _ = carried(model, optimizer)
    assert values(other) == values(model)
    backward(model)
    backward(other)
    assert values(other) == values(model)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_of_what_an_optimizer_has_used_only_the_existence_is(kind: Any) -> None:
    model, optimizer = made(kind)
    backward(model)
    optimizer.step()
    other, again = carried(model, optimizer)
    assert [g is None for g in values(other)] == [g is None for g in values(model)]
    assert not any(g is not None and torch.tensor(g).any() for g in values(other))
    # and so it is over the next hop
    assert gradients.capture({"m": other, "o": again}, {}) == gradients.capture({"m": model, "o": optimizer}, {})


def test_used_gradients_take_no_room() -> None:
    model, optimizer = made()
    backward(model)
    optimizer.step()
    _, found = torch_state.capture({"m": model, "o": optimizer})
    assert not [name for name, _ in found.tensors if name.startswith("~grads")]


def test_a_gradient_that_grew_or_was_cleared_after_its_use_is_state_again() -> None:
    model, optimizer = made()
    backward(model)
    optimizer.step()
    backward(model)
    assert values(carried(model, optimizer)[0]) == values(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert values(carried(model, optimizer)[0]) == values(model)
    optimizer.zero_grad()
    backward(model)  # in new memory, perhaps at the old place
    assert values(carried(model, optimizer)[0]) == values(model)


def test_gradients_of_a_script_that_warmed_up_are_cleared_when_none_were_saved() -> None:
    model, optimizer = made()
    body, found = torch_state.capture({"m": model, "o": optimizer})
    other, again = made()
    backward(other)
    kept = dict(found.tensors)
    torch_state.restore({"m": other, "o": again}, dict(body, **{"~rng": _generators()}), lambda name, *own: kept[name])
    assert values(other) == [None] * 8


def test_parameters_of_no_module_are_named_after_their_optimizer() -> None:
    free = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([free], lr=0.1)
    loss: Any = free.square().sum()
    loss.backward()
    assert list(gradients.capture({"o": optimizer}, {})["fresh"]) == ["o.group0.0"]


def test_sparse_gradients_are_refused_in_the_window_only() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer: Any = torch.optim.SparseAdam(table.parameters())
    torch_state.before_steps({"o": optimizer}, lambda: None)
    rows: Any = table(torch.tensor([1]))
    rows.sum().backward()
    with pytest.raises(StateError, match=r"~grads\.fresh\.m\.weight is a torch\.sparse_coo tensor"):
        torch_state.capture({"m": table, "o": optimizer})
    optimizer.step()
    body, _ = torch_state.capture({"m": table, "o": optimizer})
    assert body["~grads"] == {}
