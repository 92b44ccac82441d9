"""S3 clients that people move checkpoints with, and a server for them: put and get of one file."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.engine import Address
from benchmarks.checkpoint.meter import optional
from tests.servers.net import S3Server

BIN = Path(sys.executable).parent
MIB = 1024 * 1024


def boto(server: S3Server, endpoint: str) -> Any:
    config = importlib.import_module("botocore.config").Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        max_pool_connections=16,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = importlib.import_module("boto3.session").Session(
        server.access_key, server.secret_key, region_name=server.region
    )
    return session.client("s3", endpoint_url=endpoint, config=config)


def address(server: S3Server, endpoint: str) -> Address:
    """Signed addresses, as the scheduler puts them into a grant."""
    client = boto(server, endpoint)
    actions = {"get": "get_object", "put": "put_object", "delete": "delete_object"}

    def url(key: str, verb: str) -> str:
        place = {"Bucket": server.bucket, "Key": key}
        return str(client.generate_presigned_url(actions[verb], Params=place, ExpiresIn=3600))

    return url


class Client:
    """`why_not`: what keeps it from being measured, or nothing."""

    name = ""
    why_not = ""

    def __init__(self, server: S3Server, endpoint: str) -> None:
        self.server = server
        self.endpoint = endpoint

    def put(self, file: Path, key: str) -> None:
        raise NotImplementedError

    def get(self, key: str, file: Path) -> None:
        raise NotImplementedError


class Boto(Client):
    name = "boto3, default transfer"

    def __init__(self, server: S3Server, endpoint: str) -> None:
        super().__init__(server, endpoint)
        self.why_not = "" if optional("boto3") else "not installed"
        if not self.why_not:
            self.client = boto(server, endpoint)
            self.config = self.transfer(importlib.import_module("boto3.s3.transfer").TransferConfig)

    def transfer(self, make: Callable[..., Any]) -> Any:
        return make()

    def put(self, file: Path, key: str) -> None:
        self.client.upload_file(str(file), self.server.bucket, key, Config=self.config)

    def get(self, key: str, file: Path) -> None:
        self.client.download_file(self.server.bucket, key, str(file), Config=self.config)


class BotoTuned(Boto):
    name = "boto3, tuned (16 MiB x 8, large reads)"

    def transfer(self, make: Callable[..., Any]) -> Any:
        return make(multipart_chunksize=16 * MIB, multipart_threshold=16 * MIB, max_concurrency=8, io_chunksize=MIB)


class Obstore(Client):
    name = "obstore (16 MiB x 8)"

    def __init__(self, server: S3Server, endpoint: str) -> None:
        super().__init__(server, endpoint)
        self.package = optional("obstore")
        self.why_not = "" if self.package else "not installed"
        if not self.why_not:
            self.store = importlib.import_module("obstore.store").S3Store(
                server.bucket,
                endpoint=endpoint,
                access_key_id=server.access_key,
                secret_access_key=server.secret_key,
                region=server.region,
                virtual_hosted_style_request=False,
                client_options={"allow_http": True, "timeout": "600s"},
            )

    def put(self, file: Path, key: str) -> None:
        self.package.put(self.store, key, file, chunk_size=16 * MIB, max_concurrency=8)

    def get(self, key: str, file: Path) -> None:
        with file.open("wb") as out:
            for piece in self.package.get(self.store, key).stream(min_chunk_size=4 * MIB):
                out.write(piece)


class Program(Client):
    """A command line client, started for each transfer as a script would."""

    program = ""

    def __init__(self, server: S3Server, endpoint: str) -> None:
        super().__init__(server, endpoint)
        here = BIN / self.program
        self.path = str(here) if here.exists() else shutil.which(self.program)
        self.why_not = "" if self.path else "not installed"

    def run(self, *arguments: str) -> None:
        subprocess.run([str(self.path), *arguments], check=True, env=self.environment(), stdout=subprocess.DEVNULL)

    def environment(self) -> dict[str, str]:
        return dict(os.environ, **self.server.env, AWS_REGION=self.server.region)


class S5cmd(Program):
    name = "s5cmd"
    program = "s5cmd"

    def put(self, file: Path, key: str) -> None:
        self.run("--endpoint-url", self.endpoint, "cp", str(file), f"s3://{self.server.bucket}/{key}")

    def get(self, key: str, file: Path) -> None:
        self.run("--endpoint-url", self.endpoint, "cp", f"s3://{self.server.bucket}/{key}", str(file))


class Rclone(Program):
    name = "rclone"
    program = "rclone"

    def environment(self) -> dict[str, str]:
        found = {"TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "ENDPOINT": self.endpoint}
        found |= {"NO_CHECK_BUCKET": "true", "FORCE_PATH_STYLE": "true", "REGION": self.server.region}
        # A config file that is not there: nothing of the machine's owner is read or written.
        environment = {f"RCLONE_CONFIG_B_{key}": value for key, value in found.items()}
        return dict(super().environment(), RCLONE_CONFIG="/dev/null", **environment)

    def put(self, file: Path, key: str) -> None:
        self.run("copyto", str(file), f"b:{self.server.bucket}/{key}")

    def get(self, key: str, file: Path) -> None:
        self.run("copyto", f"b:{self.server.bucket}/{key}", str(file))


def all_clients(server: S3Server, endpoint: str, kinds: list[type[Client]]) -> list[Client]:
    return [kind(server, endpoint) for kind in kinds]


def warm_up(server: S3Server, folder: Path) -> None:
    """The first writes of a new server make its volumes, which takes seconds."""
    file = folder / "warm-up"
    file.write_bytes(os.urandom(16 * MIB))
    client = boto(server, server.endpoint)
    with ThreadPoolExecutor(8) as pool:
        for number in range(24):
            pool.submit(client.upload_file, str(file), server.bucket, f"warm-up-{number}")
    file.unlink()


@functools.cache
def have_server() -> bool:
    return (BIN / "weed").exists()
