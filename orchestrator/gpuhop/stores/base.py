"""The port to an object store: what the scheduler needs of it, in seven methods.

Keys are relative to the store's own prefix, use `/`, and are never reused for other content by another writer
(DESIGN I1). The worker never sees this port: it gets addresses by `presign` (see gpuhop_worker.store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

Verb = Literal["get", "put", "put_new", "delete"]
"""`put_new` is a PUT that the store itself refuses (412) when the key exists: If-None-Match: *."""


@dataclass(frozen=True)
class StoreTraits:
    """What this store can do.

    `create_once`: it honours `put_new`; it may sign the address even so, and callers ask this first.
    `max_presign_s`: the longest life of an address.
    """

    scheme: str
    create_once: bool
    max_presign_s: float


@dataclass(frozen=True)
class Entry:
    """One row of a listing: key, size in bytes."""

    key: str
    size: int


@dataclass(frozen=True)
class Leftover:
    """What takes space and is no object: a temporary file of a writer, parts of an upload that was not completed. Its
    writer may still live: whoever removes it waits, and looks whether it grows.

    `key` is no object's key, and the same at each look. `remove` is silent when it is gone; raises StoreError.
    """

    key: str
    size: int
    remove: Callable[[], None] = field(repr=False, compare=False)


class Store(Protocol):
    """A place for objects. Every method raises StoreError when the store fails or refuses."""

    @property
    def traits(self) -> StoreTraits: ...

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectMissing."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write or replace; durable when it returns; readers see the old or the new object, never a mix."""
        ...

    def put_file(self, key: str, path: str) -> None:
        """Like put, streamed from a file (the code archive, an output)."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose key starts with prefix, sorted by key; sees every write that was acknowledged.

        What gpuhop cannot have written (see keys.py) is left out.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove; silent when the key is missing."""
        ...

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """All leftovers whose key starts with prefix, sorted by key; none where the store cannot tell."""
        ...

    def presign(self, verb: Verb, key: str, ttl_s: float) -> str:
        """An address that allows exactly this verb on exactly this key for ttl_s seconds, cut to
        traits.max_presign_s. No network. Whoever uses a put_new address over HTTP sends `If-None-Match: *`.
        """
        ...
