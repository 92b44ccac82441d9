from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuhop.errors import InvalidInput, MissingExtra
from gpuhop.stores.http import is_create_once
from gpuhop.stores.local import LocalStore
from gpuhop.stores.registry import open_store
from gpuhop.stores.s3 import S3Config, S3Store
from gpuhop.stores.s3_url import parse_s3_url

ENV = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE00", "AWS_SECRET_ACCESS_KEY": "very-secret-value"}


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_a_folder(form: str, tmp_path: Path) -> None:
    store = open_store(form.format(tmp_path / "s"), {})
    assert isinstance(store, LocalStore) and repr(store) == f"LocalStore({str(tmp_path / 's')!r})"
    assert not (tmp_path / "s").exists()


def test_home_comes_from_the_mapping(tmp_path: Path) -> None:
    assert repr(open_store("~/s", {"HOME": str(tmp_path)})) == f"LocalStore({str(tmp_path / 's')!r})"
    with pytest.raises(InvalidInput):
        open_store("~/s", {})


def test_a_quoted_file_url(tmp_path: Path) -> None:
    assert repr(open_store("file:///tmp/a%20b", {})) == "LocalStore('/tmp/a b')"


@pytest.mark.parametrize("url", ["gs://b", "https://host/b", "", "file://host/x", "file:///x?y=1"])
def test_what_is_no_store(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url, {})
    if url.startswith("gs"):
        assert "s3://" in caught.value.hint and "file://" in caught.value.hint


@pytest.mark.parametrize(
    ("endpoint", "region", "create_once"),
    [
        ("https://0123abcd.r2.cloudflarestorage.com", "auto", True),
        ("https://0123abcd.eu.r2.cloudflarestorage.com", "auto", True),
        ("https://s3.eu-central-003.backblazeb2.com", "eu-central-003", False),
        ("https://ns.compat.objectstorage.eu-frankfurt-1.oraclecloud.com", "eu-frankfurt-1", False),
        ("https://s3.hf.co/someone", "us-east-1", True),
        ("https://fly.storage.tigris.dev", "auto", True),
        ("https://t3.storage.dev", "auto", True),
        ("https://gateway.storjshare.io", "us-east-1", True),
        ("https://s3.eu-west-1.amazonaws.com", "eu-west-1", True),
        ("https://minio.example.org:9000/", "us-east-1", False),
        ("https://evil-r2.cloudflarestorage.com.example.org", "us-east-1", False),
    ],
)
def test_providers(endpoint: str, region: str, create_once: bool) -> None:
    config = parse_s3_url(f"s3://bucket/pre/fix/?endpoint={endpoint}", {**ENV, "AWS_REGION": "mars-1"})
    assert (config.region, config.create_once) == (region, create_once)
    assert config.prefix == "pre/fix" and config.address_style == "path"


def test_the_url_outweighs_what_is_known() -> None:
    url = "s3://bucket?endpoint=https://x.r2.cloudflarestorage.com&region=weur&create_once=no&addressing=virtual"
    config = parse_s3_url(url, ENV)
    assert (config.region, config.create_once, config.address_style) == ("weur", False, "virtual")
    assert config.prefix == ""


def test_aws_itself() -> None:
    config = parse_s3_url("s3://bucket", {**ENV, "AWS_REGION": "eu-west-3", "AWS_SESSION_TOKEN": "tok"})
    assert (config.endpoint, config.region, config.address_style) == (None, "eu-west-3", "auto")
    assert config.session_token == "tok" and config.create_once
    assert parse_s3_url("s3://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}).endpoint == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///key",
        "s3://a",
        "s3://AKIA:very-secret-value@bucket",
        "s3://bucket/a/../b",
        "s3://bucket?secret_key=very-secret-value",
        "s3://bucket?endpoint=ftp://x",
        "s3://bucket?endpoint=https://u:very-secret-value@host",
        "s3://bucket?create_once=maybe",
        "s3://bucket?addressing=dns",
    ],
)
def test_bad_urls_are_refused_without_repeating_a_secret(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url, ENV)
    assert "very-secret-value" not in str(caught.value)


def test_half_a_key_is_refused() -> None:
    with pytest.raises(InvalidInput):
        open_store("s3://bucket", {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE00"})


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtra) as caught:
        open_store("s3://bucket", ENV)
    assert "gpuhop[s3]" in caught.value.hint


def test_opening_a_folder_imports_no_boto3(tmp_path: Path) -> None:
    code = "import sys; from gpuhop.stores.registry import open_store; open_store('x', {})"
    code += "; print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "False\n"


def _store(**more: object) -> S3Store:
    config = S3Config("bucket", "p", "https://x.r2.cloudflarestorage.com", region="auto", access_key="AKIA")
    return S3Store(S3Config(**{**vars(config), "secret_key": "very-secret-value", **more}))


def test_addresses_are_sigv4_and_bind_the_condition() -> None:
    store = _store(max_presign_s=3600.0)
    for verb in ("get", "put", "put_new", "delete"):
        address = store.presign(verb, "k", 9e9)
        query = parse_qs(urlsplit(address).query)
        assert urlsplit(address).path == "/bucket/p/k"
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"] and query["X-Amz-Expires"] == ["3600"]
        signed = "host;if-none-match" if verb == "put_new" else "host"
        assert query["X-Amz-SignedHeaders"] == [signed]
        assert is_create_once(address) is (verb == "put_new")
        assert "very-secret-value" not in address
    assert parse_qs(urlsplit(store.presign("get", "k", 0.2)).query)["X-Amz-Expires"] == ["1"]
    assert "very-secret-value" not in repr(store)


def test_a_named_endpoint_in_us_east_1_is_not_signed_with_v2() -> None:
    """boto3's default for it (facts/platforms.md 3.1); SigV2 drops the create-once condition silently."""
    address = _store(endpoint="http://127.0.0.1:9000", region="us-east-1").presign("put_new", "k", 60)
    assert "X-Amz-SignedHeaders=host%3Bif-none-match" in address


def test_thousands_of_addresses_are_quick() -> None:
    """0.2 ms each on a quiet vCPU; CPU time, so that a loaded machine does not fail it."""
    store = _store()
    store.presign("put", "warm", 60)
    start = time.process_time()
    for number in range(500):
        store.presign("put_new", f"jobs/a/t0007/pack-{number:06d}", 86400)
    assert (time.process_time() - start) / 500 < 0.002
