"""Torch objects <-> raw bytes and JSON.

Rules and traps: facts on exact resume (optimizer state by parameter name and written directly, because
`load_state_dict` casts moments, pytorch#43706; schedulers are loaded before optimizers; RNGs last).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from gpuhop_worker import codec, files, gradients, plain_state
from gpuhop_worker.codec import StateError
from gpuhop_worker.plain_state import RestoreMismatch

Tensor = torch.Tensor

# ---------------------------------------------------------------- bytes


_NAMES = {value: str(value).replace("torch.", "") for value in vars(torch).values() if isinstance(value, torch.dtype)}


def dtype_name(tensor: Tensor) -> str:
    return _NAMES[tensor.dtype]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The elements in C order, little-endian (all hosts that torch runs on are)."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]


def tensor_from(data: files.Data, entry: Dict[str, Any], own: bool = True) -> Tensor:
    """A CPU tensor with the saved dtype, shape and memory layout. Without `own` it may be a view of `data`, which must
    be writable then."""
    dtype = _dtype(entry["dtype"])
    flat = torch.empty(0, dtype=dtype)
    if len(data):
        flat = torch.frombuffer(bytearray(data) if memoryview(data).readonly else data, dtype=torch.uint8)
        flat = (flat.clone() if own else flat).view(dtype)
    shape, stride = entry["shape"], entry["stride"]
    dense = flat.reshape(shape)
    if list(dense.stride()) == list(stride):
        return dense
    if any(step == 0 and size > 1 for step, size in zip(stride, shape)):
        # Expanded: many elements in one place. Where a stride is 0, the first element is all of them.
        small = dense[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
        below = dict(entry, shape=list(small.shape), stride=[step or 1 for step in stride])
        return tensor_from(bytes(tensor_bytes(small)), below).as_strided(shape, stride)
    laid = torch.empty_strided(shape, stride, dtype=dtype)
    laid.copy_(dense)
    return laid


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"{name!r} is no dtype of torch {torch.__version__}")
    return found


def _key(tensor: Tensor) -> Any:
    """Equal keys = the same elements in the same memory (tied weights). None for empty tensors."""
    if tensor.is_sparse or tensor.numel() == 0:
        return None
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


class Capture(plain_state.Capture):
    """The tensors and arrays met while state is encoded."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Dict[int, List[Tuple[Any, str]]] = {}  # address -> (tensor, name) of those that begin there

    def lift(self, value: Any, path: str) -> Optional[Any]:
        """codec.Lift for tensors, arrays, dtypes, devices and sizes."""
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, torch.Size):
            return {"size": list(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).replace("torch.", "")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        return super().lift(value, path)

    def _tensor(self, value: Tensor, path: str) -> Any:
        if type(value) not in _PLAIN or value.layout is not torch.strided or value.dtype in _QUANTIZED or value.is_meta:
            _refuse_odd(value, path)
        name, size = self.name(path), value.nbytes
        mark = {"tensor": name}
        place = value.data_ptr() if size else 0
        others = self._seen.setdefault(place, []) if size else []
        same = next((title for other, title in others if _key(other) == _key(value)), None)
        if same is not None:
            self.aliases.append((name, same))
        else:
            others.append((value, name))
            as_it_is = value.is_cpu and value.is_contiguous() and not (value.is_conj() or value.is_neg())
            self.add(name, value, size, place if as_it_is else 0)
        if not value.is_cpu:
            mark["device"] = str(value.device)
        return mark


_PLAIN = (Tensor, torch.nn.Parameter)
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def _refuse_odd(value: Tensor, path: str) -> None:
    """Raises StateError for a tensor that is more than a dtype, a shape, strides and bytes."""
    own_dispatch = getattr(type(value), "__torch_dispatch__", None)
    if own_dispatch not in (None, getattr(Tensor, "__torch_dispatch__", None)):
        raise StateError(f"{path} is a {type(value).__name__}, a kind of tensor that cannot be saved yet")
    if value.layout != torch.strided or value.is_quantized:
        raise StateError(f"{path} is a {value.layout} tensor, which cannot be saved yet")
    if value.is_meta or torch.nn.parameter.is_lazy(value):
        raise StateError(f"{path} has no values yet: run one forward pass before session.steps()")


def entry_of(name: str, value: Any) -> Dict[str, Any]:
    """A row of the manifest's `tensors`, without its block range."""
    if not isinstance(value, Tensor):
        return plain_state.entry_of(name, value)
    shape, stride = list(value.shape), list(value.stride())
    return {"name": name, "dtype": dtype_name(value), "shape": shape, "stride": stride}


def bytes_of(value: Any) -> memoryview:
    return tensor_bytes(value) if isinstance(value, Tensor) else plain_state.bytes_of(value)


def value_of(data: files.Data, entry: Dict[str, Any], own: bool = True) -> Any:
    """The tensor or array of an entry. Without `own` it may be a view of `data`, for who only copies from it."""
    return plain_state.value_of(data, entry) if entry["dtype"].startswith("numpy:") else tensor_from(data, entry, own)


# ---------------------------------------------------------------- the window


def version_of(value: Tensor) -> Optional[int]:
    """Grows with each edit of the tensor but those through `.data`. None where torch does not count."""
    try:
        return value._version
    except RuntimeError:  # an inference tensor
        return None


def before_steps(tracked: Dict[str, Any], call: Callable[[], None]) -> bool:
    """Call before any tracked optimizer steps. False: there is none, so nothing may be copied late."""
    optimizers = [thing for thing in tracked.values() if isinstance(thing, torch.optim.Optimizer)]
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *arguments: call())
        optimizer.register_step_post_hook(lambda optimizer, *arguments: gradients.mark_used(optimizer))
    return bool(optimizers)


