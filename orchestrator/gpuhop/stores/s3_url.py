"""`s3://bucket/prefix?endpoint=...&region=...&create_once=...` -> S3Config, with what is known of each
provider.

Regions and abilities come from the provider, not from AWS_REGION, once an endpoint is named: R2 refuses every
region but its own (facts/platforms.md B14). Abilities: facts/platforms.md section 3; what is unknown there
counts as no.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import parse_qsl, urlsplit

from gpuhop.errors import InvalidInput
from gpuhop.stores.base import Store
from gpuhop.stores.keys import is_key
from gpuhop.stores.s3 import Addressing, S3Config, S3Store

EXAMPLE = "s3://bucket/prefix?endpoint=https://host&region=auto&create_once=yes"

_OPTIONS = ("endpoint", "region", "create_once", "addressing")
_BOOLS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")


@dataclass(frozen=True)
class Provider:
    """What is known of a provider. `host` finds it; its group `region`, if any, is the region."""

    name: str
    host: re.Pattern[str]
    region: str
    create_once: bool


PROVIDERS = (
    Provider("Cloudflare R2", re.compile(r"\.r2\.cloudflarestorage\.com\Z"), "auto", True),
    Provider("Backblaze B2", re.compile(r"(?:^|\.)s3\.(?P<region>[a-z0-9-]+)\.backblazeb2\.com\Z"), "", False),
    Provider(
        "Oracle OCI",
        re.compile(r"\.objectstorage\.(?P<region>[a-z0-9-]+)\.(?:oraclecloud|oci\.customer-oci)\.com\Z"),
        "",
        False,
    ),
    Provider("Hugging Face", re.compile(r"(?:^|\.)s3\.hf\.co\Z"), "us-east-1", True),
    Provider("Tigris", re.compile(r"(?:fly\.storage\.tigris\.dev|(?:^|\.)t3\.storage\.dev)\Z"), "auto", True),
    Provider("Storj", re.compile(r"(?:^|\.)gateway\.storjshare\.io\Z"), "us-east-1", True),
    Provider("AWS S3", re.compile(r"(?:^|\.)s3[.-](?P<region>[a-z0-9-]+)\.amazonaws\.com\Z"), "", True),
)

_AWS = Provider("AWS S3", re.compile(r"\Z"), "us-east-1", True)
_UNKNOWN = Provider("an unknown provider", re.compile(r"\Z"), "us-east-1", False)


def provider_of(endpoint: str | None) -> tuple[Provider, str]:
    """The provider behind an endpoint and its region."""
    if endpoint is None:
        return _AWS, _AWS.region
    host = urlsplit(endpoint).hostname or ""
    for provider in PROVIDERS:
        if match := provider.host.search(host):
            return provider, match.groupdict().get("region") or provider.region
    return _UNKNOWN, _UNKNOWN.region


def parse_s3_url(url: str, env: Mapping[str, str]) -> S3Config:
    """Read the URL; the key comes from env (AWS_ACCESS_KEY_ID and friends), or stays None for boto3's own
    chain.
    """
    parts = urlsplit(url)
    options = _options(parts.query)
    bucket = parts.netloc
    if not _BUCKET.match(bucket):
        raise InvalidInput("the store URL names no valid bucket (keys never go into the URL)", f"use {EXAMPLE}")
    prefix = parts.path.strip("/")
    if prefix and not is_key(prefix):
        raise InvalidInput(f"{prefix!r} cannot be a prefix of keys", f"use {EXAMPLE}")
    endpoint = _endpoint(options.get("endpoint") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL"))
    provider, region = provider_of(endpoint)
    if endpoint is None:
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or region
    access, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if bool(access) != bool(secret):
        raise InvalidInput("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set", "set both, or none")
    return S3Config(
        bucket=bucket,
        prefix=prefix,
        endpoint=endpoint,
        region=options.get("region") or region,
        access_key=access or None,
        secret_key=secret or None,
        session_token=env.get("AWS_SESSION_TOKEN") or None if access else None,
        addressing=_addressing(options.get("addressing", "auto")),
        create_once=_yes_no(options.get("create_once"), provider.create_once),
    )


def open_s3(url: str, env: Mapping[str, str]) -> Store:
    """The registry's entry for `s3`."""
    return S3Store(parse_s3_url(url, env))


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:  # the value is not shown: it may be a key that does not belong here
            raise InvalidInput(f"the store URL has an unknown option {name[:40]!r}", f"known: {', '.join(_OPTIONS)}")
    return options


def _endpoint(text: str | None) -> str | None:
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("the store's endpoint must begin with https:// (or http://)", f"use {EXAMPLE}")
    if parts.username or parts.password or parts.query:
        raise InvalidInput("the store's endpoint must not carry keys or a query", "put keys into AWS_ACCESS_KEY_ID")
    return text.rstrip("/")


def _addressing(text: str) -> Addressing:
    for known in get_args(Addressing):
        if text == known:
            return cast(Addressing, known)
    raise InvalidInput("addressing in the store URL must be auto, path or virtual", f"use {EXAMPLE}")


def _yes_no(text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() not in _BOOLS:
        raise InvalidInput("create_once in the store URL must be yes or no", f"use {EXAMPLE}")
    return _BOOLS[text.lower()]
