"""A link on loopback: a TCP proxy with so many bytes per second each way and a fixed delay, in a process of its own.

All connections share the rate. The first bytes of a connection wait one round trip longer, as for a handshake.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK = 32 * 1024
WINDOW = 4 * 1024 * 1024  # bytes of one direction of one connection that may be on their way


class Bucket:
    """Hands out the link's time, chunk by chunk, in the order in which it is asked."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0

    async def pass_(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + count / self.rate
        wait = self.free_at - loop.time()
        if wait > 0.002:  # timers are no finer
            await asyncio.sleep(wait)


async def pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, bucket: Bucket, first: float, delay: float
) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW // CHUNK)

    async def deliver() -> None:
        while True:
            when, data = await queue.get()
            await asyncio.sleep(max(0.0, when - loop.time()))
            if not data:
                break
            target.write(data)
            await target.drain()
        with suppress(OSError):
            target.write_eof()

    async def take() -> None:
        wait = first
        while data := await source.read(CHUNK):
            await bucket.pass_(len(data))
            await queue.put((loop.time() + delay + wait, data))
            wait = 0.0
        await queue.put((loop.time() + delay, b""))

    with suppress(OSError):
        await asyncio.gather(deliver(), take())


def shaper(target: str, rate: str, round_trip: str) -> None:
    """The child: says its port, then serves until its parent ends it."""
    asyncio.run(_serve(int(target), float(rate), float(round_trip)))


async def _serve(port: int, rate: float, round_trip: float) -> None:
    up, down = Bucket(rate), Bucket(rate)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port, limit=2 * CHUNK)
            await asyncio.gather(
                pump(reader, back, up, round_trip, round_trip / 2), pump(there, writer, down, 0.0, round_trip / 2)
            )
            back.close()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, limit=2 * CHUNK)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with server:
        await parent
    sys.exit(0)


@contextmanager
def shaped(port: int, rate: float, round_trip: float) -> Iterator[int]:
    """The port of a link to `port` of 127.0.0.1."""
    run = str(Path(__file__).with_name("run.py"))
    command = [sys.executable, run, "--internal", "shaper", str(port), str(rate), str(round_trip)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()