# ---------------------------------------------------------------- capture


class Parts:
    """What a module is made of, found in one walk. Names as in named_parameters(remove_duplicate=False)."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.parameters: List[Tuple[str, Tensor]] = []
        self.buffers: List[Tuple[str, Tensor]] = []
        self.training: List[str] = []  # modules in training mode
        for name, part in module.named_modules(remove_duplicate=False):
            if part.training:
                self.training.append(name)
            dot = name + "." if name else ""
            self.parameters += [(dot + key, value) for key, value in part._parameters.items() if value is not None]
            self.buffers += [(dot + key, value) for key, value in part._buffers.items() if value is not None]

    def hidden(self, held: Any) -> Dict[str, Tensor]:
        """Buffers registered with persistent=False: they change in training too, and no state_dict holds them. `held`:
        the names of the state_dict."""
        return {name: buffer for name, buffer in self.buffers if name not in held}


Walks = Dict[str, Parts]  # tracked name -> its module's parts


def walks(tracked: Dict[str, Any]) -> Walks:
    return {title: Parts(thing) for title, thing in tracked.items() if isinstance(thing, torch.nn.Module)}


def parameter_names(found: Walks) -> Dict[int, str]:
    """id(parameter) -> a name that does not depend on order: '<tracked name>.<parameter name>'."""
    names: Dict[int, str] = {}
    for title, parts in found.items():
        for name, parameter in parts.parameters:
            names.setdefault(id(parameter), f"{title}.{name}")
    return names


def _still(tracked: Dict[str, Any], found: Walks) -> Set[int]:
    """Addresses of tensors that nothing but a tracked optimizer's step changes: its parameters and their state, and
    parameters that are frozen. Parameters that take gradients but belong to no tracked optimizer are not among them,
    nor are buffers: a forward pass may change those."""
    still: Set[int] = set()
    for thing in tracked.values():
        if isinstance(thing, torch.optim.Optimizer):
            for group in thing.param_groups:
                still.update([parameter.data_ptr() for parameter in group["params"]])
            for state in thing.state.values():
                if isinstance(state, dict):
                    still.update([v.data_ptr() for v in state.values() if isinstance(v, Tensor)])
    for parts in found.values():
        frozen = {id(p): p for _, p in parts.parameters if not p.requires_grad}
        # A module that is frozen as a whole is an average or a teacher: somebody else writes to it.
        if len(frozen) < len({id(p) for _, p in parts.parameters}):
            still.update([parameter.data_ptr() for parameter in frozen.values()])
    return still - {0}


def _optimizer_state(optimizer: torch.optim.Optimizer, names: Dict[int, str]) -> Dict[str, Any]:
    groups = []
    state: Dict[str, Any] = {}
    for number, group in enumerate(optimizer.param_groups):
        members = []
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"group{number}.{place}")
            members.append(name)
            if parameter in optimizer.state:
                state[name] = dict(optimizer.state[parameter])
        groups.append(dict({k: v for k, v in group.items() if k != "params"}, params=members))
    # Some optimizers keep counters of their own beside the parameters' state, under text keys.
    return {"groups": groups, "state": state, "own": {k: v for k, v in optimizer.state.items() if isinstance(k, str)}}


def _kinds(tracked: Dict[str, Any]) -> Dict[str, str]:
    """Class names of optimizers and schedulers: their states load into one another without complaint."""
    strict = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return {title: type(thing).__qualname__ for title, thing in tracked.items() if isinstance(thing, strict)}


def capture(tracked: Dict[str, Any]) -> Tuple[Any, Capture]:
    """(JSON state, tensors) of all tracked objects and RNGs. Raises StateError, naming what cannot be saved."""
    found, parts = Capture(), walks(tracked)
    names = parameter_names(parts)
    body = {}
    for title, thing in tracked.items():
        body[title] = codec.encode(_state_of(thing, names, parts.get(title)), found.lift, title)
    body["~kinds"] = _kinds(tracked)
    body["~grads"] = codec.encode(gradients.capture(tracked, names), found.lift, "~grads")
    body["~rng"] = codec.encode(rng_state(), found.lift, "~rng")
    found.still = _still(tracked, parts)
    return body, found


def _state_of(thing: Any, names: Dict[int, str], parts: Optional[Parts]) -> Any:
    if isinstance(thing, torch.optim.Optimizer):
        return _optimizer_state(thing, names)
    if isinstance(thing, torch.Generator):
        return {"generator": thing.get_state()}
    if isinstance(thing, Tensor):
        return {"value": thing}
    if parts is not None:
        held = dict(thing.state_dict())
        frozen = [name for name, parameter in parts.parameters if not parameter.requires_grad]
        return {"state_dict": held, "hidden": parts.hidden(held), "training": parts.training, "frozen": frozen}
    return thing.state_dict()


# ---------------------------------------------------------------- RNGs


def rng_state() -> Dict[str, Any]:
    """Python's, NumPy's, torch's and every CUDA device's generator."""
    state = dict(plain_state.rng_state(), torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Dict[str, Any]) -> None:
    plain_state.set_rng_state(state)
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


# ---------------------------------------------------------------- restore


def restore(tracked: Dict[str, Any], body: Dict[str, Any], tensor: plain_state.Source) -> None:
    """Write a saved state into the live objects. `tensor(name, own)` gives a saved tensor.

    Raises RestoreMismatch with every missing, extra, re-shaped or re-typed part of torch's own objects, before
    anything was changed; and when an object's own load_state_dict objects.
    """
    plain_state.check_titles(tracked, body)
    states = {title: codec.decode(body[title], _lower_for(tracked.get(title), tensor)) for title in body}
    names = parameter_names(walks(tracked))
    problems = _kind_differences(_kinds(tracked), states.get("~kinds", {}))
    problems += [p for title, thing in tracked.items() for p in _differences(title, thing, states[title], names)]
    if problems:
        raise RestoreMismatch(problems)
    for title, thing in sorted(tracked.items(), key=lambda item: _place(item[1])):
        _put_back(title, thing, states[title], names)
    gradients.restore(tracked, names, states.get("~grads", {}))
    set_rng_state(states["~rng"])


def _place(thing: Any) -> int:
    """Objects that may refuse come first; optimizers last, since schedulers write lr into the groups when loaded."""
    if isinstance(thing, torch.optim.Optimizer):
        return 2
    return 1 if isinstance(thing, (torch.nn.Module, Tensor, torch.Generator)) else 0


def _kind_differences(here: Dict[str, str], there: Dict[str, str]) -> List[str]:
    titles = sorted(set(here) | set(there))
    return [f"{t} is a {here.get(t)}, saved was {there.get(t)}" for t in titles if here.get(t) != there.get(t)]


def _lower_for(thing: Any, tensor: plain_state.Source) -> codec.Lower:
    """Modules, tensors and generators copy a saved tensor into their own, wherever that is. All others take the tensor
    itself, so it must be theirs alone; an optimizer moves it by its own rules."""
    copies = isinstance(thing, (torch.nn.Module, Tensor, torch.Generator))
    arrays = plain_state.lower_arrays(lambda name: tensor(name, not copies))
    moves = not copies and not isinstance(thing, torch.optim.Optimizer)
    moved: Dict[int, Tuple[Any, Any]] = {}  # id -> (tensor, the same on its device): what was shared stays shared

    def lower(mark: Any) -> Any:
        if "size" in mark:
            return torch.Size(mark["size"])
        if "dtype" in mark:
            return _dtype(mark["dtype"])
        if "device" in mark and "tensor" not in mark:
            return torch.device(mark["device"])
        value = arrays(mark)
        if moves and "device" in mark:
            return moved.setdefault(id(value), (value, value.to(_device(mark["device"]))))[1]
        return value

    return lower


def _device(name: str) -> torch.device:
    """The saved device, or the nearest that is here: another GPU, or the CPU (the fingerprint tells of it)."""
    if not name.startswith("cuda"):
        return torch.device(name)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = torch.device(name).index or 0
    return torch.device("cuda", index if index < torch.cuda.device_count() else 0)


def _differences(title: str, thing: Any, state: Any, names: Dict[int, str]) -> List[str]:
    if isinstance(thing, torch.nn.Module):
        live = _live(thing)
        saved = dict(state["state_dict"], **state["hidden"])
        return _tensor_differences(title, live, saved) or _tie_differences(title, live, saved)
    if isinstance(thing, torch.optim.Optimizer):
        live = _optimizer_state(thing, names)
        here = [group["params"] for group in live["groups"]]
        there = [group["params"] for group in state["groups"]]
        if not isinstance(thing, torch.optim.LBFGS):  # it keeps all its state at its first parameter
            here, there = [sorted(group) for group in here], [sorted(group) for group in there]
        if here != there:
            return _group_differences(title, here, there)
        return _option_differences(title, live["groups"], state["groups"])
    if isinstance(thing, Tensor):
        return _tensor_differences(title, {"value": thing}, state)
    return []


def _live(module: torch.nn.Module) -> Dict[str, Any]:
    """The module's own parameters and buffers, hidden ones too."""
    held = module.state_dict(keep_vars=True)
    return dict(held, **Parts(module).hidden(held))


