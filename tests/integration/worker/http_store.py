"""An HTTP object store over a folder, with a hook before and after each request: for crashes and outages."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class HttpStore:
    """`before(method, key)` and `after(method, key)` run around each write; what `before` says True to is lost.
    `down`: every request gets a 503;
    `refuse`: a write to a key that holds this text gets a 403; `spoil`: key -> what one read of it gets instead."""

    root: Path
    url: str = ""
    down: bool = False
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


class _Handler(http.server.BaseHTTPRequestHandler):
    store: HttpStore

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
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
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.path[1:]
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
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
