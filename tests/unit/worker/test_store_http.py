"""Object access over HTTP against a real server that misbehaves: what is tried again, what is final, what is told."""

from __future__ import annotations

import base64
import hashlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gpuhop_worker import store as worker_store
from gpuhop_worker.store import GrantStore, NotGranted, StoreFailure


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """Objects by path; each request takes the next fault from the list, if one is left."""

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Callable[[Handler], bool]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    server_state: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        state = self.server_state
        state.seen.append(Seen(self.command, path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.close_connection = True
        if state.faults and state.faults.pop(0)(self):
            return
        apply(self, path, body)

    do_GET = do_PUT = do_DELETE = handle_any


def apply(handler: Handler, path: str, body: bytes) -> None:
    """What a well-behaved store does."""
    objects = handler.server_state.objects
    if handler.command == "GET":
        handler.answer(200, objects[path]) if path in objects else handler.answer(404, b"<Code>NoSuchKey</Code>")
    elif handler.command == "DELETE":
        handler.answer(204 if objects.pop(path, None) is not None else 404)
    elif handler.headers.get("If-None-Match") == "*" and path in objects:
        handler.answer(412, b"<Code>PreconditionFailed</Code>")
    else:
        objects[path] = body
        handler.answer(200)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    handler = type("Bound", (Handler,), {"server_state": state})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_address[1]}"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def client(server: Server, time: Time | None = None, patience_s: float = 60.0, secret: str = "") -> GrantStore:
    time = time or Time()
    url = f"{server.url}/k{secret}"
    return GrantStore(
        {"k": dict.fromkeys(("get", "put", "put_new", "delete"), url)},
        patience_s=patience_s,
        sleep=time.sleep,
        monotonic=lambda: time.now,
        jitter=lambda: 1.0,
    )


def status(code: int, detail: bytes = b"") -> Callable[[Handler], bool]:
    def fault(handler: Handler) -> bool:
        handler.answer(code, detail)
        return True

    return fault


def reset(handler: Handler) -> bool:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    handler.connection.close()
    return True


def silent_end(handler: Handler) -> bool:
    handler.connection.shutdown(socket.SHUT_RDWR)
    return True


def cut_body(handler: Handler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"only this")
    return True


def cut_error(handler: Handler) -> bool:
    """An error whose body never comes whole."""
    handler.send_response(503)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"<Code>Slow")
    return True


def garbage(handler: Handler) -> bool:
    handler.wfile.write(b"this is no HTTP\r\n\r\n")
    return True


def lost_answer(handler: Handler) -> bool:
    """The write takes effect, the answer does not arrive."""
    path = handler.path.split("?")[0]
    handler.server_state.objects[path] = handler.server_state.seen[-1].body
    return reset(handler)


PASSING = [
    *(status(code) for code in (408, 409, 425, 429, 500, 502, 503, 504)),
    status(400, b"<Error><Code>RequestTimeout</Code></Error>"),
    status(400, b"<Error><Code>BadDigest</Code></Error>"),
    reset,
    silent_end,
    cut_error,
    garbage,
]


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("verb", ["get", "put", "put_once", "delete"])
def test_what_passes_is_tried_again(server: Server, fault: Callable[[Handler], bool], verb: str) -> None:
    server.faults = [fault, fault]
    store = client(server)
    if verb in ("get", "delete"):
        server.objects["/k"] = b"body"
    if verb == "get":
        assert store.get("k") == b"body"
    elif verb == "delete":
        store.delete("k")
    else:
        (store.put if verb == "put" else store.put_once)("k", b"body")
    assert len(server.seen) == 3
    assert server.objects.get("/k") == (None if verb == "delete" else b"body")


def test_a_cut_body_is_fetched_again(server: Server) -> None:
    server.objects["/k"] = b"whole"
    server.faults = [cut_body]
    assert client(server).get("k") == b"whole"
    assert len(server.seen) == 2


@pytest.mark.parametrize("code", [400, 401, 403, 405, 410, 501])
def test_what_does_not_pass_is_final_at_once(server: Server, code: int) -> None:
    server.faults = [status(code, b"<Error><Code>AccessDenied</Code><Resource>/k?X-Sig=abc</Resource></Error>")] * 9
    with pytest.raises(StoreFailure) as caught:
        client(server).put("k", b"body")
    assert caught.value.final
    assert str(caught.value) == f"k: HTTP {code} AccessDenied"
    assert len(server.seen) == 1


