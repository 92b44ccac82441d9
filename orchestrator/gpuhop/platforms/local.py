"""This machine: one detached process per session, found again by its folder after a scheduler restart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuhop.domain.judge import Phase
from gpuhop.domain.world import Profile
from gpuhop.platforms import host
from gpuhop.platforms.base import Handle, LaunchRequest, Rendered, RunState, Usage

_PASSED_ON = re.compile(
    r"^(PATH|HOME|USER|LOGNAME|LANG|LC_.*|TZ|TMPDIR|SHELL|TERM|LD_LIBRARY_PATH|DYLD_.*|CUDA_.*|NVIDIA_.*|OMP_.*|MKL_.*|"
    r"OPENBLAS_.*|PIP_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)$"
)
"""What a session inherits of the scheduler's environment: enough to run Python, no credential (DESIGN I4)."""


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
            "env": {k: v for k, v in self._environ.items() if _PASSED_ON.match(k)},
            "limit_s": request.limit_s,
            "kill_s": None,
            "secrets": list(request.secrets),
        }
        return Rendered(
            request.name, f"a process on this machine, at most {request.limit_s:.0f} s", " ".join(argv), fields
        )

    def launch(self, rendered: Rendered) -> Handle:
        work = self._folder / rendered.name
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "claimed").exists():
            host.note(str(work), "session.json", dict(rendered.fields))
            start_host(work, {k: self._environ[k] for k in self._secrets(rendered) if k in self._environ})
        return Handle(rendered.name)

    def _secrets(self, rendered: Rendered) -> list[str]:
        names = rendered.fields["secrets"]
        assert isinstance(names, list)
        return names

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


def start_host(work: Path, secrets: Mapping[str, str]) -> None:
    """Start the keeper of a session, detached: it has its own process session and no open handle of ours."""
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    subprocess.Popen(
        [sys.executable, "-I", host.__file__, str(work)],
        env={**env, **secrets},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


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
    ended, started = read_note(work, "ended.json"), read_note(work, "started.json")
    began = None if started is None else datetime.fromtimestamp(started["at"], UTC)
    if ended is not None:
        return RunState(
            Phase.GONE, began, datetime.fromtimestamp(ended["at"], UTC), f"exit {ended['code']}, {ended['why']}"
        )
    keeper = claimed_by(work)
    if started is None and (keeper is None or alive(keeper)):
        return RunState(Phase.QUEUED)
    if keeper is None or not alive(keeper):
        return RunState(Phase.GONE, began, None, "its keeper process is gone")
    return RunState(Phase.RUNNING, began)


def claimed_by(work: Path) -> int | None:
    """The keeper's pid; None while nobody has claimed the session (or is just doing so)."""
    try:
        text = (work / "claimed").read_text()
    except FileNotFoundError:
        return None
    return int(text) if text else None


def alive(pid: int) -> bool:
    """True for a process that runs and is our keeper (a pid may have been given to somebody else since)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True  # no /proc here (macOS): the pid has to do
    return b"host.py" in command and state != "Z"


def stop(work: Path) -> None:
    started = read_note(work, "started.json")
    if started is not None and read_note(work, "ended.json") is None:
        host.kill_tree(started["pid"])
