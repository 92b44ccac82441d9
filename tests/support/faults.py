"""Wrappers around a store and a platform that tell a hook of each call: for crashes, outages and races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial

from gpuhop.domain.world import Profile
from gpuhop.platforms.base import (
    Handle,
    LaunchRequest,
    Platform,
    Rendered,
    RunState,
    Usage,
)
from gpuhop.stores.base import Entry, Leftover, Store, StoreTraits, Verb

Hook = Callable[[str, str, str], None]
"""(verb, key or name, "before" | "after")"""


class HookedStore:
    """A store that tells a hook of each write and read; what the hook raises happens to the caller."""

    def __init__(self, inner: Store, hook: Hook) -> None:
        self._inner = inner
        self.hook = hook

    @property
    def traits(self) -> StoreTraits:
        return self._inner.traits

    def get(self, key: str) -> bytes:
        self.hook("get", key, "before")
        found = self._inner.get(key)
        self.hook("get", key, "after")
        return found

    def put(self, key: str, body: bytes) -> None:
        self.hook("put", key, "before")
        self._inner.put(key, body)
        self.hook("put", key, "after")

    def put_file(self, key: str, path: str) -> None:
        self.hook("put", key, "before")
        self._inner.put_file(key, path)
        self.hook("put", key, "after")

    def list(self, prefix: str) -> Iterator[Entry]:
        self.hook("list", prefix, "before")
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self.hook("delete", key, "before")
        self._inner.delete(key)
        self.hook("delete", key, "after")

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        self.hook("list", prefix, "before")
        return iter([replace(one, remove=partial(self._remove, one)) for one in self._inner.leftovers(prefix)])

    def _remove(self, leftover: Leftover) -> None:
        self.hook("delete", leftover.key, "before")
        leftover.remove()
        self.hook("delete", leftover.key, "after")

    def presign(self, verb: Verb, key: str, ttl_s: float) -> str:
        return self._inner.presign(verb, key, ttl_s)


class HookedPlatform:
    """A platform that tells a hook of each launch and stop."""

    def __init__(self, inner: Platform, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    @property
    def profile(self) -> Profile:
        return self._inner.profile

    def render(self, request: LaunchRequest) -> Rendered:
        return self._inner.render(request)

    def launch(self, rendered: Rendered) -> Handle:
        self._hook("launch", rendered.name, "before")
        handle = self._inner.launch(rendered)
        self._hook("launch", rendered.name, "after")
        return handle

    def poll(self, handle: Handle) -> RunState:
        return self._inner.poll(handle)

    def stop(self, handle: Handle) -> None:
        self._hook("stop", handle.id, "before")
        self._inner.stop(handle)
        self._hook("stop", handle.id, "after")

    def logs(self, handle: Handle) -> Iterator[str]:
        return self._inner.logs(handle)

    def usage(self, now: datetime) -> Usage | None:
        return self._inner.usage(now)
