"""The link is cut, the store refuses, or answers slowly, at each request of a session (stages and columns:
test_faults.py). The store here is HTTP over a folder, with connections that stay open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.worker.faulty import PAUSE, STEPS, Told, World, check_and_finish, make_world
from tests.integration.worker.http_store import FAULTS, HttpStore, serving
from tests.support.engine import quick_folder
from tests.support.sessions import Bench, finish


@dataclass(frozen=True)
class Cut:
    """The `number`-th request of `method` for a key that holds `key`, and all after it if it `stays`."""

    method: str
    key: str
    number: int
    what: int | str
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.key} {self.number}{'+' if self.stays else ''}: {self.what}"


# stage -> requests; the second column: how often a session makes them at least.
REQUESTS: dict[str, list[tuple[str, str, int]]] = {
    "begin": [("GET", "/grant", 1), ("GET", "/code-", 1), ("GET", "/control", 2)],
    "restore": [("GET", "/t0001/manifest-", 1), ("GET", "/t0001/pack-", 1)],
    "ship": [("PUT", "/pack-", 3), ("PUT", "/metrics-", 3), ("PUT", "/log-", 1)],
    "commit": [("PUT", "/manifest-", 3)],
    "prune": [("DELETE", "/manifest-", 2), ("DELETE", "/pack-", 2)],
    "tell": [("PUT", "/beat", 2), ("PUT", "/result", 1)],
}


def every_case() -> Iterator[Cut]:
    for requests in REQUESTS.values():
        for method, key, often in requests:
            whats: list[int | str] = [403, 503, 400, *FAULTS]
            for what in whats:
                if what == "cut in" and method != "PUT":
                    continue
                yield Cut(method, key, 1, what)
                if often > 2 and what in FAULTS:
                    yield Cut(method, key, 3, what)
                if what in (403, 503):
                    yield Cut(method, key, 1, what, stays=True)


FAST = 7


def cases() -> list[Any]:
    found = list(every_case())
    quick = {len(found) * place // FAST + 2 for place in range(FAST)}
    return [pytest.param(one, marks=[] if at in quick else [pytest.mark.slow]) for at, one in enumerate(found)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quick_folder() as root:
        yield make_world(root)


@contextmanager
def linked(world: World) -> Iterator[tuple[Bench, HttpStore]]:
    with quick_folder() as root, serving(root / "store") as store:
        store.keeps = True
        bench = world.bench(root / "bench")
        bench.base_url = store.url
        store.root = bench.store
        yield bench, store


def befall(cut: Cut) -> tuple[Callable[[str, str], int | str | None], list[int]]:
    count = [0]

    def fault(method: str, key: str) -> int | str | None:
        if method != cut.method or cut.key not in key:
            return None
        count[0] += 1
        return cut.what if count[0] == cut.number or (cut.stays and count[0] > cut.number) else None

    return fault, count


@pytest.mark.parametrize("cut", cases(), ids=str)
def test_each_request(world: World, cut: Cut) -> None:
    with linked(world) as (bench, store):
        store.fault, count = befall(cut)
        process = bench.start(bench.grant(), {"STEPS_TOTAL": str(STEPS), "PAUSE": PAUSE})
        code, output = finish(process, 60.0)
        store.fault = lambda method, key: None
        check_and_finish(bench, world, Told(code, output, count[0] >= cut.number), cut)
        assert count[0] >= cut.number, output
        if not cut.stays and cut.what in (503, *FAULTS):
            assert code == 0, output
