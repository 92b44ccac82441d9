"""What the platform suite needs of an implementation: how to make it, give it work, and let its time pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.engine import START, profile
from tests.support.scripted import Script, ScriptedPlatform, Service
from tests.support.sessions import Bench

from gpuhop.clock import LabClock, ManualClock
from gpuhop.domain.judge import Phase
from gpuhop.domain.world import Profile
from gpuhop.lab.platform import LabPlatform, profiles
from gpuhop.platforms import catalog, host
from gpuhop.platforms.base import Handle, LaunchRequest, Platform, RunState
from gpuhop.platforms.bundle import build
from gpuhop.platforms.local import LocalPlatform
from gpuhop_worker import wire
from gpuhop_worker.wire import Control

CANARY = "canary-0123456789-canary"
ENVIRON = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GPUHOP_"))},
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_ACCESS_KEY_ID": CANARY,
    "KAGGLE_KEY": CANARY,
    "PIP_INDEX_URL": f"https://user:{CANARY}@pypi.example/simple",
    "HTTPS_PROXY": f"http://user:{CANARY}@127.0.0.1:9",
    "MY_SECRET": CANARY,
}

# The command runs two levels below the worker, in a process group of its own, and leaves a child behind.
SLEEPER = {
    "train.py": (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "open(os.environ['GPUHOP_PIDS'], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "print('the sleeper sleeps', flush=True)\n"
        "time.sleep(600)\n"
    ),
    "quick.py": "print('over and out', flush=True)\n",
    "env.py": "import json, os\nopen(os.environ['GPUHOP_PIDS'], 'w').write(json.dumps(dict(os.environ)))\n",
}


@dataclass
class Harness:
    """One implementation. `again`: the same platform as a restarted scheduler would make it."""

    name: str
    again: Callable[[], Platform]
    bench: Bench
    bundle: Path
    scale: float = 1.0
    service: Service | None = None

    @property
    def platform(self) -> Platform:
        return self.again()

    def request(
        self, name: str = "s-t0001", *, limit_s: float = 60.0, run: str = "python train.py", **more: Any
    ) -> LaunchRequest:
        """Work for a session; `limit_s` in real seconds (the scripted one: of its clock)."""
        env = {"GPUHOP_PIDS": str(self.bench.root / f"{name}.pids")}
        steps = None if self.service is None else 10**9
        grant = self.bench.grant(
            run=run, env=env, mode="folder", target_steps=steps, every_s=60.0, every_steps=None, **more
        )
        key = wire.grant_key(self.bench.job, grant.token)
        self.bench.write(key, grant.to_gzip())
        self.bench.write(wire.control_key(self.bench.job), Control(token=grant.token).to_bytes())
        return LaunchRequest(
            name=name,
            grant_url=self.bench.url(key),
            bundle=str(self.bundle),
            bundle_url="file:///none",
            limit_s=limit_s * self.scale,
            secrets=tuple(more.get("secrets", ())),
        )

    def launch(self, request: LaunchRequest) -> Handle:
        """Launch, and open it where a person must."""
        platform = self.platform
        handle = platform.launch(platform.render(request))
        self.press(request.name)
        return handle

    def press(self, name: str) -> None:
        platform = self.platform
        if platform.profile.attended:
            platform.press(name)  # type: ignore[attr-defined]

    def wait(self, handle: Handle, phase: Phase, timeout_s: float = 20.0) -> RunState:
        """Let time pass until the platform says so."""
        give_up = time.monotonic() + timeout_s
        while True:
            state = self.platform.poll(handle)
            if state.phase is phase:
                return state
            assert time.monotonic() < give_up, f"{self.name}: still {state}, not {phase}"
            self.pass_time(0.02)

    def pass_time(self, seconds: float) -> None:
        if self.service is None:
            time.sleep(seconds)
            return
        self.service.clock.sleep(seconds * 50)
        self.service.advance()

    def pids(self, name: str = "s-t0001") -> list[int]:
        """The command's process and its child's, once they run. None where nothing is a process."""
        if self.service is not None:
            return []
        path = self.bench.root / f"{name}.pids"
        give_up = time.monotonic() + 20.0
        while not path.exists() or len(path.read_text().split()) < 2:
            assert time.monotonic() < give_up, "the command does not start"
            time.sleep(0.02)
        return [int(pid) for pid in path.read_text().split()]

    def wait_empty(self, name: str, timeout_s: float = 5.0) -> None:
        """Nothing of the session is left; its keeper needs a moment for its own exit."""
        give_up = time.monotonic() + timeout_s
        while self.processes_of(name):
            assert time.monotonic() < give_up, f"{self.processes_of(name)} processes of {name} live on"
            time.sleep(0.02)

    def folder(self, name: str) -> str:
        """Where a session of processes lives: other tests run sessions of the same name at the same time."""
        return str(self.bench.root / "sessions" / name)

    def processes_of(self, name: str) -> int:
        """How many processes mention this session."""
        if self.service is not None:
            return sum(one.name == name and one.ended_at is None for one in self.service.sessions.values())
        return len(mentioning(self.folder(name)))


def mentioning(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if any(part.endswith(text) or text + "/" in part for part in command) and host.identity(int(entry.name)):
                found.append(int(entry.name))
    return found


def wait_dead(pids: list[int], timeout_s: float = 5.0) -> None:
    give_up = time.monotonic() + timeout_s
    while any(host.identity(pid) is not None for pid in pids):
        assert time.monotonic() < give_up, f"still alive: {[p for p in pids if host.identity(p) is not None]}"
        time.sleep(0.02)


# ---------------------------------------------------------------- the implementations

SCALE = 100.0
"""Lab seconds in a real one."""


def _bench(root: Path) -> tuple[Bench, Path]:
    bundle = root / "worker.pyz"
    root.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(build().body)
    return Bench(root, SLEEPER), bundle


def local(root: Path, environ: Mapping[str, str]) -> Harness:
    bench, bundle = _bench(root)
    row = catalog.shipped()["local"]
    return Harness("local", lambda: LocalPlatform(row, root / "sessions", environ), bench, bundle)


def lab(name: str) -> Callable[[Path, Mapping[str, str]], Harness]:
    def make(root: Path, environ: Mapping[str, str]) -> Harness:
        bench, bundle = _bench(root)
        clock = LabClock(SCALE, START, time.time())
        row = replace(profiles()[name], max_session_s=3600.0)
        return Harness(name, lambda: LabPlatform(row, root / "sessions", environ, clock), bench, bundle, SCALE)

    return make


def scripted(attended: bool) -> Callable[[Path, Mapping[str, str]], Harness]:
    def make(root: Path, environ: Mapping[str, str]) -> Harness:
        bench, bundle = _bench(root)
        row: Profile = profile("scripted", attended=attended, max_session_s=3600.0)
        service = Service(row, ManualClock(START), Script(usual="idle", speed=1.0))
        return Harness("scripted", lambda: ScriptedPlatform(service), bench, bundle, 1.0, service)

    return make


HARNESSES: dict[str, Callable[[Path, Mapping[str, str]], Harness]] = {
    "local": local,
    **{f"lab-{name}": lab(name) for name in profiles()},
    "scripted": scripted(False),
    "scripted-attended": scripted(True),
}
"""Every implementation. A new adapter adds its line here."""
