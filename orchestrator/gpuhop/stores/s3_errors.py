"""botocore's errors -> ours: a fact, the next thing to type, and never a word that could carry a secret.

The server's own message is not repeated (SignatureDoesNotMatch answers with the string to sign); the error
code is. Codes: AWS "Error responses" page; R2 and B2 rows B6-B14 of facts/platforms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpuhop.errors import ObjectMissing, StoreError
from gpuhop.stores.errors import (
    CHECK,
    BucketMissing,
    CapExceeded,
    ClockSkewed,
    StoreBusy,
    StoreRefused,
    StoreUnreachable,
)

SKEW_LIMIT_S = 900.0
"""S3 refuses requests whose date is more than 15 minutes off (facts/platforms.md B6)."""

_KEYS_HINT = f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key of this bucket, then: {CHECK}"


@dataclass(frozen=True)
class Place:
    """Where the failed call went: names that may stand in a message."""

    bucket: str
    host: str
    region: str
    operation: str
    key: str | None

    def __str__(self) -> str:
        return f"bucket {self.bucket} at {self.host}"


@dataclass(frozen=True)
class _Answer:
    status: int
    code: str
    message: str
    date: str | None


_REFUSALS = {
    "InvalidAccessKeyId": "does not know the access key id",
    "SignatureDoesNotMatch": "says that the secret key does not belong to the access key id",
    "ExpiredToken": "says that the session token has expired",
    "InvalidToken": "says that the session token is invalid",
    "AccessDenied": "does not allow this key to do {operation}",
}


def translate(error: Exception, place: Place, now: datetime) -> StoreError:
    """The StoreError for a ClientError or BotoCoreError."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        return _from_answer(_answer(response), place, now)
    return _from_transport(type(error).__name__, place)


def skew_seconds(date: str | None, now: datetime) -> float | None:
    """This machine's time minus the time in an HTTP Date header; None without a usable header."""
    try:
        return (now - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return None


def _answer(response: Mapping[str, Any]) -> _Answer:
    meta = response.get("ResponseMetadata", {})
    fault = response["Error"]
    return _Answer(
        status=int(meta.get("HTTPStatusCode", 0)),
        code=str(fault.get("Code", "")),
        message=str(fault.get("Message", "")),
        date=meta.get("HTTPHeaders", {}).get("date"),
    )


def _capped(answer: _Answer) -> bool:
    """B2 answers 403 with "... cap exceeded" in words (B10); others have codes of their own."""
    words = f"{answer.code} {answer.message}".lower().replace("_", " ")
    codes = ("QuotaExceeded", "StorageQuotaExceeded", "InsufficientStorage")
    return "cap exceeded" in words or answer.code in codes or answer.status == 507


def _skewed(answer: _Answer, place: Place, now: datetime) -> StoreError:
    seconds = skew_seconds(answer.date, now)
    measured = "too far from the store's"
    if seconds is not None:
        measured = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the store's"
    fact = f"this machine's clock is {measured} (limit {SKEW_LIMIT_S:.0f} s), so {place} refuses it"
    return ClockSkewed(fact, "set the clock, e.g. sudo timedatectl set-ntp true", seconds)


def _missing(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    if answer.code == "NoSuchBucket":
        return BucketMissing(
            f"{place.host} has no bucket {place.bucket}",
            f"create it in the provider's console, or correct the name in the store URL, then: {CHECK}",
        )
    ended = answer.code == "NoSuchUpload" and place.operation in ("abort_multipart_upload", "list_parts")
    if place.key is not None and (ended or place.operation == "get_object"):
        return ObjectMissing(place.key)
    return StoreError(f"{place} answers {answer.status} {answer.code} to {place.operation}", CHECK)


def _refused(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    reason = _REFUSALS.get(answer.code, f"refuses the key ({answer.status} {answer.code})")
    return StoreRefused(f"{place} {reason.format(operation=place.operation)}", _KEYS_HINT)


def _region(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    return StoreRefused(
        f"{place} does not accept region {place.region!r} ({answer.code})",
        "add &region=... to the store URL (Cloudflare R2: auto; others: the region in the endpoint's name)",
    )


def _busy(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    return StoreBusy(
        f"{place} still answers {answer.status} {answer.code} after the retries",
        f"wait a minute, then: {CHECK}",
    )


def _full(_answer: _Answer, place: Place, _now: datetime) -> StoreError:
    return CapExceeded(
        f"a cap of the account behind {place} is used up ({place.operation} refused)",
        "raise the cap or wait for its reset in the provider's console; gpuhop resume <job> afterwards",
    )


def _damaged(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    return StoreError(f"{place} received other bytes than were sent ({answer.code})", CHECK)


def _other(answer: _Answer, place: Place, _now: datetime) -> StoreError:
    return StoreError(f"{place} answers {answer.status} {answer.code} to {place.operation}", CHECK)


_Maker = Callable[[_Answer, Place, datetime], StoreError]

_BY_CODE: dict[str, _Maker] = {
    "RequestTimeTooSkewed": _skewed,
    "NoSuchBucket": _missing,
    "NoSuchKey": _missing,
    "InvalidRegionName": _region,
    "AuthorizationHeaderMalformed": _region,
    "PermanentRedirect": _region,
    "SlowDown": _busy,
    "ServiceUnavailable": _busy,
    "BadDigest": _damaged,
    "XAmzContentSHA256Mismatch": _damaged,
    **dict.fromkeys(_REFUSALS, _refused),
}

_BY_STATUS: dict[int, _Maker] = {401: _refused, 403: _refused, 404: _missing, 429: _busy, 503: _busy}


def _from_answer(answer: _Answer, place: Place, now: datetime) -> StoreError:
    if _capped(answer):
        return _full(answer, place, now)
    make = _BY_CODE.get(answer.code) or _BY_STATUS.get(answer.status, _other)
    return make(answer, place, now)


def _from_transport(name: str, place: Place) -> StoreError:
    """Errors without an answer, told apart by botocore's class names."""
    if "Credential" in name or name in ("ProfileNotFound", "TokenRetrievalError", "SSOTokenLoadError"):
        return StoreRefused(f"no usable key for {place} ({name})", _KEYS_HINT)
    if name == "SSLError":
        return StoreUnreachable(f"{place.host} has a certificate that this machine does not trust", CHECK)
    if name in ("IncompleteReadError", "ResponseStreamingError"):
        return StoreUnreachable(f"{place} keeps breaking off in the middle of {place.key}", CHECK)
    if name.endswith(("TimeoutError", "ConnectionError", "ClosedError", "HTTPClientError")):
        return StoreUnreachable(
            f"{place.host} does not answer ({name})", f"check the endpoint and your network, then: {CHECK}"
        )
    return StoreError(f"{place.operation} on {place} failed: {name}", CHECK)
