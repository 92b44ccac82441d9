"""Torch objects: every bit comes back; what does not fit is named, all of it, and nothing is changed."""

from __future__ import annotations

import ctypes
import json
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support import states
from tests.support.states import Shelf
from torch import nn

from gpuhop_worker import containers, restore, torch_state
from gpuhop_worker.codec import StateError
from gpuhop_worker.plain_state import RestoreMismatch
from gpuhop_worker.saving import tensor_source
from gpuhop_worker.slots import Slot
from gpuhop_worker.wire import Manifest

pytestmark = pytest.mark.torch


class Store:
    """Saves and restores through real packs and a real manifest."""

    def __init__(self, folder: Any) -> None:
        self.slot = Slot(str(folder / "slot"))
        self.shelf = Shelf()
        self.manifest: Manifest | None = None

    def save(self, **tracked: Any) -> None:
        body, found = torch_state.capture(tracked)
        parts: list[states.Part] = []
        for (name, value), size, address in zip(found.tensors, found.sizes, found.addresses, strict=True):
            entry = torch_state.entry_of(name, value)
            raw = bytes(torch_state.bytes_of(value))
            assert len(raw) == size
            assert not address or ctypes.string_at(address, size) == raw
            parts.append((entry, raw, *containers.number_of(entry["dtype"])))
        parts += [({"name": name, "alias": target}, b"", 1, False) for name, target in found.aliases]
        self.manifest, _, _ = states.save(self.shelf, parts, None, self.slot, body, block=304, pack=1000)

    def load(self, **tracked: Any) -> None:
        assert self.manifest is not None
        restored = restore.fill(self.manifest, self.shelf, self.slot)
        source = tensor_source(torch_state, self.manifest, self.slot, restored.offsets)
        torch_state.restore(tracked, self.manifest.state, source)

    def problems(self, **tracked: Any) -> list[str]:
        """The differences that a load is refused with. Nothing of `tracked` may have changed."""
        before = fingerprint(tracked)
        with pytest.raises(RestoreMismatch) as caught:
            self.load(**tracked)
        assert fingerprint(tracked) == before
        return caught.value.differences


@pytest.fixture
def store(tmp_path: Any) -> Store:
    return Store(tmp_path)


def bits(value: Any) -> tuple[str, list[int], list[int], bytes]:
    return str(value.dtype), list(value.shape), list(value.stride()), bytes(torch_state.tensor_bytes(value))


def fingerprint(tracked: dict[str, Any]) -> str:
    body, found = torch_state.capture(tracked)
    return json.dumps(body) + repr([(name, bits(v) if hasattr(v, "stride") else v) for name, v in found.tensors])


class Box:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


TENSORS: dict[str, Callable[[], Any]] = {
    "bf16": lambda: torch.randn(7, 3).bfloat16(),
    "f16": lambda: torch.randn(5).half(),
    "f64": lambda: torch.randn(5, dtype=torch.float64),
    "float8": lambda: torch.randn(8).to(torch.float8_e4m3fn),
    "bool": lambda: torch.tensor([True, False, True]),
    "uint8": lambda: torch.arange(256, dtype=torch.uint8),
    "int64": lambda: torch.tensor([-(2**63), 2**63 - 1]),
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "conjugate view": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "negative view": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "0-d": lambda: torch.tensor(3.25),
    "0-d int": lambda: torch.tensor(7),
    "empty": lambda: torch.empty(0),
    "empty with a shape": lambda: torch.empty(3, 0, 2, dtype=torch.bfloat16),
    "nan payloads": lambda: torch.tensor([0x7FC00001, -4194303, 0x7F800001], dtype=torch.int32).view(torch.float32),
    "signed zero and tiny": lambda: torch.tensor([-0.0, 0.0, 1e-45, -1e-45, math.inf, -math.inf]),
    "transposed": lambda: torch.randn(4, 6).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every second": lambda: torch.randn(20)[::2],
    "inner slice": lambda: torch.randn(6, 6)[1:4, 2:5],
    "expanded": lambda: torch.randn(3, 1).expand(3, 5),
    "expanded scalar": lambda: torch.tensor(2.0).expand(4, 3),
    "expanded bf16": lambda: torch.randn(1, 4).bfloat16().expand(6, 4),
    "requires grad": lambda: torch.randn(3, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.randn(3)),
    "many blocks": lambda: torch.randn(1001),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_with_dtype_shape_strides_and_bits(store: Store, name: str) -> None:
    value = TENSORS[name]()
    store.save(box=Box(value=value))
    other = Box()
    store.load(box=other)
    assert bits(other.state["value"]) == bits(value)


def test_tracked_tensors_and_generators(store: Store) -> None:
    a, g = torch.randn(5), torch.Generator().manual_seed(3)
    torch.randn(3, generator=g)
    store.save(a=a, g=g)
    want, state = a.clone(), g.get_state()
    a.zero_()
    g.manual_seed(99)
    store.load(a=a, g=g)
    assert bits(a) == bits(want)
    assert torch.equal(g.get_state(), state)


def test_dtypes_devices_sizes_and_plain_values(store: Store) -> None:
    state = {"d": torch.bfloat16, "v": torch.device("cpu"), "s": torch.Size([2, 3]), "n": {1: (2, None)}, "f": math.inf}
    store.save(box=Box(**state))
    other = Box()
    store.load(box=other)
    assert other.state == state
    assert type(other.state["s"]) is torch.Size


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)
        if tie:
            self.b.weight = self.a.weight