def test_a_missing_object_is_said_to_be_missing(server: Server) -> None:
    with pytest.raises(StoreFailure) as caught:
        client(server).get("k")
    assert caught.value.missing and caught.value.final
    client(server).delete("k")


def test_patience_ends(server: Server) -> None:
    time = Time()
    server.faults = [status(503)] * 1000
    with pytest.raises(StoreFailure, match="HTTP 503"):
        client(server, time, patience_s=100.0).get("k")
    assert time.now < 100.0
    assert time.pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(time.pauses) <= 20.0


def test_no_patience_means_one_try(server: Server) -> None:
    server.faults = [status(503)] * 10
    with pytest.raises(StoreFailure):
        client(server, patience_s=0.0).get("k")
    assert len(server.seen) == 1


def test_hurry_ends_a_wait_that_is_under_way(server: Server) -> None:
    time = Time()
    server.faults = [status(503)] * 1000
    store = client(server, time, patience_s=1000.0)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        time.now += seconds
        waited.append(seconds)
        if len(waited) == 2:
            store.hurry(0.0)

    store._sleep = sleep
    with pytest.raises(StoreFailure):
        store.get("k")
    assert len(waited) == 2


@pytest.mark.parametrize("equal", [True, False])
def test_create_once_when_the_key_is_taken(server: Server, equal: bool) -> None:
    server.objects["/k"] = b"body" if equal else b"somebody else's"
    store = client(server)
    if equal:
        store.put_once("k", b"body")
    else:
        with pytest.raises(StoreFailure) as caught:
            store.put_once("k", b"body")
        assert caught.value.taken and caught.value.final
    assert server.objects["/k"] == (b"body" if equal else b"somebody else's")


def test_create_once_after_a_lost_answer_is_success(server: Server) -> None:
    server.faults = [lost_answer]
    client(server).put_once("k", b"body")
    assert [s.method for s in server.seen] == ["PUT", "PUT", "GET"]
    assert server.objects["/k"] == b"body"


def test_put_after_a_lost_answer_writes_the_same_again(server: Server) -> None:
    server.faults = [lost_answer]
    client(server).put("k", b"body")
    assert [s.body for s in server.seen] == [b"body", b"body"]


def test_each_put_carries_its_md5_and_its_type(server: Server) -> None:
    client(server).put("k", b"body")
    headers = server.seen[0].headers
    assert headers["content-md5"] == base64.b64encode(hashlib.md5(b"body").digest()).decode()
    assert headers["content-type"] == "application/octet-stream"
    assert "if-none-match" not in headers
    client(server).put_once("k", b"body")
    assert server.seen[1].headers["if-none-match"] == "*"


def test_an_empty_body_is_an_empty_object(server: Server) -> None:
    client(server).put("k", b"")
    assert server.objects["/k"] == b""
    assert client(server).get("k") == b""


def test_nothing_is_asked_that_the_grant_does_not_list(server: Server) -> None:
    store = GrantStore({"k": {"get": f"{server.url}/k"}})
    for act in (lambda: store.put("k", b""), lambda: store.delete("k"), lambda: store.get("other")):
        with pytest.raises(NotGranted):
            act()
    assert server.seen == []


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1/k", "http://nowhere.invalid/k", "http://x/a b", "nonsense", "ftpx://x/k"]
)
def test_no_failure_tells_the_signature(address: str) -> None:
    secret = "X-Amz-Signature=0123456789abcdef"
    store = GrantStore({"k": {"get": f"{address}?{secret}"}}, patience_s=0.0)
    with pytest.raises(StoreFailure) as caught:
        store.get("k")
    chain: BaseException | None = caught.value
    assert "0123456789abcdef" not in str(chain)
    assert chain is not None and chain.__suppress_context__


@pytest.mark.parametrize("fault", [status(403, b"X-Amz-Signature=0123456789abcdef"), garbage, reset])
def test_no_answer_brings_the_signature_into_a_message(server: Server, fault: Callable[[Handler], bool]) -> None:
    server.faults = [fault] * 3
    with pytest.raises(StoreFailure) as caught:
        client(server, patience_s=0.0, secret="?X-Amz-Signature=0123456789abcdef").get("k")
    assert "0123456789abcdef" not in str(caught.value)


def test_the_grant_itself_is_fetched_with_patience(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.objects["/k"] = b"grant"
    server.faults = [status(503), reset]
    assert worker_store.fetch(f"{server.url}/k?sig=1") == b"grant"
