"""Store URL -> Store. One line per kind of store; its module is imported when first needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gpuhop.errors import InvalidInput
from gpuhop.stores.base import Store

STORES: dict[str, str] = {
    "file": "gpuhop.stores.registry:open_file",
    "s3": "gpuhop.stores.s3_url:open_s3",
}
"""Scheme -> "module:function"; the function takes (url, env) and gives a Store."""


def open_store(url: str, env: Mapping[str, str]) -> Store:
    """Open the store that a URL or a plain path names. No network is touched; keys come from env only."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        return _open_folder(url, env)
    spot = STORES.get(scheme.lower())
    if spot is None:
        known = ", ".join(f"{name}://" for name in sorted(STORES))
        raise InvalidInput(f"no store is known by {scheme}://", f"use one of {known} or a plain folder")
    module, _, function = spot.partition(":")
    return cast(Store, getattr(importlib.import_module(module), function)(url, env))


def open_file(url: str, env: Mapping[str, str]) -> Store:
    """The registry's entry for `file`."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidInput("a file store is file:///absolute/folder, with nothing else in it", "use file:///path")
    return _open_folder(url2pathname(parts.path), env)


def _open_folder(text: str, env: Mapping[str, str]) -> Store:
    from gpuhop.stores.local import LocalStore

    if not text:
        raise InvalidInput("the store URL is empty", "use a folder, file:///path or s3://bucket/prefix")
    if text == "~" or text.startswith("~/"):
        if not env.get("HOME"):
            raise InvalidInput("the store begins with ~ and HOME is not set", "write the folder out")
        text = str(Path(env["HOME"]) / text[2:])
    return LocalStore(text)
