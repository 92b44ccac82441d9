"""This machine: one detached process per session, found again by its folder after a scheduler restart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuhop.domain.judge import Phase
from gpuhop.domain.world import Profile
from gpuhop.platforms import host
from gpuhop.platforms.base import Handle, LaunchRequest, RefusalKind, Refused, Rendered, RunState, Usage

_PASSED_ON = re.compile(
    r"^(PATH|HOME|USER|LOGNAME|LANG|LC_.*|TZ|TMPDIR|SHELL|TERM|LD_LIBRARY_PATH|DYLD_.*|CUDA_.*|NVIDIA_.*|OMP_.*|MKL_.*|"
    r"OPENBLAS_.*|PIP_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)$"
)
"""What a session inherits of the scheduler's environment: enough to run Python, no credential (DESIGN I4)."""

STOP_S = 2.0
"""How long `stop` waits for the keeper to note the end. Usually it takes some milliseconds."""


class LocalPlatform:
    """`folder`: where sessions live; `environ`: the scheduler's environment, filtered before it is passed on."""

    def __init__(self, profile: Profile, folder: Path, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._folder = folder
        self._environ = environ

    @property
    def profile(self) -> Profile:
        return self._profile

    def render(self, request: LaunchRequest) -> Rendered:
        work = self._folder / request.name
        argv = [sys.executable, "-I", request.bundle, "--grant", request.grant_url, "--dir", str(work / "work")]
        fields = {
            "argv": argv,
            "inherit": sorted(name for name in self._environ if _PASSED_ON.match(name)),
            "secrets": list(request.secrets),
            "limit_s": request.limit_s,
            "kill_s": None,
        }
        return Rendered(
            request.name, f"a process on this machine, at most {request.limit_s:.0f} s", " ".join(argv), fields
        )

    def launch(self, rendered: Rendered) -> Handle:
        work = self._folder / rendered.name
        try:
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (work / "claimed").exists():
                host.note(str(work), "session.json", dict(rendered.fields))
                start_host(work, self._environ)
        except OSError as error:
            raise Refused(RefusalKind.BROKEN, f"no session can be made on this machine: {error.strerror}") from error
        return Handle(rendered.name)

    def poll(self, handle: Handle) -> RunState:
        return state_of(self._folder / handle.id)

    def stop(self, handle: Handle) -> None:
        stop(self._folder / handle.id)

    def logs(self, handle: Handle) -> Iterator[str]:
        try:
            with (self._folder / handle.id / "output.log").open(encoding="utf-8", errors="replace") as source:
                yield from source
        except FileNotFoundError:
            yield "this session has left no output on this machine\n"

    def usage(self, now: datetime) -> Usage | None:
        return None


def start_host(work: Path, environ: Mapping[str, str]) -> None:
    """Start the keeper of a session, detached: it has its own process session and no open handle of ours. The values
    of the variables that session.json names go through its environment and never touch the disk."""
    spec = read_note(work, "session.json") or {}
    names = [*spec["inherit"], *spec["secrets"]]
    keeper = subprocess.Popen(
        [sys.executable, "-I", host.__file__, str(work)],
        env={name: environ[name] for name in names if name in environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    host.note(str(work), "spawned.json", {"pid": keeper.pid, "id": host.identity(keeper.pid)})


def read_note(work: Path, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((work / name).read_text())
    except FileNotFoundError:
        return None
    return found


def state_of(work: Path) -> RunState:
    """What the keeper noted; a keeper that died unseen (a reboot, an out-of-memory kill) means GONE."""
    if not work.is_dir():
        return RunState(Phase.GONE, note="no such session on this machine")
    kept = keeper_lives(work)  # asked first: what a dead keeper has noted is final
    ended, started = read_note(work, "ended.json"), read_note(work, "started.json")
    began = None if started is None else datetime.fromtimestamp(started["at"], UTC)
    if ended is not None:
        end = datetime.fromtimestamp(ended["at"], UTC)
        return RunState(Phase.GONE, began, end, f"exit {ended['code']}, {ended['why']}")
    if not kept:
        return RunState(Phase.GONE, began, None, "its keeper process is gone")
    return RunState(Phase.QUEUED) if started is None else RunState(Phase.RUNNING, began)


def keeper_lives(work: Path) -> bool:
    """True also while no keeper was started yet: the launch is not over."""
    spawned, claimed = read_note(work, "spawned.json"), read_note(work, "claimed")
    if claimed is not None:
        return runs(claimed)
    if spawned is None or runs(spawned):
        return True
    claimed = read_note(work, "claimed")  # it may have claimed, done its work and left between the two looks
    return claimed is not None and runs(claimed)


def runs(noted: Mapping[str, Any]) -> bool:
    """The very process that was noted, not a later one with its number."""
    return noted["id"] is not None and host.identity(noted["pid"]) == noted["id"]


def stop(work: Path) -> None:
    """End the session for good, also one whose keeper is only just starting. Waits a moment for the keeper's note."""
    if not work.is_dir() or (work / "ended.json").exists():
        return
    host.note(str(work), "stop.json", {"at": time.time()})
    if host.claim(str(work)):  # it had not begun, and now never will
        host.note(str(work), "ended.json", {"at": time.time(), "code": None, "why": "stopped"})
        return
    kill(work)
    give_up = time.monotonic() + STOP_S
    while not (work / "ended.json").exists() and keeper_lives(work) and time.monotonic() < give_up:
        time.sleep(0.01)


def kill(work: Path) -> bool:
    """A silent SIGKILL of everything in the session. False: it was not running."""
    started = read_note(work, "started.json")
    if started is None or (work / "ended.json").exists() or not runs(started):
        return False
    host.kill_tree(started["pid"])
    return True
