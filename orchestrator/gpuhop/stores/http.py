"""One plain HTTP call on a presigned address, as a worker makes it: the standard library, no SDK, no key.

`file://` addresses (LocalStore) are served here too, with the same status codes, so that `check` asks every
store in one way.
"""

from __future__ import annotations

import os
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from gpuhop.stores.errors import CHECK, StoreUnreachable
from gpuhop.stores.keys import TEMP_MARK

TIMEOUT_S = 30.0

BODY_TYPE = "application/octet-stream"
"""Sent with every PUT: with urllib's default, a form, moto stores an empty object (facts/infra.md section 1).
"""


@dataclass(frozen=True)
class Reply:
    """Status, headers (names in lower case) and body of an answer; an HTTP error is an answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


HttpCall = Callable[[str, str, bytes | None], Reply]
"""(method, address, body) -> Reply. A PUT to a create-once address carries `If-None-Match: *`."""


def plain_http(method: str, address: str, body: bytes | None = None) -> Reply:
    """Make the call. Raises StoreUnreachable, naming the host only: an address is a right to use it."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file":
        try:
            return _file_call(method, parts, body)
        except OSError as error:
            raise StoreUnreachable(f"cannot {method} {parts.path}: {error.strerror}", CHECK) from error
    headers = {"Content-Type": BODY_TYPE} if body is not None else {}
    if is_create_once(address):
        headers["If-None-Match"] = "*"
    request = urllib.request.Request(address, data=body, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  (http, https)
            return Reply(answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()})
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.read(), {k.lower(): v for k, v in error.headers.items()})
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise StoreUnreachable(f"no answer from {parts.hostname}: {type(reason).__name__}", CHECK) from None


def is_create_once(address: str) -> bool:
    """Was this address made for put_new? S3: the condition is a signed header. File: create=once."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)
    signed = query.get("X-Amz-SignedHeaders", [""])[0].split(";")
    return "if-none-match" in signed or query.get("create") == ["once"]


def _file_call(method: str, parts: urllib.parse.SplitResult, body: bytes | None) -> Reply:
    path = Path(urllib.request.url2pathname(parts.path))
    try:
        if method == "GET":
            return Reply(200, path.read_bytes())
        if method == "DELETE":
            path.unlink(missing_ok=True)
            return Reply(204)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return Reply(404)
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.parent / f"{TEMP_MARK}{secrets.token_hex(8)}"
    try:
        temp.write_bytes(body or b"")
        if "create=once" in parts.query:
            os.link(temp, path)
        else:
            temp.replace(path)
    except FileExistsError:
        return Reply(412)
    finally:
        with suppress(FileNotFoundError):
            temp.unlink()
    return Reply(200)
