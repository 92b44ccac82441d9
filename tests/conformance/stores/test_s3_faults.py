"""S3Store when the wire or the server misbehaves: real servers behind a bending proxy, or a wire-level
double.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
from tests.servers.net import S3Server, free_ports
from tests.servers.proxy import Proxy, Seen, Sent, proxy, xml_error

from gpuhop.errors import ObjectMissing, StoreError
from gpuhop.stores.base import Store
from gpuhop.stores.check import check, probe_create_once
from gpuhop.stores.errors import (
    BucketMissing,
    CapExceeded,
    ClockSkewed,
    StoreBusy,
    StoreRefused,
    StoreUnreachable,
)
from gpuhop.stores.http import plain_http
from gpuhop.stores.registry import open_store
from gpuhop.stores.s3 import PART_BYTES, S3Config, S3Store

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SECRET = "wire-double-secret-key-0123456789"


def _store(endpoint: str, now: datetime = NOW) -> S3Store:
    config = S3Config("bucket", "p", endpoint, access_key="AKIAWIREWIREWIREWIRE", secret_key=SECRET)
    return S3Store(config, lambda: now)


def _behind(bent: Proxy, server: S3Server) -> S3Server:
    return replace(server, endpoint=bent.endpoint)


def _everything(store: Store) -> list[Callable[[], object]]:
    return [lambda: store.put("k", b"x"), lambda: store.get("k"), lambda: list(store.list(""))]


def _no_wait(_seconds: float) -> None:
    return None


def test_an_unreachable_endpoint_is_said_within_a_bound() -> None:
    start = time.monotonic()
    with pytest.raises(StoreUnreachable) as caught:
        _store(f"http://127.0.0.1:{free_ports(1)[0]}").put("k", b"x")
    assert time.monotonic() - start < 15
    assert "127.0.0.1" in caught.value.fact and SECRET not in str(caught.value)


@pytest.mark.s3
def test_a_wrong_key_is_told_from_an_unknown_one(seaweed_server: S3Server) -> None:
    wrong = replace(seaweed_server, secret_key="not-the-secret-of-this-key-at-all-0000000")
    unknown = replace(seaweed_server, access_key="AKIANOBODYNOBODYNOBO")
    for server, words in ((wrong, "secret key does not belong"), (unknown, "does not know the access key id")):
        store = open_store(server.url(), server.env)
        for act in _everything(store):
            with pytest.raises(StoreRefused) as caught:
                act()
            assert words in caught.value.fact and "AWS_SECRET_ACCESS_KEY" in caught.value.hint
            assert server.secret_key not in f"{caught.value!s}{caught.value!r}{store!r}"


@pytest.mark.s3
def test_a_missing_bucket_is_named(seaweed_server: S3Server) -> None:
    server = replace(seaweed_server, bucket="no-such-bucket")
    store = open_store(server.url(), server.env)
    for act in _everything(store):
        with pytest.raises(BucketMissing, match="no-such-bucket"):
            act()


@pytest.mark.s3
def test_a_body_damaged_on_its_way_is_refused(seaweed_server: S3Server) -> None:
    def flip(seen: Seen) -> None:
        if seen.method == "PUT" and seen.body:
            seen.body = bytes([seen.body[0] ^ 1]) + seen.body[1:]

    with proxy(seaweed_server.endpoint, flip) as bent:
        server = _behind(bent, seaweed_server)
        store = open_store(server.url("damage"), server.env)
        with pytest.raises(StoreError, match="other bytes than were sent"):
            store.put("k", b"intact")
        with pytest.raises(ObjectMissing):
            store.get("k")


def _strict(seen: Seen) -> Sent | None:
    """What OCI, B2 and HF refuse (facts/platforms.md 3, 3.1, B8; cyberduck issue 16107)."""
    if "aws-chunked" in seen.headers.get("content-encoding", ""):
        return xml_error(501, "NotImplemented", "AWS chunked encoding not supported")
    banned = ("x-amz-checksum-", "x-amz-sdk-checksum", "x-amz-trailer")
    if names := [name for name in seen.headers if name.startswith(banned)]:
        return xml_error(400, "InvalidArgument", f"Unsupported header {names[0]!r}")
    return None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


@pytest.mark.s3
def test_over_tls_nothing_is_sent_that_strict_stores_refuse(
    seaweed_server: S3Server,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """boto3's bodies differ over https (facts/platforms.md 3.1): a plain-http test would never see it."""
    big = tmp_path / "big"
    big.write_bytes(b"z" * (PART_BYTES + 1))
    with proxy(seaweed_server.endpoint, _strict, tls=certificate) as bent:
        server = _behind(bent, seaweed_server)
        with pytest.raises(StoreUnreachable, match="certificate"):
            open_store(server.url("tls"), server.env).put("k", b"x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
        store = open_store(server.url("tls"), server.env)
        store.put("k", b"x")
        store.put_file("big", str(big))
        assert store.get("k") == b"x" and len(store.get("big")) == PART_BYTES + 1
        assert [entry.key for entry in store.list("")] == ["big", "k"]
        store.delete("k")
        bodies = [seen for seen in bent.log if seen.method == "PUT"]
    assert len(bodies) == 3
    for seen in bodies:
        assert len(seen.headers["x-amz-content-sha256"]) == 64  # not UNSIGNED-PAYLOAD
        assert "content-md5" in seen.headers


@pytest.mark.s3
def test_a_failed_multipart_upload_leaves_no_parts(seaweed_server: S3Server, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"z" * (PART_BYTES + 1))

    def refuse_part_2(seen: Seen) -> Sent | None:
        return xml_error(400, "InvalidArgument") if "partNumber=2" in seen.path else None

    with proxy(seaweed_server.endpoint, refuse_part_2) as bent:
        server = _behind(bent, seaweed_server)
        with pytest.raises(StoreError, match="upload_part"):
            open_store(server.url("abort"), server.env).put_file("big", str(big))
    store = open_store(seaweed_server.url("abort"), seaweed_server.env)
    assert list(store.list("")) == [] and _uploads(store) == []


@pytest.mark.s3
def test_parts_of_a_killed_process_are_swept_by_the_next_try(seaweed_server: S3Server, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"z" * (PART_BYTES + 1))
    store = open_store(seaweed_server.url("sweep"), seaweed_server.env)
    assert isinstance(store, S3Store)
    for key in ("sweep/big", "sweep/big2"):
        store._client.create_multipart_upload(Bucket=seaweed_server.bucket, Key=key)
    assert _uploads(store) == ["sweep/big", "sweep/big2"]
    store.put_file("big", str(big))
    assert _uploads(store) == ["sweep/big2"]  # another key: not ours to touch


@pytest.mark.s3
def test_many_uploads_are_listed_to_the_end_and_one_under_a_whole_object_is_left(seaweed_server: S3Server) -> None:
    store = open_store(seaweed_server.url("many"), seaweed_server.env)
    assert isinstance(store, S3Store)
    for number in range(25):
        key = f"many/k-{number:02d}"
        store._client.create_multipart_upload(Bucket=seaweed_server.bucket, Key=key)
    store.put("k-07", b"whole")
    found = [one.key.partition("?")[0] for one in store.leftovers("")]
    assert found == [f"k-{number:02d}" for number in range(25) if number != 7]


def test_pages_of_uploads_and_a_server_that_never_ends_them() -> None:
    def answer(seen: Seen) -> Sent:
        if "uploads" not in seen.path.partition("?")[2]:  # list_objects_v2 and list_parts
            return Sent(200, b"<R><IsTruncated>false</IsTruncated></R>", {"content-type": "application/xml"})
        key = "p/b" if "key-marker=p%2Fa" in seen.path else "p/a"
        row = f"<Upload><Key>{key}</Key><UploadId>u</UploadId></Upload><Upload><Key>q/x</Key></Upload>"
        more = f"<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker>"
        body = f"<ListMultipartUploadsResult>{more}{row}</ListMultipartUploadsResult>"
        return Sent(200, body.encode(), {"content-type": "application/xml"})

    with proxy(on_request=answer) as double:
        found = [one.key for one in _store(double.endpoint).leftovers("")]
        assert set(found) == {"a?upload=u", "b?upload=u"}
        assert sum("uploads" in seen.path for seen in double.log) < 6


@pytest.mark.parametrize("status", [501, 403, 400])
def test_a_store_that_cannot_list_uploads_has_none(status: int) -> None:
    with proxy(
        on_request=lambda _seen: xml_error(status, "NotImplemented" if status == 501 else "AccessDenied")
    ) as double:
        assert list(_store(double.endpoint).leftovers("")) == []


def test_a_store_that_is_away_is_said_when_uploads_are_asked_for() -> None:
    with pytest.raises(StoreUnreachable):
        _store(f"http://127.0.0.1:{free_ports(1)[0]}").leftovers("")


def _uploads(store: object) -> list[str]:
    assert isinstance(store, S3Store)
    page = store._client.list_multipart_uploads(Bucket=store._config.bucket, Prefix=store._prefix)
    return sorted(row["Key"] for row in page.get("Uploads", ()))


@pytest.fixture(scope="module")
def moto_store(moto_server: S3Server) -> Iterator[S3Server]:
    store = open_store(moto_server.url("faults"), moto_server.env)
    store.put("whole", b"0123456789" * 100)
    yield moto_server


def test_a_body_that_breaks_off_is_fetched_again(moto_store: S3Server) -> None:
    cuts = iter([500, 0, None])
    with proxy(moto_store.endpoint, on_reply=lambda _seen, sent: replace(sent, cut_at=next(cuts))) as bent:
        server = _behind(bent, moto_store)
        assert open_store(server.url("faults"), server.env).get("whole") == b"0123456789" * 100
        assert len(bent.log) == 3


def test_a_body_that_always_breaks_off_is_said(moto_store: S3Server) -> None:
    with proxy(moto_store.endpoint, on_reply=lambda _seen, sent: replace(sent, cut_at=7)) as bent:
        server = _behind(bent, moto_store)
        with pytest.raises(StoreUnreachable, match="breaking off"):
            open_store(server.url("faults"), server.env).get("whole")


def test_a_store_that_ignores_if_none_match_is_found_out(moto_store: S3Server) -> None:
    """rclone, nanio and JuiceFS answer 200 and overwrite (facts/infra.md section 1)."""

    def strip(seen: Seen) -> None:
        seen.headers.pop("if-none-match", None)

    with proxy(moto_store.endpoint, strip) as bent:
        server = _behind(bent, moto_store)
        store = open_store(server.url("ignores"), server.env)
        assert not probe_create_once(store, sleep=_no_wait)
        found = {finding.name: finding for finding in check(store, lambda: datetime.now(UTC), sleep=_no_wait)}
        assert not found["create once"].ok and found["create once"].required
        assert "create_once=no" in found["create once"].hint
        modest = open_store(server.url("ignores", create_once=False), server.env)
        found = {finding.name: finding for finding in check(modest, lambda: datetime.now(UTC), sleep=_no_wait)}
        assert not found["create once"].ok and not found["create once"].required
        assert list(store.list("")) == []


def test_a_store_that_answers_501_to_if_none_match_is_found_out(moto_store: S3Server) -> None:
    """Backblaze B2 (facts/platforms.md section 3 and B9)."""

    def refuse(seen: Seen) -> Sent | None:
        return xml_error(501, "NotImplemented") if "if-none-match" in seen.headers else None

    with proxy(moto_store.endpoint, refuse) as bent:
        server = _behind(bent, moto_store)
        assert not probe_create_once(open_store(server.url("b2"), server.env), sleep=_no_wait)


def test_busy_answers_are_retried_then_said() -> None:
    answers = iter([xml_error(503, "SlowDown"), xml_error(429, "TooManyRequests"), Sent(200)])
    with proxy(on_request=lambda _seen: next(answers)) as double:
        _store(double.endpoint).put("k", b"x")
        assert len(double.log) == 3
    with proxy(on_request=lambda _seen: xml_error(429, "TooManyRequests")) as double:
        with pytest.raises(StoreBusy, match="429 TooManyRequests after the retries"):
            _store(double.endpoint).put("k", b"x")
        assert len(double.log) == 4


def _skewed(seconds_behind: int) -> Sent:
    sent = xml_error(403, "RequestTimeTooSkewed")
    date = datetime.fromtimestamp(NOW.timestamp() + seconds_behind, UTC)
    return replace(sent, headers={**sent.headers, "date": format_datetime(date, usegmt=True)})


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (_skewed(3600), ClockSkewed, "clock is 3600 s behind the store's"),
        (_skewed(-1200), ClockSkewed, "clock is 1200 s ahead of the store's"),
        (xml_error(403, "AccessDenied", "Transaction cap exceeded, see the Caps page"), CapExceeded, "a cap of"),
        (xml_error(403, "storage_cap_exceeded"), CapExceeded, "a cap of"),
        (xml_error(507, "InsufficientStorage"), CapExceeded, "a cap of"),
        (xml_error(403, "AccessDenied"), StoreRefused, "does not allow this key to do put_object"),
        (xml_error(401, "Unauthorized"), StoreRefused, "refuses the key (401 Unauthorized)"),
        (xml_error(403, "ExpiredToken"), StoreRefused, "session token has expired"),
        (xml_error(400, "ExpiredToken"), StoreRefused, "session token has expired"),
        (xml_error(400, "InvalidRegionName"), StoreRefused, "does not accept region 'us-east-1'"),
        (xml_error(404, "NoSuchBucket"), BucketMissing, "has no bucket bucket"),
        (xml_error(501, "NotImplemented"), StoreError, "501 NotImplemented to put_object"),
        (Sent(418, b"<html>teapot"), StoreError, "answers 418"),
    ],
)
def test_answers_become_a_fact_and_a_next_command(sent: Sent, kind: type[StoreError], words: str) -> None:
    with proxy(on_request=lambda _seen: sent) as double:
        with pytest.raises(StoreError) as caught:
            _store(double.endpoint).put("k", b"x")
    assert type(caught.value) is kind and words in caught.value.fact and caught.value.hint
    assert SECRET not in str(caught.value)
    if isinstance(caught.value, ClockSkewed):
        assert caught.value.seconds in (-3600.0, 1200.0)


