"""Run the real worker in a real process on a grant made by hand: for tests of the worker alone."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from gpuhop_worker import wire
from gpuhop_worker.wire import Grant, Manifest, Result

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "workers"


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
    """A folder store, one job, and sessions that run on it one after the other."""

    def __init__(self, root: Path, code: dict[str, str], run: str = "python train.py", job: str = "j") -> None:
        self.root = root
        self.store = root / "store"
        self.job = job
        self.command = run
        self.code = archive(code)
        self.token = 0
        self.sha = hashlib.sha256(self.code).hexdigest()
        self.write(wire.code_key(job, self.sha), self.code)

    def path(self, key: str) -> Path:
        return self.store / key

    def write(self, key: str, body: bytes) -> None:
        self.path(key).parent.mkdir(parents=True, exist_ok=True)
        self.path(key).write_bytes(body)

    def url(self, key: str) -> str:
        return self.path(key).as_uri()

    def manifests(self) -> list[str]:
        """Keys of all manifests, newest first."""
        found = [str(p.relative_to(self.store)) for p in self.store.glob(f"jobs/{self.job}/t*/manifest-*.json")]
        return sorted(found, key=lambda k: wire.manifest_place(k) or (0, 0), reverse=True)

    def manifest(self, key: str) -> Manifest:
        return Manifest.from_bytes(self.path(key).read_bytes())

    def latest(self) -> Manifest:
        return self.manifest(self.manifests()[0])

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
        allow(wire.beat_key(self.job, self.token), "put")
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
        fields.update(changes)
        return Grant(**fields)

    def start(self, grant: Grant, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The worker as a process of its own, in its own group."""
        key = wire.grant_key(self.job, grant.token)
        self.write(key, grant.to_gzip())
        folder = self.root / f"session-{grant.token}"
        argv = [sys.executable, "-m", "gpuhop_worker", "--grant", self.url(key), "--dir", str(folder)]
        whole = {**os.environ, "PYTHONPATH": str(WORKERS), **(env or {})}
        return subprocess.Popen(
            argv, env=whole, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, env: dict[str, str] | None = None, timeout: float = 120.0, **changes: Any) -> tuple[int, str]:
        """One session to its end: (exit code, everything it printed)."""
        process = self.start(self.grant(**changes), env)
        out, _ = process.communicate(timeout=timeout)
        return process.returncode, out.decode("utf-8", "replace")

    def result(self, token: int | None = None) -> Result:
        return Result.from_bytes(self.path(wire.result_key(self.job, token or self.token)).read_bytes())