def _group_differences(title: str, here: List[List[str]], there: List[List[str]]) -> List[str]:
    ours, theirs = {n for group in here for n in group}, {n for group in there for n in group}
    found = [f"{title}: parameter {n} is not in the checkpoint" for n in sorted(ours - theirs)]
    found += [f"{title}: the checkpoint has parameter {n}, the script has not" for n in sorted(theirs - ours)]
    return found or [f"{title}: the parameter groups are divided otherwise than in the checkpoint"]


def _option_differences(title: str, here: List[Dict[str, Any]], there: List[Dict[str, Any]]) -> List[str]:
    """Options may have other values (that is restored), but not other names."""
    found = []
    for number, (ours, theirs) in enumerate(zip(here, there)):
        for name in sorted(set(ours) - set(theirs)):
            if name not in _SCHEDULERS_OWN:
                found.append(f"{title}: option {name} of group {number} is not in the checkpoint")
        for name in sorted(set(theirs) - set(ours)):
            if name not in _SCHEDULERS_OWN:
                found.append(f"{title}: the checkpoint has option {name} of group {number}, the optimizer has not")
    return found


_SCHEDULERS_OWN = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "param_names")
"""Entries that schedulers and callers add to a group: a scheduler made later may not have added them yet."""


def _tie_differences(title: str, live: Dict[str, Any], saved: Dict[str, Any]) -> List[str]:
    """Weights that share memory on one side only would drift apart, or be overwritten by one another."""
    here, there = _ties(live, _key), _ties(saved, id)
    found = [f"{title}: {' and '.join(group)} share memory in the script only" for group in sorted(here - there)]
    return found + [f"{title}: {' and '.join(g)} share memory in the checkpoint only" for g in sorted(there - here)]


