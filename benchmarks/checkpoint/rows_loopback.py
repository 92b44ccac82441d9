"""Upload and restore against S3 on this machine, the link as fast as it gets."""

from __future__ import annotations

import shutil
import time

import torch
from benchmarks.checkpoint import clients
from benchmarks.checkpoint.engine import Session, manifest_key, work_folder
from benchmarks.checkpoint.meter import Series
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, mb
from tests.servers.net import S3Server
from tests.servers.seaweed import seaweed

KINDS: list[type[clients.Client]] = [clients.BotoTuned, clients.Obstore, clients.S5cmd, clients.Rclone]
MINE, LIVE = "gpuhop (verified, in memory)", "gpuhop, to live tensors"


class Loopback:
    def __init__(self, quick: bool) -> None:
        torch.set_num_threads(1)
        self.training = Training("3M" if quick else "25M")
        self.rounds = 2 if quick else 5
        self.up, self.down = Series(), Series()
        self.folder = work_folder()
        self.missing: dict[str, str] = {}
        self.shipped = 0

    def run(self) -> None:
        with seaweed(self.folder) as server:
            clients.warm_up(server.server, self.folder)
            beside = clients.all_clients(server.server, server.server.endpoint, KINDS)
            self.missing = {client.name: client.why_not for client in beside if client.why_not}
            for number in range(self.rounds + 1):
                if number == 1:
                    self.up, self.down = Series(), Series()  # the first round warms the server up
                self._gpuhop(server.server, number)
                for client in beside:
                    if not client.why_not:
                        self._client(client, number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gpuhop(self, server: S3Server, number: int) -> None:
        token = number + 1
        address = clients.address(server, server.endpoint)
        session = Session(self.folder / f"session-{token}", address, token)
        session.saver().save(self.training.tracked(), 1, last=True)
        shipper = session.shipper(code=None)
        self.up.take(MINE, shipper.ship_newest)
        self.shipped = shipper.shipped_bytes
        key = manifest_key(shipper, token)
        session.close()
        fresh = Session(self.folder / f"restored-{token}", address, token)
        restored = []
        self.down.take(MINE, lambda: restored.append(fresh.fetch(key)))
        self.down.take(LIVE, lambda: fresh.saver(restored[0]).restore(self.training.tracked()))
        fresh.close()
        time.sleep(0.2)

    def _client(self, client: clients.Client, number: int) -> None:
        file, key = self.folder / "a.pt", f"{type(client).__name__}-{number}"
        torch.save(self.training.state(), file)
        self.up.take(client.name, lambda: client.put(file, key))
        file.unlink()
        self.down.take(client.name, lambda: client.get(key, file))
        file.unlink()
        time.sleep(0.2)


def rows(quick: bool) -> list[Row]:
    if not clients.have_server():
        row = Row("upload and restore on loopback S3", "", "none")
        row.missing("SeaweedFS (the server)")
        return [row]
    loop = Loopback(quick)
    loop.run()
    size = loop.training.size()
    samples = f"{loop.rounds} each, in turns; a state of {mb(size)}, {mb(loop.shipped)} shipped by gpuhop"
    found = []
    for what, series in (("upload", loop.up), ("restore", loop.down)):
        row = Row(f"{what} on loopback S3", ">= 1.0 x the fastest client on the same state", samples)
        others = [name for name in series.of if name not in (MINE, LIVE)]
        best = min((series.wall(name) for name in others), default=float("nan"))
        for name in series.of:
            wall = series.wall(name)
            figures = f"{wall:.2f} s = {size / wall / 1e6:.0f} MB/s of state, {series.cpu(name):.2f} CPU s here"
            row.add(name, figures, f"{best / wall:.2f} x the fastest")
        for name, why in loop.missing.items():
            row.missing(name, why)
        row.judge("x the fastest client", best / series.wall(MINE), 1.0, at_least=True)
        found.append(row)
    return found
