"""An HTTP object store over a folder, with a hook before and after each request: for crashes and outages."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn


@dataclass
class HttpStore:
    """`before(method, key)` and `after(method, key)` run around each write; what `before` says True to is lost.
    `down`: every request gets a 503;
    `fault(method, key)`: what befalls a request, see FAULTS; `keeps`: connections stay open between requests;
    `refuse`: a write to a key that holds this text gets a 403; `spoil`: key -> what one read of it gets instead."""

    root: Path
    url: str = ""
    down: bool = False
    fault: Callable[[str, str], int | str | None] = lambda method, key: None
    keeps: bool = False
    refuse: str = ""
    refused: int = 0
    refuse_delete: bool = False
    spoil: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], bool] = lambda method, key: False
    after: Callable[[str, str], object] = lambda method, key: None
    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: int = 0  # writes that wait or are being made
    counting: threading.Lock = field(default_factory=threading.Lock)


FAULTS = {
    "cut in": "the connection is reset when half of the request's body has come",
    "cut before": "what was asked is done, and the connection is reset before a word of the answer",
    "cut out": "the connection is reset when half of the answer has gone",
    "drip": "the answer comes in small pieces, with pauses in between",
}
"""Beside these, a number: the status of an answer, and nothing is done."""


class _Cut(Exception):
    """The connection is to be reset now."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (_Cut, OSError)):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == LINGER:
            self.close_request(request)  # a reset, where a shutdown would be an orderly end
        else:
            super().shutdown_request(request)


LINGER = struct.pack("ii", 1, 0)


class _Handler(http.server.BaseHTTPRequestHandler):
    store: HttpStore
    _fault: int | str | None = None

    def setup(self) -> None:
        self.protocol_version = "HTTP/1.1" if self.store.keeps else "HTTP/1.0"
        super().setup()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"") -> None:
        fault, self._fault = self._fault, None
        if isinstance(fault, int):
            code, body = fault, b""
        if fault == "cut before":
            self._cut()
        length = "" if code == 204 else f"Content-Length: {len(body)}\r\n"
        head = f"{self.protocol_version} {code} -\r\n{length}\r\n".encode()
        whole = head + body
        if fault == "cut out":
            self.wfile.write(whole[: len(head) + len(body) // 2] if len(body) > 1 else whole[: len(whole) // 2])
            self.wfile.flush()
            self._cut()
        pieces = 12 if fault == "drip" else 1
        size = -(-len(whole) // pieces)
        for start in range(0, len(whole), size):
            self.wfile.write(whole[start : start + size])
            if fault == "drip":
                time.sleep(0.03)

    def _cut(self) -> NoReturn:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        self.close_connection = True
        raise _Cut

    def _ask_fault(self) -> bool:
        """True when the request is refused by a status."""
        self._fault = self.store.fault(self.command, self.path[1:])
        return isinstance(self._fault, int)

    def do_GET(self) -> None:
        if self._ask_fault():
            self._answer(0)
            return
        path = self.store.root / self.path[1:]
        self.store.reads.append(self.path[1:])
        if self.store.down:
            self._answer(503)
            return
        try:
            self._answer(200, self.store.spoil.pop(self.path[1:], b"") or path.read_bytes())
        except FileNotFoundError:
            self._answer(404)

    def _write(self) -> None:
        refused = self._ask_fault()
        size = int(self.headers.get("Content-Length") or 0)
        if self._fault == "cut in":
            self.rfile.read(size // 2)
            self._cut()
        body = self.rfile.read(size)
        key = self.path[1:]
        if refused:
            self._answer(0)
            return
        if self.store.down:
            self._answer(503)
            return
        if (self.store.refuse and self.store.refuse in key) or (self.store.refuse_delete and self.command == "DELETE"):
            self.store.refused += 1
            self._answer(403)
            return
        with self.store.lock, contextlib.suppress(OSError):  # the worker may be dead by now
            self.store.writes.append((self.command, key))
            if self.store.before(self.command, key):
                return
            code = _apply(self.store.root / key, self.command, body, self.headers.get("If-None-Match") == "*")
            self.store.after(self.command, key)
            self._answer(code)

    def _counted(self) -> None:
        with self.store.counting:
            self.store.busy += 1
        try:
            self._write()
        finally:
            with self.store.counting:
                self.store.busy -= 1

    do_PUT = do_DELETE = _counted


def _apply(path: Path, method: str, body: bytes, new: bool) -> int:
    if method == "DELETE":
        path.unlink(missing_ok=True)
        return 204
    if new and path.exists():
        return 412
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".tmp-{threading.get_ident()}")
    temp.write_bytes(body)
    os.replace(temp, path)
    return 200


@contextlib.contextmanager
def serving(root: Path) -> Iterator[HttpStore]:
    store = HttpStore(root)
    handler = type("Bound", (_Handler,), {"store": store})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
