"""moto's server: S3 in memory, quick, blind to signatures, expiry and checksums (facts/infra.md 1)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.net import S3Server, free_ports, kill, spawn, wait_http
from tests.servers.seaweed import make_bucket

BUCKET = "gpuhop-moto"


@contextmanager
def moto(folder: Path) -> Iterator[S3Server]:
    """A running moto server with an empty bucket."""
    port = free_ports(1)[0]
    log = folder / "moto.log"
    program = Path(sys.executable).parent / "moto_server"
    process = spawn([str(program), "-H", "127.0.0.1", "-p", str(port)], log, dict(os.environ))
    try:
        wait_http(f"http://127.0.0.1:{port}/moto-api/data.json", process, log)
        server = S3Server(f"http://127.0.0.1:{port}", BUCKET, "AKIAMOTOMOTOMOTOMOTO", "moto-secret-key")
        make_bucket(server)
        yield server
    finally:
        kill(process)