def _ties(tensors: Dict[str, Any], key: Callable[[Tensor], Any]) -> Set[Tuple[str, ...]]:
    groups: Dict[Any, List[str]] = {}
    for name, value in sorted(tensors.items()):
        if isinstance(value, Tensor) and value.numel() > 0:
            groups.setdefault(key(value), []).append(name)
    return {tuple(group) for group in groups.values() if len(group) > 1}


def _tensor_differences(title: str, live: Dict[str, Any], saved: Dict[str, Any]) -> List[str]:
    found = [f"{title}: {n} is not in the checkpoint" for n in sorted(set(live) - set(saved))]
    found += [f"{title}: the checkpoint has {n}, the script has not" for n in sorted(set(saved) - set(live))]
    for name in sorted(set(live) & set(saved)):
        a, b = live[name], saved[name]
        if isinstance(a, Tensor) != isinstance(b, Tensor):
            found.append(f"{title}: {name} is a {type(a).__name__}, saved was a {type(b).__name__}")
        elif isinstance(a, Tensor) and not name.endswith(_EXTRA):
            if a.shape != b.shape:
                found.append(f"{title}: {name} has shape {list(a.shape)}, saved was {list(b.shape)}")
            elif a.dtype != b.dtype:
                found.append(f"{title}: {name} is {a.dtype}, saved was {b.dtype}")
            elif _layout(a) != _layout(b):
                # Kernels are chosen by the layout: other strides, other bits.
                found.append(f"{title}: {name} has strides {list(a.stride())}, saved was {list(b.stride())}")
    return found


