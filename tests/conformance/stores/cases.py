"""A store under test, and what its server is known to check: a gap is stated and asserted, never skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuhop.stores.base import Store


@dataclass(frozen=True)
class Can:
    """`signatures`: a bent or borrowed address is refused. `expiry`: an address past its life is refused.
    `private`: a read without any signature is refused. `damage`: a body that changed on its way is refused.
    """

    signatures: bool
    expiry: bool
    private: bool
    damage: bool


SEAWEED = Can(signatures=True, expiry=True, private=True, damage=True)
MOTO = Can(signatures=False, expiry=False, private=True, damage=False)
LOCAL = Can(signatures=False, expiry=False, private=False, damage=False)


@dataclass(frozen=True)
class Case:
    """One store, empty; `neighbour` opens one in the same bucket or folder that must never notice it. `unfinished`
    leaves behind what a writer of that key does that is killed after so many bytes."""

    name: str
    store: Store
    neighbour: Callable[[], Store]
    can: Can
    unfinished: Callable[[str, bytes], None]
