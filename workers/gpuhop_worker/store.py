"""Object access by grant: exactly the keys and verbs that the grant lists, over file: and http(s): addresses.

Retries with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): each pause is
uniform in [0, min(cap, base * 2^n)].
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import itertools
import os
import random
import threading
import time
from typing import Callable, Dict, List, Optional, Union
from urllib.parse import unquote, urlsplit

from gpuhop_worker import connections, files
from gpuhop_worker.files import Data

Body = Union[Data, List[Data]]  # whole, or in pieces that follow each other

TIMEOUT_S = 60.0
_numbers = itertools.count()
_RETRY_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}


class StoreFailure(Exception):
    """The store did not do what was asked. `final`: asking again will not help."""

    def __init__(self, key: str, fact: str, *, final: bool, missing: bool = False, taken: bool = False) -> None:
        super().__init__(f"{key}: {fact}")
        self.key = key
        self.fact = fact
        self.final = final
        self.missing = missing
        self.taken = taken


class NotGranted(Exception):
    """The code asked for a key or a verb that its grant does not list. A bug, never retried."""


class GrantStore:
    """Thread-safe. `patience_s`: how long one call goes on trying while the store is away."""

    def __init__(
        self,
        addresses: Dict[str, Dict[str, str]],
        *,
        patience_s: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._addresses = addresses
        self._patience_s = patience_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._jitter = jitter

    def hurry(self, patience_s: float) -> None:
        """From now on, also for calls under way: the session ends and cannot wait any longer than this."""
        self._patience_s = min(self._patience_s, patience_s)

    def granted(self, key: str, verb: str) -> bool:
        return verb in self._addresses.get(key, {})

    def get(self, key: str) -> bytes:
        """Raises StoreFailure (missing=True when there is no such object)."""
        return self._retry(key, "get", lambda url: _get(key, url))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes start..stop-1; fewer where the object ends before."""
        return self._retry(key, "get", lambda url: _get_range(key, url, start, stop))

    def put(self, key: str, body: Body) -> None:
        """Write or replace. Verified by the store against our MD5 (S3's Content-MD5)."""
        self._retry(key, "put", lambda url: _put(key, url, body))

    def put_once(self, key: str, body: Body) -> None:
        """Write a key that is written once in its life. Where the grant has a create-once address it is used.

        "Already there" after a lost answer is success when the bytes are ours; other bytes are a final failure.
        """
        if not self.granted(key, "put_new"):
            self.put(key, body)
            return
        try:
            self._retry(key, "put_new", lambda url: _put(key, url, body, new=True))
        except StoreFailure as failure:
            if not failure.taken or not self.granted(key, "get"):
                raise
            if self.get(key) != b"".join(_pieces(body)):
                raise

    def delete(self, key: str) -> None:
        """Silent when the key is missing."""
        self._retry(key, "delete", lambda url: _delete(key, url))

    def _retry(self, key: str, verb: str, act: Callable[[str], bytes]) -> bytes:
        url = self._addresses.get(key, {}).get(verb)
        if url is None:
            raise NotGranted(f"the grant has no {verb} address for {key}")
        began = self._monotonic()
        pause = 0.5
        while True:
            try:
                return act(url)
            except StoreFailure as failure:
                wait = self._jitter() * min(pause, 20.0)
                if failure.final or self._monotonic() + wait >= began + self._patience_s:
                    raise
            pause *= 2
            self._sleep(wait)


# ---------------------------------------------------------------- transports


def fetch(url: str, patience_s: float = 120.0) -> bytes:
    """One address outside any grant: the grant itself. What follows its `?` is a signature, and is never told."""
    key = url.split("?")[0]
    return GrantStore({key: {"get": url}}, patience_s=patience_s).get(key)


def _get(key: str, url: str) -> bytes:
    return _read_file(key, url, 0, -1) if url.startswith("file:") else _http(key, "GET", url, None, {})


def _get_range(key: str, url: str, start: int, stop: int) -> bytes:
    if url.startswith("file:"):
        return _read_file(key, url, start, stop - start)
    data = _http(key, "GET", url, None, {"Range": f"bytes={start}-{stop - 1}"})
    # A store that ignores Range answers with the whole object.
    return data if len(data) <= stop - start else data[start:stop]


def _read_file(key: str, url: str, start: int, size: int) -> bytes:
    try:
        with open(_path(url), "rb") as source:
            source.seek(start)
            return source.read(size)
    except FileNotFoundError as error:
        raise StoreFailure(key, "no such object", final=True, missing=True) from error
    except OSError as error:
        raise _os_failure(key, error) from error