_EXTRA = "_extra_state"  # the name under which Module.state_dict() puts what get_extra_state() returned


def _layout(tensor: Tensor) -> List[int]:
    """Strides that mean something: those of dimensions longer than one."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1] if tensor.numel() else []


def _put_back(title: str, thing: Any, state: Any, names: Dict[int, str]) -> None:
    if isinstance(thing, torch.nn.Module):
        _load_module(thing, state)
    elif isinstance(thing, torch.optim.Optimizer):
        _load_optimizer(thing, state, names)
    elif isinstance(thing, torch.Generator):
        thing.set_state(state["generator"])
    elif isinstance(thing, Tensor):
        with torch.no_grad():
            thing.copy_(state["value"])
    else:
        plain_state.load(title, thing, state)


def _load_module(module: torch.nn.Module, state: Dict[str, Any]) -> None:
    live = _live(module)
    own = {id(part) for part in (*module.parameters(), *module.buffers())}
    extra = {}
    with torch.no_grad():
        for name, value in dict(state["state_dict"], **state["hidden"]).items():
            if id(live[name]) in own:
                live[name].copy_(value)
            else:
                extra[name] = value.clone() if isinstance(value, Tensor) else value
    if extra:  # get_extra_state / set_extra_state, and what a state_dict hook made: the module must take it back itself
        module.load_state_dict(dict(module.state_dict(), **extra), strict=True)
    training, frozen = set(state["training"]), set(state["frozen"])
    for name, part in module.named_modules():
        part.training = name in training
    for name, parameter in module.named_parameters():
        if parameter.is_leaf and parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)


def _load_optimizer(optimizer: torch.optim.Optimizer, state: Dict[str, Any], names: Dict[int, str]) -> None:
    optimizer.state.clear()
    optimizer.state.update(state["own"])
    for number, (group, saved) in enumerate(zip(optimizer.param_groups, state["groups"])):
        for option, value in saved.items():
            if isinstance(group.get(option), Tensor) and isinstance(value, Tensor):
                group[option].copy_(value)  # a capturable lr: compiled graphs and schedulers hold this very tensor
            elif option not in ("params", "param_names"):
                group[option] = value
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"group{number}.{place}")
            if name in state["state"]:
                optimizer.state[parameter] = {
                    k: _on_device(k, v, parameter, group) for k, v in state["state"][name].items()
                }


def _on_device(key: str, value: Any, parameter: Tensor, group: Dict[str, Any]) -> Any:
    # `step` lives on the CPU, except in capturable and fused optimizers; everything else beside its parameter.
    beside = key != "step" or group.get("capturable") or group.get("fused")
    return value.to(parameter.device) if isinstance(value, Tensor) and beside else value


def fingerprint() -> Dict[str, Any]:
    """What must be equal for bit-exact resume; a difference is said aloud before the first step."""
    found = dict(
        plain_state.fingerprint(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        device="cuda" if torch.cuda.is_available() else "cpu",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    if not torch.cuda.is_available():
        found["cpu"] = plain_state.cpu()  # libraries choose their kernels by more than the capability
    else:
        found["gpu"] = torch.cuda.get_device_name(0)
        found["gpu_count"] = torch.cuda.device_count()
        found["cuda"] = torch.version.cuda
    return found


def set_threads(count: int) -> None:
    torch.set_num_threads(count)
