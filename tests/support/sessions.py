"""Run the real worker in a real process on a grant made by hand: for tests of the worker alone."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuhop.platforms import host
from gpuhop_worker import wire
from gpuhop_worker.wire import Control, Grant, Manifest, Result

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "workers"


def load_tool(path: str) -> ModuleType:
    """A script of this repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


decode = load_tool("tools/decode.py")

STARTED: list[subprocess.Popen[bytes]] = []
"""Workers that tests started, for `kill_left_over`."""


def archive(files: dict[str, str]) -> bytes:
    """A code archive with these text files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Bench:
    """A folder store, one job, and sessions that run on it one after the other. `base_url`: address of a server that
    serves the folder, for sessions that shall reach it by HTTP."""

    def __init__(
        self,
        root: Path,
        code: dict[str, str],
        run: str = "python train.py",
        job: str = "j",
        base_url: str | None = None,
        **defaults: Any,
    ) -> None:
        self.root = root
        self.store = root / "store"
        self.job = job
        self.command = run
        self.base_url = base_url
        self.defaults = defaults
        self.code = archive(code)
        self.token = 0
        self.patience_s = 20.0
        self.worker = [sys.executable, "-m", "gpuhop_worker"]
        self.sha = hashlib.sha256(self.code).hexdigest()
        self.write(wire.code_key(job, self.sha), self.code)

    def path(self, key: str) -> Path:
        return self.store / key

    def write(self, key: str, body: bytes) -> None:
        self.path(key).parent.mkdir(parents=True, exist_ok=True)
        self.path(key).write_bytes(body)

    def url(self, key: str) -> str:
        return self.path(key).as_uri() if self.base_url is None else f"{self.base_url}/{key}"

    # ------------------------------------------------------------ what lies in the store

    def manifests(self) -> list[str]:
        """Keys of all manifests, newest first."""
        found = [str(p.relative_to(self.store)) for p in self.store.glob(f"jobs/{self.job}/t*/manifest-*.json")]
        return sorted(found, key=lambda k: wire.manifest_place(k) or (0, 0), reverse=True)

    def manifest(self, key: str) -> Manifest:
        return Manifest.from_bytes(self.path(key).read_bytes())

    def latest(self) -> Manifest:
        return self.manifest(self.manifests()[0])

    def result(self, token: int | None = None) -> Result:
        return Result.from_bytes(self.path(wire.result_key(self.job, token or self.token)).read_bytes())

    def log(self, token: int | None = None) -> bytes:
        """What one session shipped of its log."""
        found = sorted(self.store.glob(wire.session_prefix(self.job, token or self.token) + "log-*.gz"))
        return b"".join(gzip.decompress(path.read_bytes()) for path in found)

    def outcome(self) -> dict[str, Any]:
        """Everything that a hopped run and the unbroken one must have in common, read by tools/decode.py."""
        manifest = decode.newest(self.store, self.job)
        return {
            "step": manifest["step"],
            "tensors": decode.tensors(self.store, manifest),
            "files": decode.folder(self.store, manifest),
            "state": json.dumps(manifest["state"]),
            "metrics": json.dumps(decode.metrics(self.store, self.job)),
        }

    # ------------------------------------------------------------ sessions

    def grant(self, **changes: Any) -> Grant:
        """The grant of the next session: one more token, parents = all manifests so far."""
        self.token += 1
        parents = self.manifests()
        addresses: dict[str, dict[str, str]] = {}

        def allow(key: str, *verbs: str) -> None:
            for verb in verbs:
                addresses.setdefault(key, {})[verb] = self.url(key)

        for key in parents:
            allow(key, "get")
            try:
                packs = self.manifest(key).packs
            except wire.WireError:
                packs = []
            for pack in packs:
                allow(pack["key"], "get")
        allow(wire.code_key(self.job, self.sha), "get")
        allow(wire.control_key(self.job), "get")
        allow(wire.beat_key(self.job, self.token), "put", "get")
        allow(wire.result_key(self.job, self.token), "put", "put_new", "get")
        for what, count in {"log": 8, "metrics": 4, "pack": 200, "manifest": 200, "output": 1}.items():
            for number in range(1, count + 1):
                allow(wire.numbered_key(self.job, self.token, what, number), "get", "put", "put_new", "delete")
        fields: dict[str, Any] = {
            "job": self.job,
            "token": self.token,
            "session": f"{self.job}-t{self.token:04d}",
            "platform": "bench",
            "run": self.command,
            "code_key": wire.code_key(self.job, self.sha),
            "code_sha256": self.sha,
            "budget_s": 3600.0,
            "parents": parents,
            "addresses": addresses,
            "beat_s": 0.2,
            "log_s": 0.2,
            "grace_s": 20.0,
            "every_steps": 10,
        }
        fields.update(self.defaults)
        fields.update(changes)
        return Grant(**fields)

    def folder(self, token: int | None = None) -> Path:
        """The folder of one session on "its machine"."""
        return self.root / f"session-{token or self.token}"

    def start(self, grant: Grant, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The worker as a process of its own, in its own group."""
        key = wire.grant_key(self.job, grant.token)
        self.write(key, grant.to_gzip())
        where = ["--grant", self.url(key), "--dir", str(self.folder(grant.token)), "--patience", str(self.patience_s)]
        whole = {**os.environ, "PYTHONPATH": str(WORKERS), **(env or {})}
        process = subprocess.Popen(
            [*self.worker, *where], env=whole, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        STARTED.append(process)
        return process

    def run(self, env: dict[str, str] | None = None, timeout: float = 120.0, **changes: Any) -> tuple[int, str]:
        """One session to its end: (exit code, everything it printed)."""
        return finish(self.start(self.grant(**changes), env), timeout)

    def order(self, order: str = "run", token: int | None = None) -> None:
        """What the scheduler writes into control.json, whole as any store writes it."""
        path = self.path(wire.control_key(self.job))
        path.with_name(".tmp-control").write_bytes(Control(token or self.token, order).to_bytes())
        path.with_name(".tmp-control").replace(path)

    def steps_logged(self, token: int | None = None) -> int:
        """Lines that the command of one session has logged so far on its own disk."""
        try:
            return (self.folder(token) / "ctl" / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def snapshots(self, token: int | None = None) -> list[str]:
        """Snapshots in one session's spool, complete or not."""
        try:
            return sorted(os.listdir(self.folder(token) / "spool"))
        except FileNotFoundError:
            return []


def finish(process: subprocess.Popen[bytes], timeout: float = 120.0) -> tuple[int, str]:
    """(exit code, output) of a worker; one that does not end is killed with all it started, and the test fails."""
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return process.returncode, out.decode("utf-8", "replace")


def kill(process: subprocess.Popen[bytes]) -> str:
    """As a vanishing machine does it: SIGKILL to the worker and everything below it. Returns its output."""
    host.kill_tree(process.pid)
    out, _ = process.communicate(timeout=30)
    return out.decode("utf-8", "replace")


def kill_left_over() -> None:
    """After a test, also a failed one: nothing that it started, or froze, goes on."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            kill(process)


def freeze(process: subprocess.Popen[bytes]) -> list[int]:
    """SIGSTOP to the whole session, as a suspended machine does it. Returns the pids."""
    members = host.tree(process.pid)
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    return members


def thaw(members: list[int]) -> None:
    for pid in members:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
