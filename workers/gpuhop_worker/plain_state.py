"""State of objects with state_dict()/load_state_dict(), NumPy arrays included: capture and restore without torch."""

from __future__ import annotations

import platform
import random
import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from gpuhop_worker import codec, files
from gpuhop_worker.codec import StateError

Source = Callable[[str, bool], Any]
"""(name, own) -> the saved tensor or array; without `own` perhaps a view, good for copying from it at once."""


class RestoreMismatch(Exception):
    """The script's objects do not fit the checkpoint: every difference is named."""

    def __init__(self, differences: List[str]) -> None:
        super().__init__("; ".join(differences))
        self.differences = differences


class Capture:
    """The arrays met while state is encoded, in order, and the JSON marks that stand for them."""

    def __init__(self) -> None:
        self.tensors: List[Tuple[str, Any]] = []
        self.sizes: List[int] = []  # bytes of each, as `bytes_of` gives them
        self.addresses: List[int] = []  # where each one's bytes lie, as they are; 0: nowhere in one piece
        self.still: Set[int] = set()  # addresses of bytes that only the tracked optimizers change
        self.aliases: List[Tuple[str, str]] = []  # (name, name of the earlier tensor with the same memory)
        self._names: Set[str] = set()
        self._arrays: Dict[Any, str] = {}  # where an array's elements lie, and how -> its name

    def name(self, path: str) -> str:
        """The path, made unique: the keys "a" -> "b" and "a.b" have equal paths."""
        name, count = path, 1
        while name in self._names:
            count += 1
            name = f"{path}#{count}"
        self._names.add(name)
        return name

    def add(self, name: str, value: Any, size: int, address: int) -> None:
        self.tensors.append((name, value))
        self.sizes.append(size)
        self.addresses.append(address)

    def lift(self, value: Any, path: str) -> Optional[Any]:
        """codec.Lift for NumPy arrays and scalars."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        scalar = isinstance(value, numpy.generic)
        array = numpy.asarray(value) if scalar else value
        if type(array) is not numpy.ndarray or array.dtype.kind not in "biufc":
            return None  # also refuses subclasses: a masked array is more than its elements
        name = self.name(path)
        place = (array.__array_interface__["data"], array.shape, array.strides, array.dtype.str)
        first = self._arrays.setdefault(place, name) if array.nbytes and not scalar else name
        if first == name:
            self.add(name, array, int(array.nbytes), 0)
        else:
            self.aliases.append((name, first))
        return {"tensor": name, "scalar": True} if scalar else {"tensor": name}


def entry_of(name: str, value: Any) -> Dict[str, Any]:
    """A row of the manifest's `tensors`, without its block range."""
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    stride = [step // value.itemsize for step in value.strides] if fortran else []
    return {"name": name, "dtype": "numpy:" + value.dtype.str, "shape": list(value.shape), "stride": stride}


def before_steps(tracked: Dict[str, Any], call: Callable[[], None]) -> bool:
    """Call before any tracked optimizer steps. False: there is none, so nothing may be copied late."""
    return False


def bytes_of(value: Any) -> memoryview:
    return memoryview(value.tobytes(order="C"))


def value_of(data: files.Data, entry: Dict[str, Any], own: bool = True) -> Any:
    """The array of an entry, always one of its own."""
    kind = str(entry["dtype"])
    if not kind.startswith("numpy:"):
        raise StateError(f"{entry['name']} is a torch tensor: import torch before session.steps() begins")
    import numpy

    array = numpy.frombuffer(bytearray(data), dtype=numpy.dtype(kind[len("numpy:") :])).reshape(entry["shape"])
    return numpy.asfortranarray(array) if entry["stride"] else array


def rng_state() -> Dict[str, Any]:
    """Python's generator, and NumPy's global one where NumPy is loaded."""
    state: Dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    return state


def set_rng_state(state: Dict[str, Any]) -> None:
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        try:
            numpy.random.set_state(state["numpy"])
        except ValueError as error:  # the script has chosen another bit generator
            raise RestoreMismatch([f"NumPy's global generator: {error}"]) from error


def capture(tracked: Dict[str, Any]) -> Tuple[Any, Capture]:
    """(JSON state, arrays). Raises StateError, naming what cannot be saved."""
    found = Capture()
    body = {title: codec.encode(thing.state_dict(), found.lift, title) for title, thing in tracked.items()}
    body["~rng"] = codec.encode(rng_state(), found.lift, "~rng")
    return body, found


def restore(tracked: Dict[str, Any], body: Dict[str, Any], tensor: Source) -> None:
    """Write a saved state into the live objects. Raises RestoreMismatch."""
    check_titles(tracked, body)
    states = {title: codec.decode(body[title], lower_arrays(lambda name: tensor(name, True))) for title in body}
    for title, thing in tracked.items():
        load(title, thing, states[title])
    set_rng_state(states["~rng"])


def load(title: str, thing: Any, state: Any) -> None:
    """thing.load_state_dict, with whatever it objects to told as a mismatch of the tracked object."""
    try:
        thing.load_state_dict(state)
    except Exception as error:
        raise RestoreMismatch([f"{title}: {type(error).__name__}: {error}"]) from error


def check_titles(tracked: Dict[str, Any], body: Dict[str, Any]) -> None:
    wanted, saved = set(tracked), {title for title in body if not title.startswith("~")}
    problems = [f"tracked object {n!r} is not in the checkpoint" for n in sorted(wanted - saved)]
    problems += [f"the checkpoint holds {n!r}, which the script does not track" for n in sorted(saved - wanted)]
    if problems:
        raise RestoreMismatch(problems)


def lower_arrays(tensor: Callable[[str], Any]) -> codec.Lower:
    def lower(mark: Any) -> Any:
        if "tensor" not in mark:
            raise StateError(f"unknown mark {mark!r}")
        value = tensor(mark["tensor"])
        return value[()] if mark.get("scalar") else value

    return lower


def fingerprint() -> Dict[str, Any]:
    """What must be equal for bit-exact resume."""
    found: Dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.__version__
    return found


def cpu() -> str:
    """The CPU's model, as exactly as it is told: cloud machines of several generations share a name."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part")
    try:
        first = files.read("/proc/cpuinfo").decode("utf-8", "replace").split("\n\n")[0]
    except OSError:
        return platform.processor()
    rows = [line.partition(":") for line in first.splitlines()]
    return " ".join(value.strip() for name, _, value in rows if name.strip() in wanted)


def set_threads(count: int) -> None:
    """Nothing here uses a thread pool of its own."""