def test_tied_weights_are_stored_once_and_stay_tied(store: Store) -> None:
    model = Tied()
    store.save(model=model)
    assert store.manifest is not None
    assert [r["alias"] for r in store.manifest.tensors if "alias" in r] == ["model.state_dict.a.weight"]
    other = Tied()
    store.load(model=other)
    assert other.a.weight is other.b.weight
    assert bits(other.a.weight) == bits(model.a.weight)


def test_ties_on_one_side_only_are_named(store: Store) -> None:
    store.save(model=Tied(True))
    assert store.problems(model=Tied(False)) == ["model: a.weight and b.weight share memory in the checkpoint only"]
    store.save(model=Tied(False))
    assert store.problems(model=Tied(True)) == ["model: a.weight and b.weight share memory in the script only"]


def test_one_tensor_under_two_names_of_an_object_is_one_tensor_again(store: Store) -> None:
    shared = torch.randn(3)
    store.save(box=Box(a=shared, b={"c": shared}, d=shared.clone()))
    other = Box()
    store.load(box=other)
    assert other.state["a"] is other.state["b"]["c"]
    assert other.state["d"] is not other.state["a"]


def test_equal_paths_are_two_tensors(store: Store) -> None:
    store.save(box=Box(**{"a": {"b": torch.tensor([1.0])}, "a.b": torch.tensor([2.0])}))
    other = Box()
    store.load(box=other)
    assert (other.state["a"]["b"].item(), other.state["a.b"].item()) == (1.0, 2.0)


def channels_last(module: Any) -> Any:
    return module.to(memory_format=torch.channels_last)


