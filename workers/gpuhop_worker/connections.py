"""HTTP with connections kept open, one for each thread and host: a new one costs a round trip, or three with TLS."""

from __future__ import annotations

import base64
import http.client
import threading
import urllib.request
from typing import Dict, Iterable, Optional, Tuple, Union
from urllib.parse import unquote, urljoin, urlsplit

Sendable = Union[bytes, bytearray, memoryview]
Reply = Tuple[int, Dict[str, str], bytes]  # status, headers with lower-case names, body


class _Pool(Dict[str, http.client.HTTPConnection]):
    """A thread's open connections, closed when the thread is gone."""

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


_local = threading.local()
_STALE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


def call(method: str, url: str, body: Optional[Iterable[Sendable]], headers: Dict[str, str], timeout_s: float) -> Reply:
    """One request; redirects are followed. `body`: pieces, may be walked more than once. Raises OSError,
    http.client.HTTPException, ValueError for an address that is none."""
    for _ in range(4):
        status, found, data = _once(method, url, body, headers, timeout_s)
        if status not in (301, 302, 307, 308) or "location" not in found:
            break
        url = urljoin(url, found["location"])
    return status, found, data


def _once(
    method: str, url: str, body: Optional[Iterable[Sendable]], headers: Dict[str, str], timeout_s: float
) -> Reply:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http address")
    pool: _Pool = _local.__dict__.setdefault("pool", _Pool())
    place = f"{parts.scheme}://{parts.netloc}"
    kept = pool.pop(place, None)
    if kept is not None:
        try:
            return _talk(kept, place, pool, method, url, body, headers)
        except _STALE:
            kept.close()  # the server had closed it meanwhile: that says nothing about the store
    return _talk(_connect(url, timeout_s), place, pool, method, url, body, headers)


def _talk(
    connection: http.client.HTTPConnection,
    place: str,
    pool: _Pool,
    method: str,
    url: str,
    body: Optional[Iterable[Sendable]],
    headers: Dict[str, str],
) -> Reply:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    through = _proxy(parts.scheme, parts.hostname or "")
    target = url if through and parts.scheme == "http" else path
    try:
        connection.request(method, target, None if body is None else iter(body), headers)
        answer = connection.getresponse()
        data = answer.read()
    except BaseException:
        connection.close()
        raise
    if answer.will_close:
        connection.close()
    else:
        pool[place] = connection
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    proxy = _proxy(parts.scheme, parts.hostname or "")
    if proxy is None:
        return kind(parts.hostname or "", parts.port, timeout=timeout_s)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = kind(via.hostname or "", via.port, timeout=timeout_s)
    if parts.scheme == "https":
        login = {}
        if via.username:
            pair = f"{unquote(via.username)}:{unquote(via.password or '')}".encode()
            login["Proxy-Authorization"] = "Basic " + base64.b64encode(pair).decode("ascii")
        connection.set_tunnel(parts.hostname or "", parts.port, login)
    return connection


def _proxy(scheme: str, host: str) -> Optional[str]:
    """As the rest of the standard library finds it: the environment, or the system's settings."""
    found = urllib.request.getproxies().get(scheme)
    return None if not found or urllib.request.proxy_bypass(host) else found
