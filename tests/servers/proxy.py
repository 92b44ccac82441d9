"""A reverse proxy that bends traffic at the wire: strips a header, cuts a body, refuses as strict stores do.

Without an upstream it is a wire-level double: `on_request` answers everything.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


@dataclass
class Seen:
    """A request as it came over the wire. `headers` (lower case) and `body` may be changed by a hook."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Sent:
    """An answer. `cut_at`: announce the whole body, send only so many bytes, and hang up."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None


def _no_answer(_seen: Seen) -> Sent | None:
    return None


def _as_is(_seen: Seen, sent: Sent) -> Sent:
    return sent


@dataclass
class Proxy:
    """What the handler needs; `log` keeps every request for the test to look at."""

    upstream: str | None = None
    on_request: Callable[[Seen], Sent | None] = _no_answer
    on_reply: Callable[[Seen, Sent], Sent] = _as_is
    endpoint: str = ""
    log: list[Seen] = field(default_factory=list)

    def answer(self, seen: Seen) -> Sent:
        self.log.append(Seen(seen.method, seen.path, dict(seen.headers), seen.body))
        sent = self.on_request(seen)
        if sent is None:
            sent = self.on_reply(seen, self._forward(seen))
        return sent

    def _forward(self, seen: Seen) -> Sent:
        assert self.upstream is not None, f"no answer scripted for {seen.method} {seen.path}"
        parts = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        try:
            connection.request(seen.method, seen.path, seen.body or None, seen.headers)
            reply = connection.getresponse()
            headers = {k.lower(): v for k, v in reply.getheaders() if k.lower() not in _HOP}
            return Sent(reply.status, reply.read(), headers)
        finally:
            connection.close()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            headers = {k.lower(): v for k, v in self.headers.items() if k.lower() != "expect"}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            sent = proxy.answer(Seen(self.command, self.path, headers, body))
            self.send_response_only(sent.status)
            for name, value in {"date": self.date_time_string(), **sent.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent.body[: sent.cut_at])
            self.close_connection = self.close_connection or sent.cut_at is not None

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def proxy(
    upstream: str | None = None,
    on_request: Callable[[Seen], Sent | None] = _no_answer,
    on_reply: Callable[[Seen, Sent], Sent] = _as_is,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[Proxy]:
    """A running proxy; `tls` = (certificate, key) makes it https."""
    state = Proxy(upstream, on_request, on_reply)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls[0], tls[1])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    state.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def xml_error(status: int, code: str, message: str = "no") -> Sent:
    """An S3 error answer."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Sent(status, body.encode(), {"content-type": "application/xml"})
