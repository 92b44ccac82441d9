"""Upload and restore over a link of 20 MB/s with a round trip of 100 ms, in front of a real S3 server."""

from __future__ import annotations

import shutil
from urllib.parse import urlsplit

import torch
from benchmarks.checkpoint import clients
from benchmarks.checkpoint.engine import Session, manifest_key, work_folder
from benchmarks.checkpoint.meter import Series
from benchmarks.checkpoint.shaper import shaped
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, mb
from tests.servers.seaweed import seaweed

RATE, ROUND_TRIP = 20e6, 0.1
KINDS: list[type[clients.Client]] = [clients.Rclone, clients.Boto, clients.BotoTuned]
MINE = "gpuhop"


class Link:
    """What went over it, and how long it took."""

    def __init__(self, quick: bool) -> None:
        torch.set_num_threads(1)
        self.training = Training("3M" if quick else "25M")
        self.rounds = 1 if quick else 2
        self.up, self.down = Series(), Series()
        self.bytes: dict[str, int] = {}
        self.missing: dict[str, str] = {}
        self.folder = work_folder()

    def run(self) -> None:
        with seaweed(self.folder) as server:
            clients.warm_up(server.server, self.folder)
            port = urlsplit(server.server.endpoint).port
            assert port is not None
            with shaped(port, RATE, ROUND_TRIP) as near:
                endpoint = f"http://127.0.0.1:{near}"
                beside = clients.all_clients(server.server, endpoint, KINDS)
                for number in range(self.rounds):
                    self._gpuhop(clients.address(server.server, endpoint), number)
                    for client in beside if number == 0 else []:
                        self._client(client, number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gpuhop(self, address: object, number: int) -> None:
        token = number + 1
        session = Session(self.folder / f"session-{token}", address, token)  # type: ignore[arg-type]
        session.saver().save(self.training.tracked(), 1, last=True)
        shipper = session.shipper(code=None)
        self.up.take(MINE, shipper.ship_newest)
        key = manifest_key(shipper, token)
        self.bytes[MINE] = shipper.shipped_bytes + len(session.store().get(key))
        session.close()
        fresh = Session(self.folder / f"restored-{token}", address, token)  # type: ignore[arg-type]

        def restore() -> None:
            restored = fresh.fetch(key)
            fresh.saver(restored).restore(self.training.tracked())

        self.down.take(MINE, restore)
        fresh.close()

    def _client(self, client: clients.Client, number: int) -> None:
        if client.why_not:
            self.missing[client.name] = client.why_not
            return
        file = self.folder / "a.pt"
        torch.save(self.training.state(), file)
        self.bytes[client.name] = file.stat().st_size
        key = f"{client.name.split(' ')[0]}{len(client.name)}-{number}"
        self.up.take(client.name, lambda: client.put(file, key))
        file.unlink()

        def restore() -> None:
            client.get(key, file)
            self.training.load(torch.load(file))

        self.down.take(client.name, restore)


def rows(quick: bool) -> list[Row]:
    if not clients.have_server():
        row = Row("upload and restore on a shaped link", "", "none")
        row.missing("SeaweedFS (the server)")
        return [row]
    link = Link(quick)
    link.run()
    size = link.training.size()
    samples = f"{link.rounds} of gpuhop, 1 of the others; a state of {mb(size)} (real AdamW shape, random values)"
    up = Row("upload at 20 MB/s, 100 ms round trip", ">= 90 % of the link", samples)
    down = Row("restore at 20 MB/s, 100 ms round trip", "<= 1.1 x shipped bytes / link", samples)
    for row, series, verb in ((up, link.up, "uploaded"), (down, link.down, "restored to live tensors")):
        for name, count in link.bytes.items():
            ideal = count / RATE
            figures = f"{verb} {mb(count)} in {series.wall(name):.2f} s, {series.cpu(name):.2f} CPU s in this process"
            row.add(name, figures, f"{ideal / series.wall(name) * 100:.1f} % of the link")
        for name, why in link.missing.items():
            row.missing(name, why)
    ideal = link.bytes[MINE] / RATE
    up.judge("% of the link", ideal / link.up.wall(MINE) * 100, 90.0, "{:.1f}", at_least=True)
    down.judge("x shipped bytes / link", link.down.wall(MINE) / ideal, 1.1, "{:.3f}")
    return [up, down]
