"""S3Store: any S3-compatible object store, through boto3.

The settings follow facts/platforms.md 3.1, with one change found since. `when_required` keeps boto3 from
sending aws-chunked bodies and CRC trailers, which OCI, HF and older R2 refuse. The facts then advise a
precomputed `x-amz-checksum-sha256`; Backblaze B2 refuses exactly that header with a 400
(github.com/iterate-ch/cyberduck issue 16107, io7m-com/exfilac issue 35), while `Content-MD5` is as old as S3
itself and is what OCI names first (activepieces issue 14110). So every body travels with Content-MD5, and its
SHA-256 stands in the signature (`payload_signing_enabled`: over https botocore would otherwise sign
UNSIGNED-PAYLOAD as soon as it sees the MD5). SeaweedFS refuses a wrong value of either; moto looks at neither
(facts/infra.md section 1).
"""

from __future__ import annotations

import base64
import builtins
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit

from gpuhop.errors import MissingExtra, NotFound, ObjectMissing, StoreError
from gpuhop.stores.base import Entry, Leftover, StoreTraits, Verb
from gpuhop.stores.errors import StoreBusy, StoreUnreachable
from gpuhop.stores.keys import checked_key, checked_prefix, is_key
from gpuhop.stores.s3_errors import Place, translate

Addressing = Literal["auto", "path", "virtual"]

MAX_PRESIGN_S = 7 * 86400.0
"""SigV4's longest life of an address; boto3 does not check it (facts/platforms.md 3.1)."""

PART_BYTES = 16 << 20
"""Above the 5 MiB minimum of S3, all equal but the last as R2 demands (facts/platforms.md section 3)."""

MAX_PARTS = 10_000
"""S3's and R2's limit; longer files get larger parts."""

CONNECT_S = 5.0
READ_S = 60.0
ATTEMPTS = 4
"""Calls in all. A silent endpoint is given up after 4 x 5 s (20.3 s measured), one that refuses connections
within 1 s: botocore 1.44 pauses at most 50, 100, 200 ms after a lost connection; 1, 2, 4 s when told to slow down.
"""

GET_TRIES = 3
"""A body that breaks off is not retried by botocore (facts/infra.md section 8): done here."""

PartList = builtins.list[dict[str, object]]

_VERBS: dict[Verb, tuple[str, dict[str, str]]] = {
    "get": ("get_object", {}),
    "put": ("put_object", {}),
    "put_new": ("put_object", {"IfNoneMatch": "*"}),
    "delete": ("delete_object", {}),
}


@dataclass(frozen=True)
class S3Config:
    """Where the bucket is and how to sign. Without `access_key`, boto3's own chain finds the key."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    addressing: Addressing = "auto"
    create_once: bool = False
    max_presign_s: float = MAX_PRESIGN_S

    @property
    def host(self) -> str:
        """The endpoint's host and port, for messages."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2] if self.endpoint else "AWS S3"

    @property
    def address_style(self) -> str:
        """Path style for a named endpoint: OCI and HF know no other (facts/platforms.md section 3)."""
        return "path" if self.addressing == "auto" and self.endpoint else self.addressing


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")


def _utc_now() -> datetime:
    return datetime.now(UTC)


