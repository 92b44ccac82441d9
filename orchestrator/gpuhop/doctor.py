"""What may be wrong with an installation, each with one fix. Every examination stands alone: one that fails is a
finding, never a crash."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuhop.errors import GpuhopError


@dataclass(frozen=True)
class Finding:
    """`ok`: True fine, False broken, None worth knowing."""

    what: str
    ok: bool | None
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which things depend on each other."""
    found: list[Finding] = []
    for what, look in (
        ("python", _python),
        ("settings", _settings),
        ("disk", _disk),
        ("database", _database),
        ("store", _store),
        ("platforms", _platforms),
        ("driver", _driver),
        ("extras", _extras),
    ):
        found += _safely(what, look)
    return found


def _safely(what: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except GpuhopError as error:
        return [Finding(what, False, error.fact, error.hint)]
    except Exception as error:
        return [Finding(what, False, f"{type(error).__name__}: {error}", "gpuhop --debug doctor")]


def _python() -> Iterator[Finding]:
    yield Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], "install Python 3.11 or newer")


def _settings() -> Iterator[Finding]:
    from gpuhop.settings import load

    settings = load()
    told = f"{settings.config}" if settings.config.exists() else "none, defaults are used"
    yield Finding("settings", True, f"home {settings.home}, config {told}")


def _disk() -> Iterator[Finding]:
    from gpuhop.settings import load

    home = load().home
    place = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(place).free
    yield Finding("disk", free > 1e9, f"{free / 1e9:.1f} GB free at {place}", "free some space, or set GPUHOP_HOME")


def _database() -> Iterator[Finding]:
    from gpuhop.db import health
    from gpuhop.settings import load

    path = load().database
    if not path.exists():
        yield Finding("database", True, "not made yet")
        return
    found = health.look(path)
    yield Finding(
        "database", found.integrity == "ok", f"{path}, check: {found.integrity}", "restore a copy of the file"
    )
    if found.current != found.head:
        yield Finding(
            "database", None if found.known else False, f"revision {found.current}", "pip install --upgrade gpuhop"
        )


def _store() -> Iterator[Finding]:
    from gpuhop.settings import load
    from gpuhop.stores.registry import open_store

    settings = load()
    store = open_store(settings.store, settings.environ)
    key = "check-doctor"
    store.put(key, b"gpuhop")
    fine = store.get(key) == b"gpuhop"
    store.delete(key)
    yield Finding("store", fine, f"{settings.store.split('?')[0]} takes and gives objects", "gpuhop store check")


def _platforms() -> Iterator[Finding]:
    from gpuhop.app import profiles
    from gpuhop.settings import load

    for name, profile in sorted(profiles(load()).items()):
        module = profile.adapter.partition(":")[0]
        there = importlib.util.find_spec(module) is not None
        yield Finding(
            f"platform {name}", there, profile.posture or profile.adapter, f"check `adapter` of [platforms.{name}]"
        )


def _driver() -> Iterator[Finding]:
    from gpuhop.engine.driver import current
    from gpuhop.settings import load

    who = current(load().database) if load().home.exists() else None
    yield Finding("driver", True if who else None, who or "nobody drives the queue", "gpuhop serve")


def _extras() -> Iterator[Finding]:
    for module, extra, why in (("boto3", "s3", "S3 stores"), ("torch", "torch", "training on this machine")):
        there = importlib.util.find_spec(module) is not None
        yield Finding(
            module,
            True if there else None,
            "installed" if there else f"not installed ({why})",
            f"pip install 'gpuhop[{extra}]'",
        )