class Rich(nn.Module):
    """Hidden buffers, extra state, a frozen part, a part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.register_buffer("hidden", torch.zeros(2, dtype=torch.int64), persistent=False)
        self.extra: Any = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.conv(x))
        return out

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("extra", [5, torch.tensor([1.5]), {"a": torch.tensor(2), "b": [1, "x"]}], ids=repr)
def test_everything_of_a_module_comes_back(store: Store, extra: Any) -> None:
    model = channels_last(Rich())
    model(torch.randn(2, 2, 5, 5))
    model.hidden += 7
    model.extra = extra
    model.norm.eval()
    model.conv.weight.requires_grad_(False)
    store.save(model=model)
    other = channels_last(Rich())
    other.extra = torch.zeros(1) if isinstance(extra, torch.Tensor) else 0 if isinstance(extra, int) else {}
    weight = other.conv.weight
    store.load(model=other)
    assert fingerprint({"m": other}) == fingerprint({"m": model})
    assert other.conv.weight is weight and not weight.requires_grad and other.conv.bias.requires_grad
    assert not other.norm.training and other.training and other.conv.training
    assert other.hidden.tolist() == [7, 7]
    assert repr(other.extra) == repr(extra)


def test_a_state_dict_that_is_made_of_copies_goes_back_through_the_modules_own_loader(store: Store) -> None:
    class Copying(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = destination[prefix + "weight"].detach().clone()

    model, other = Copying(3, 3), Copying(3, 3)
    store.save(model=model)
    store.load(model=other)
    assert bits(other.weight) == bits(model.weight)


def test_every_difference_of_a_module_is_named(store: Store) -> None:
    store.save(model=nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 3), "c": nn.Linear(1, 1), "e": nn.ReLU()}))
    script = nn.ModuleDict({"a": nn.Linear(2, 4), "b": nn.Linear(3, 3).bfloat16(), "d": nn.Linear(1, 1, bias=False)})
    assert sorted(store.problems(model=script)) == [
        "model: a.bias has shape [4], saved was [3]",
        "model: a.weight has shape [4, 2], saved was [3, 2]",
        "model: b.bias is torch.bfloat16, saved was torch.float32",
        "model: b.weight is torch.bfloat16, saved was torch.float32",
        "model: d.weight is not in the checkpoint",
        "model: the checkpoint has c.bias, the script has not",
        "model: the checkpoint has c.weight, the script has not",
    ]


def test_another_memory_layout_is_named(store: Store) -> None:
    store.save(model=channels_last(nn.Conv2d(2, 4, 3)))
    assert store.problems(model=nn.Conv2d(2, 4, 3)) == [
        "model: weight has strides [18, 9, 3, 1], saved was [18, 1, 6, 2]"
    ]
    store.save(model=channels_last(nn.Conv2d(2, 4, 1)))
    store.load(model=nn.Conv2d(2, 4, 1))  # strides of dimensions of one element mean nothing


def test_another_tensor_is_named(store: Store) -> None:
    store.save(t=torch.zeros(3))
    assert store.problems(t=torch.zeros(4)) == ["t: value has shape [4], saved was [3]"]
    assert store.problems(t=torch.zeros(3).double()) == ["t: value is torch.float64, saved was torch.float32"]


# ---------------------------------------------------------------- optimizers


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model: Any, optimizer: Any, steps: int, after: Callable[[float], None] = lambda loss: None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        after(loss.item())


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "AdamW amsgrad, foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True, foreach=True),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True),
    "AdamW, lr is a tensor": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.01)),
    "AdamW by name": lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.01),
    "SGD momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "plain SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.01),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.01),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), lr=0.01),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimizer_takes_the_same_steps(store: Store, name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model)
    train(model, optimizer, 5)
    store.save(model=model, optimizer=optimizer)
    train(model, optimizer, 5)
    other = net()
    resumed = OPTIMIZERS[name](other)
    store.load(model=other, optimizer=resumed)
    train(other, resumed, 5)
    assert fingerprint({"m": other, "o": resumed}) == fingerprint({"m": model, "o": optimizer})


def test_moments_follow_their_parameters_when_the_order_changes(store: Store) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    store.save(model=model, optimizer=optimizer)
    other = net()
    turned = torch.optim.AdamW(list(other.parameters())[::-1], lr=0.01)
    store.load(model=other, optimizer=turned)
    for here, there in zip(model.parameters(), other.parameters(), strict=True):
        assert bits(turned.state[there]["exp_avg"]) == bits(optimizer.state[here]["exp_avg"])
        assert bits(turned.state[there]["step"]) == bits(optimizer.state[here]["step"])


def test_fp32_moments_of_bf16_parameters_stay_fp32(store: Store) -> None:
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for p in model.parameters():
        optimizer.state[p] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn(p.shape),
            "exp_avg_sq": torch.rand(p.shape),
        }
    store.save(model=model, optimizer=optimizer)
    other = net().bfloat16()
    resumed = torch.optim.AdamW(other.parameters(), lr=0.01)
    store.load(model=other, optimizer=resumed)
    for here, there in zip(model.parameters(), other.parameters(), strict=True):
        assert bits(resumed.state[there]["exp_avg"]) == bits(optimizer.state[here]["exp_avg"])


def test_every_difference_of_an_optimizer_is_named(store: Store) -> None:
    model = net()
    store.save(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    parts = list(model.parameters())
    assert store.problems(model=model, optimizer=torch.optim.AdamW(parts[:-1])) == [
        "optimizer: the checkpoint has parameter model.2.bias, the script has not"
    ]
    assert store.problems(model=model, optimizer=torch.optim.AdamW([{"params": parts[:2]}, {"params": parts[2:]}])) == [
        "optimizer: the parameter groups are divided otherwise than in the checkpoint"
    ]
    assert (
        store.problems(model=model, optimizer=torch.optim.SGD(parts, lr=0.1))[0]
        == "optimizer is a SGD, saved was AdamW"
    )


def test_counters_that_an_optimizer_keeps_beside_its_parameters(store: Store) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            own: Any = self.state
            own["calls"] = own.get("calls", 0) + 1
            return super().step(closure)

    model = net()
    optimizer = Odd(model.parameters(), lr=0.1)
    train(model, optimizer, 4)
    store.save(model=model, optimizer=optimizer)
    other = net()
    resumed = Odd(other.parameters(), lr=0.1)
    store.load(model=other, optimizer=resumed)
    assert dict(resumed.state).get("calls") == 4  # type: ignore[call-overload]


# ---------------------------------------------------------------- schedulers, scaler, EMA

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.5**e),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=[0.1, 0.2], total_steps=40),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=17),
    "CosineWarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=5),
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
        ],
        milestones=[9],
    ),
    "ChainedScheduler": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 6), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=4),
}


def with_scheduler(name: str) -> tuple[Any, Any, Any, Callable[[float], None]]:
    model = net()
    parts = list(model.parameters())
    groups: list[dict[str, Any]] = [{"params": parts[:2]}, {"params": parts[2:], "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)

    def step(loss: float) -> None:
        scheduler.step(*([loss + len(rates) * 0.1] if name == "ReduceLROnPlateau" else []))
        rates.append([group["lr"] for group in optimizer.param_groups])

    rates: list[list[float]] = []
    step.__dict__["rates"] = rates
    return model, optimizer, scheduler, step


@pytest.mark.parametrize("order", ["scheduler first", "optimizer first"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_next_ten_learning_rates_are_equal(store: Store, name: str, order: str) -> None:
    def tracked(m: Any, o: Any, s: Any) -> dict[str, Any]:
        return {"s": s, "o": o, "m": m} if order == "scheduler first" else {"m": m, "o": o, "s": s}

    model, optimizer, scheduler, step = with_scheduler(name)
    rates: list[Any] = step.__dict__["rates"]
    train(model, optimizer, 7, step)
    store.save(**tracked(model, optimizer, scheduler))
    train(model, optimizer, 10, step)
    other, resumed, again, step2 = with_scheduler(name)
    step2.__dict__["rates"].extend(rates[:7])
    store.load(**tracked(other, resumed, again))
    assert [g["lr"] for g in resumed.param_groups] == rates[6]
    train(other, resumed, 10, step2)
    assert step2.__dict__["rates"][7:] == rates[7:]
    assert fingerprint(tracked(other, resumed, again)) == fingerprint(tracked(model, optimizer, scheduler))


def test_another_scheduler_is_named(store: Store) -> None:
    _, _, scheduler, _ = with_scheduler("StepLR")
    store.save(scheduler=scheduler)
    _, _, other, _ = with_scheduler("CosineAnnealingLR")
    assert store.problems(scheduler=other) == ["scheduler is a CosineAnnealingLR, saved was StepLR"]


def test_the_scaler_goes_on(store: Store) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        scaler.scale(model(torch.randn(6, 4)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    store.save(scaler=scaler)
    other = torch.amp.GradScaler("cpu")
    store.load(scaler=other)
    assert other.state_dict() == scaler.state_dict()
    assert other.get_scale() == 128.0


EMA: Any = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]


def test_an_averaged_model_goes_on(store: Store) -> None:
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=EMA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 3, lambda loss: average.update_parameters(model))
    store.save(model=model, average=average)
    other = net()
    other_average = torch.optim.swa_utils.AveragedModel(other, multi_avg_fn=EMA)
    store.load(model=other, average=other_average)
    assert int(other_average.n_averaged) == 3
    assert fingerprint({"a": other_average}) == fingerprint({"a": average})


def test_all_generators_go_on_where_they_were(store: Store) -> None:
    import numpy

    def draw() -> list[Any]:
        return [random.gauss(0, 1), numpy.random.randn(), torch.randn(2).tolist(), torch.rand(1).item()]

    draw()
    store.save()
    want = draw()
    torch.manual_seed(5)
    random.seed(5)
    numpy.random.seed(5)
    store.load()
    assert draw() == want


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "value",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged),
        lambda: nn.Linear(2, 2),
        SimpleNamespace,
        lambda: {1, torch.device},
    ],
    ids=["sparse", "quantized", "meta", "nested", "module", "object", "class"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_saved_is_refused_with_its_path(value: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match=r"box\.deep\[0\]\.x"):
        torch_state.capture({"box": Box(deep=[{"x": value()}])})


@pytest.mark.filterwarnings("ignore")
def test_a_lazy_module_is_refused_before_its_first_forward() -> None:
    with pytest.raises(StateError, match="one forward pass"):
        torch_state.capture({"model": nn.LazyLinear(3)})


def test_a_dtype_that_is_none_is_refused() -> None:
    for name in ("load", "float99", "__name__"):
        with pytest.raises(StateError, match="no dtype"):
            torch_state.tensor_from(b"", {"dtype": name, "shape": [0], "stride": [1]})