class S3Store:
    """A Store in a bucket, below a prefix. One client, which boto3 documents as safe for threads."""

    def __init__(self, config: S3Config, now: Callable[[], datetime] = _utc_now) -> None:
        self._config = config
        self._now = now
        prefix = config.prefix.strip("/")
        self._prefix = checked_prefix(f"{prefix}/") if prefix else ""
        self._client, self._failures = _connect(config)

    def __repr__(self) -> str:
        return f"S3Store({self._config!r})"

    @property
    def traits(self) -> StoreTraits:
        limit = min(self._config.max_presign_s, MAX_PRESIGN_S)
        return StoreTraits(scheme="s3", create_once=self._config.create_once, max_presign_s=limit)

    def get(self, key: str) -> bytes:
        for last in (False,) * (GET_TRIES - 1) + (True,):
            answer = self._call("get_object", key)
            try:
                body: bytes = answer["Body"].read()
                return body
            except self._failures as error:
                if last:
                    raise self._translated(error, "get_object", key) from error
        raise AssertionError("unreachable")

    def put(self, key: str, body: bytes) -> None:
        self._call("put_object", key, Body=body, ContentMD5=_md5(body))

    def put_file(self, key: str, path: str) -> None:
        """One PUT up to PART_BYTES, else a multipart upload. The file must not change meanwhile."""
        checked_key(key)
        try:
            file = Path(path).open("rb")  # noqa: SIM115  (closed below; only the open itself may mean "no file")
        except OSError as error:
            raise NotFound(f"cannot read {path}: {error.strerror}", f"ls -l {path}") from error
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= PART_BYTES:
                self.put(key, file.read())
            else:
                self._put_parts(key, file, max(PART_BYTES, -(-size // MAX_PARTS)))

    def list(self, prefix: str) -> Iterator[Entry]:
        """Sorted here: SeaweedFS lists folder by folder, which differs from S3's byte order (`a-b` and
        `a/b`).

        Objects whose keys gpuhop cannot have written are left out.
        """
        full = self._prefix + checked_prefix(prefix)
        token: dict[str, str] = {}
        found: dict[str, int] = {}
        while True:
            page = self._call("list_objects_v2", None, Prefix=full, **token)
            for row in page.get("Contents", ()):
                key = str(row["Key"]).removeprefix(self._prefix)
                if is_key(key):
                    found[key] = int(row["Size"])
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        return iter([Entry(key, found[key]) for key in sorted(found)])

    def delete(self, key: str) -> None:
        """One by one: OCI refuses the checksum of boto3's delete_objects (facts/platforms.md 3.1)."""
        self._call("delete_object", key)

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Uploads that were begun and not completed; their parts are invisible to list, and paid for (platforms.md
        B11). None where the store has no such call or does not allow it.

        An upload under the key of an object that exists is left alone: SeaweedFS may have completed it and kept its
        record, and aborting it then destroys the object (seaweedfs issue 11382). put_file looks after its own key.
        """
        try:
            found = [self._leftover(row["Key"], row["UploadId"]) for row in self._uploads(prefix)]
        except (StoreUnreachable, StoreBusy):
            raise
        except StoreError:
            return iter(())
        return iter(sorted(found, key=lambda one: one.key))

    def _uploads(self, prefix: str) -> Iterator[dict[str, str]]:
        """(Key without the store's prefix, UploadId) of each upload under way."""
        full = self._prefix + checked_prefix(prefix)
        marker: dict[str, str] = {}
        seen: builtins.list[dict[str, str]] = []
        while True:
            page = self._call("list_multipart_uploads", None, Prefix=full, **marker)
            for row in page.get("Uploads", ()):
                key = str(row["Key"]).removeprefix(self._prefix)
                # The check by prefix is ours: some servers take it as a hint.
                if row["Key"].startswith(full) and is_key(key) and not any(e.key == key for e in self.list(key)):
                    yield {"Key": key, "UploadId": str(row["UploadId"])}
            after = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker")}
            after = {name: value for name, value in after.items() if value}
            if not page.get("IsTruncated") or not after or after in seen:
                return
            marker = after
            seen.append(after)

    def _leftover(self, key: str, upload: str) -> Leftover:
        def remove() -> None:
            with suppress(ObjectMissing):  # NoSuchUpload: it is gone already
                self._call("abort_multipart_upload", key, UploadId=upload)

        return Leftover(f"{key}?upload={upload}", self._parts_size(key, upload), remove)

    def _parts_size(self, key: str, upload: str) -> int:
        """Bytes of the parts so far."""
        size, marker = 0, 0
        try:
            while True:
                page = self._call("list_parts", key, UploadId=upload, PartNumberMarker=marker)
                size += sum(int(part["Size"]) for part in page.get("Parts", ()))
                after = int(page.get("NextPartNumberMarker") or 0)
                if not page.get("IsTruncated") or after <= marker:
                    return size
                marker = after
        except ObjectMissing:  # completed or aborted meanwhile
            return size

    def presign(self, verb: Verb, key: str, ttl_s: float) -> str:
        """A SigV4 address; `ttl_s` is cut to the store's limit. No network, 0.2 ms.

        put_new is signed whether or not the store keeps the condition (`traits.create_once` says so): B2
        answers 501 to it, and some servers ignore it. Who uses the address must send `If-None-Match: *`. An
        address that was signed with temporary credentials dies with them, however long ttl_s is.
        """
        name, extra = _VERBS[verb]
        full = self._prefix + checked_key(key)
        ttl = max(1, int(min(ttl_s, self.traits.max_presign_s)))
        try:
            address: str = self._client.generate_presigned_url(
                name, Params={"Bucket": self._config.bucket, "Key": full, **extra}, ExpiresIn=ttl
            )
        except self._failures as error:
            raise self._translated(error, "presign", key) from error
        return address

    def _put_parts(self, key: str, file: BinaryIO, part_bytes: int) -> None:
        self._drop_unfinished(key)
        upload = self._call("create_multipart_upload", key)["UploadId"]
        try:
            parts: PartList = []
            while body := file.read(part_bytes):
                number = len(parts) + 1
                done = self._call(
                    "upload_part", key, UploadId=upload, PartNumber=number, Body=body, ContentMD5=_md5(body)
                )
                parts.append({"PartNumber": number, "ETag": done["ETag"]})
            self._call("complete_multipart_upload", key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with suppress(StoreError):
                self._call("abort_multipart_upload", key, UploadId=upload)
            raise

    def _drop_unfinished(self, key: str) -> None:
        """Abort what a killed process left under this key: invisible to list, and paid for (platforms.md
        B11).

        Safe because of DESIGN I1: nobody else ever writes this key. A store that cannot list uploads is let
        be.
        """
        full = self._prefix + key
        with suppress(StoreError):
            page = self._call("list_multipart_uploads", None, Prefix=full)
            for row in page.get("Uploads", ()):
                if row["Key"] == full:
                    self._call("abort_multipart_upload", key, UploadId=row["UploadId"])

    def _call(self, operation: str, key: str | None, **params: Any) -> Any:
        """One S3 operation, errors translated. Any: boto3 makes its methods at run time and has no types."""
        if key is not None:
            params["Key"] = self._prefix + checked_key(key)
        try:
            return getattr(self._client, operation)(Bucket=self._config.bucket, **params)
        except self._failures as error:
            raise self._translated(error, operation, key) from error

    def _translated(self, error: Exception, operation: str, key: str | None) -> StoreError:
        place = Place(self._config.bucket, self._config.host, self._config.region, operation, key)
        return translate(error, place, self._now())


@functools.cache
def _models() -> Any:
    """S3's service model, read once per process: the second store opens in 9 ms instead of 60 ms."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def _connect(config: S3Config) -> tuple[Any, tuple[type[Exception], ...]]:
    """A boto3 client and the exceptions that its calls raise."""
    try:
        import boto3.session
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise MissingExtra("boto3", "s3") from error
    settings = Config(
        signature_version="s3v4",  # the default signs with SigV2 for an endpoint of one's own in us-east-1
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        tcp_keepalive=True,
        s3={"addressing_style": config.address_style, "payload_signing_enabled": True},
    )
    failures: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
    place = Place(config.bucket, config.host, config.region, "connect", None)
    try:
        core = botocore.session.Session()
        core.register_component("data_loader", _models())
        session = boto3.session.Session(
            botocore_session=core,
            aws_access_key_id=config.access_key,
            aws_secret_access_key=config.secret_key,
            aws_session_token=config.session_token,
            region_name=config.region,
        )
        return session.client("s3", endpoint_url=config.endpoint, config=settings), failures
    except failures as error:
        raise translate(error, place, _utc_now()) from error