def _put(key: str, url: str, body: Body, *, new: bool = False) -> bytes:
    if url.startswith("file:"):
        _put_file(key, _path(url), body, new)
        return b""
    pieces = _pieces(body)
    headers = {
        # Without an explicit type urllib sends x-www-form-urlencoded, which moto stores as an empty object.
        "Content-Type": "application/octet-stream",
        "Content-MD5": _md5(pieces),
        "Content-Length": str(sum(len(piece) for piece in pieces)),
    }
    if new:
        headers["If-None-Match"] = "*"
    return _http(key, "PUT", url, pieces, headers)


def _delete(key: str, url: str) -> bytes:
    if url.startswith("file:"):
        try:
            files.remove(_path(url))
        except OSError as error:
            raise _os_failure(key, error) from error
        return b""
    try:
        return _http(key, "DELETE", url, None, {})
    except StoreFailure as failure:
        if failure.missing:
            return b""
        raise


def _pieces(body: Body) -> List[Data]:
    return body if isinstance(body, list) else [body]


def _md5(pieces: List[Data]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return base64.b64encode(digest.digest()).decode("ascii")


def _path(url: str) -> str:
    return unquote(urlsplit(url).path)


def _put_file(key: str, path: str, body: Body, new: bool) -> None:
    folder = os.path.dirname(path)
    # Never a name again: one that could not be removed is another name of an object, which writing it would destroy.
    temp = os.path.join(folder, f".tmp-{os.getpid()}-{threading.get_ident()}-{next(_numbers)}")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(temp, "xb") as out:
            for piece in _pieces(body):
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        if new:
            _link(key, temp, path)
        else:
            os.replace(temp, path)
        files.sync_folder(folder)
    except OSError as error:
        raise _os_failure(key, error) from error
    finally:
        _drop(temp)


def _link(key: str, temp: str, path: str) -> None:
    try:
        os.link(temp, path)
    except FileExistsError as error:
        files.sync_folder(os.path.dirname(path))  # perhaps it is ours, and this is what had failed
        raise StoreFailure(key, "exists already", final=True, taken=True) from error


def _drop(temp: str) -> None:
    try:
        os.unlink(temp)
    except OSError:
        pass


def _os_failure(key: str, error: OSError) -> StoreFailure:
    if error.errno in files.NO_SPACE:
        return StoreFailure(key, "the store's disk is full", final=False)
    return StoreFailure(key, error.strerror or str(error), final=isinstance(error, PermissionError))


def _http(key: str, method: str, url: str, body: Optional[List[Data]], headers: Dict[str, str]) -> bytes:
    try:
        status, found, data = connections.call(method, url, body, headers, TIMEOUT_S)
    except (ValueError, http.client.InvalidURL):
        raise StoreFailure(key, "its address is not a valid one", final=True) from None
    except (http.client.HTTPException, OSError) as error:
        # The address is a secret: only the reason is told.
        raise StoreFailure(key, f"cannot reach the store ({error or type(error).__name__})", final=False) from None
    if status == 416:  # a range that begins behind the object's end
        return b""
    if not 200 <= status < 300:
        raise _http_failure(key, status, data[:2000].decode("utf-8", "replace"))
    _check_length(key, method, found.get("content-length"), data)
    return data


def _check_length(key: str, method: str, said: Optional[str], data: bytes) -> None:
    if method == "GET" and said is not None and int(said) != len(data):
        raise StoreFailure(key, f"the answer was cut at {len(data)} of {said} bytes", final=False)


def _http_failure(key: str, code: int, detail: str) -> StoreFailure:
    if code == 404:
        return StoreFailure(key, "no such object", final=True, missing=True)
    if code == 412:
        return StoreFailure(key, "exists already", final=True, taken=True)
    name = _error_code(detail)
    if code in (400, 403) and name in ("RequestTimeout", "BadDigest"):
        return StoreFailure(key, f"HTTP {code} {name}", final=False)
    return StoreFailure(key, (f"HTTP {code} {name}").strip(), final=code not in _RETRY_STATUS)


def _error_code(detail: str) -> str:
    """<Code> of S3's XML error; the rest can hold the signed address, so it is dropped."""
    _, found, tail = detail.partition("<Code>")
    return tail.partition("</Code>")[0] if found else ""