def test_long_listings_are_read_to_the_end() -> None:
    def page(seen: Seen) -> Sent:
        second = "continuation-token=next" in seen.path
        names = ["p/c", "p/ not ours", "q/x"] if second else ["p/d", "p/b"]
        rows = "".join(f"<Contents><Key>{name}</Key><Size>{len(name)}</Size></Contents>" for name in names)
        more = "" if second else "<NextContinuationToken>next</NextContinuationToken>"
        flag = "false" if second else "true"
        body = f"<ListBucketResult><IsTruncated>{flag}</IsTruncated>{more}{rows}</ListBucketResult>"
        return Sent(200, body.encode(), {"content-type": "application/xml"})

    with proxy(on_request=page) as double:
        assert [entry.key for entry in _store(double.endpoint).list("")] == ["b", "c", "d", "q/x"]


def test_check_stops_at_the_first_write_and_names_no_secret() -> None:
    with proxy(on_request=lambda _seen: xml_error(403, "AccessDenied")) as double:
        findings = check(_store(double.endpoint), lambda: NOW)
    assert [(finding.name, finding.ok) for finding in findings] == [("write", False)]
    assert SECRET not in repr(findings) and "AWS_SECRET_ACCESS_KEY" in findings[0].hint


def test_an_address_never_stands_in_an_error() -> None:
    address = _store(f"http://127.0.0.1:{free_ports(1)[0]}").presign("put", "k", 60)
    with pytest.raises(StoreUnreachable) as caught:
        plain_http("PUT", address, b"x")
    assert "Signature" not in str(caught.value) and caught.value.__suppress_context__
