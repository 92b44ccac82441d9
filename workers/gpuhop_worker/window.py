"""Was something edited while it was copied? A snapshot that is half of one moment and half of another must not exist.

What only optimizers change is copied beside the next forward and backward pass. Scripts do edit it there: embeddings
with max_norm, momentum encoders, averages swapped in for an evaluation, optimizers with a second phase. torch counts
most edits (`_version`), but none through `.data`: those show in numbers taken at regular places of each tensor. An edit
through `.data` that leaves all of these as they are, of a few elements of a large tensor, is not seen.
"""

from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

SAMPLES = 4096  # words of 8 bytes, over all tensors: few enough that looking takes no time, beside the calls
LEAST, MOST = 4, 512  # of one tensor
_READ = 0x100  # PyBUF_READ

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object


class Mark:
    """A tensor as it was: the count of its edits and some of its bytes, `size` at `address`, a multiple of 8."""

    def __init__(self, kind: Any, name: str, value: Any, size: int, address: int, count: int) -> None:
        self.name = name
        self._kind = kind
        self._value = value
        self._memory = value.untyped_storage()  # stays, also when the script gives the tensor other memory
        self._place = (self._memory.data_ptr(), self._memory.nbytes())
        self._step = max(1, size // 8 // count)
        self._some = _view(address, size, _READ).cast("Q")[:: self._step]
        self._before = (kind.version_of(value), self._some.tobytes())

    def there(self) -> bool:
        """False when the script gave the memory itself another size: what was there may be anybody's by now."""
        return (self._memory.data_ptr(), self._memory.nbytes()) == self._place

    def holds(self, copied: memoryview) -> bool:
        """True when neither the tensor nor its copy differs from what was seen."""
        if not self.there():
            return False
        same = (self._kind.version_of(self._value), self._some.tobytes()) == self._before
        return same and copied.cast("Q")[:: self._step].tobytes() == self._before[1]


def marks(kind: Any, parts: List[Tuple[str, Any, int, int]]) -> List[Mark]:
    """One for each (name, tensor, bytes, address)."""
    count = min(MOST, max(LEAST, SAMPLES // max(1, len(parts))))
    return [Mark(kind, *part, count) for part in parts]
