"""Ports and processes for servers that tests start."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class S3Server:
    """How to reach a running server, and a bucket in it that exists."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def url(self, prefix: str = "", create_once: bool = True) -> str:
        """The store URL for gpuhop.stores.registry.open_store."""
        flag = "yes" if create_once else "no"
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}&region={self.region}&create_once={flag}"

    @property
    def env(self) -> dict[str, str]:
        """The environment that opens it."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a server that dies with the test process, however that ends."""
    with log.open("ab") as out:
        # preexec_fn: prctl only, which takes no lock that a thread could hold
        return subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            preexec_fn=_die_with_parent,  # noqa: PLW1509
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL and reap: the port is free when this returns."""
    process.kill()
    process.wait(timeout=30)


def wait_http(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 60.0) -> None:
    """Wait for a 200; raises with the end of the log when the server exits or stays silent."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{url} is not ready (exit {process.poll()}):\n{tail}")
