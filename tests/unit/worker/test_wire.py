"""Sealed documents: no damage goes unseen; newer writers are understood, other formats are refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop_worker import wire
from gpuhop_worker.wire import Beat, Control, Grant, Manifest, Result, WireError

DOCUMENTS: list[Any] = [
    Control(token=7, order="drain"),
    Beat(token=7, seq=3, phase="train", step=12, speed=0.5, note="ü"),
    Result(token=1, status="target", reason="exited_0", step=3, saved_step=3, saved_seq=1, train_s=1.5),
    Manifest("j", 3, 1, 5, "api", [{"key": "p", "size": 9}], [[0, 0, 9, 9, 0, "ab" * 32, -1]], state={"x": [1, "ü"]}),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_every_flipped_bit_is_seen(document: Any) -> None:
    data = document.to_bytes()
    for at in range(len(data)):
        for bit in range(8):
            bent = bytearray(data)
            bent[at] ^= 1 << bit
            with pytest.raises(WireError):
                type(document).from_bytes(bytes(bent))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_every_cut_every_doubled_and_every_zeroed_byte_is_seen(document: Any) -> None:
    data = document.to_bytes()
    for at in range(len(data)):
        for bent in (
            data[:at],
            data[at:] if at else b"",
            data[: at + 1] + data[at : at + 1] + data[at + 1 :],
            data[:at] + bytes(len(data) - at),
            data[:at] + data[at + 1 :],
        ):
            with pytest.raises(WireError):
                type(document).from_bytes(bent)
    for bent in (data + data, data + b"\n", data + b"\0", bytes(len(data))):
        with pytest.raises(WireError):
            type(document).from_bytes(bent)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_documents_come_back_equal_and_are_ascii(document: Any) -> None:
    data = document.to_bytes()
    head, _, body = data.partition(b"\n")
    (zlib.decompress(body) if isinstance(document, Manifest) else body).decode("ascii")
    head.decode("ascii")
    assert type(document).from_bytes(data) == document


def test_unknown_fields_are_ignored_at_the_same_format() -> None:
    body = {"gpuhop": "control", "format": 1, "token": 3, "order": "run", "colour": {"new": [1]}}
    assert Control.from_bytes(wire.seal(body)) == Control(3, "run")


@pytest.mark.parametrize("number", [0, 2, "1", None, 1.5])
def test_another_format_is_refused(number: Any) -> None:
    with pytest.raises(WireError, match="format"):
        Control.from_bytes(wire.seal({"gpuhop": "control", "format": number, "token": 3}))


def test_another_kind_and_a_missing_field_are_refused() -> None:
    with pytest.raises(WireError, match="not a 'control'"):
        Control.from_bytes(DOCUMENTS[1].to_bytes())
    with pytest.raises(WireError, match="lacks token"):
        Control.from_bytes(wire.seal({"gpuhop": "control", "format": 1}))


def test_a_seal_over_something_that_is_no_object_is_refused() -> None:
    for text in (b"[1]", b"nonsense", b'"x"', b""):
        sealed = b"gpuhop1 sha256:" + hashlib.sha256(text).hexdigest().encode() + b"\n" + text
        with pytest.raises(WireError):
            wire.unseal(sealed)


def _sealed(body: bytes) -> bytes:
    return b"gpuhop1 sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_a_sealed_body_that_inflates_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = zlib.compress(b'{"gpuhop":"control","format":1,"token":3}')
    assert Control.from_bytes(_sealed(good)).token == 3
    for body in (
        good[:-1],
        good + b"x",
        good[:-4] + b"\0\0\0\0",
        b"x" + good,
        zlib.compress(b"[1]"),
        zlib.compress(b""),
    ):
        with pytest.raises(WireError):
            Control.from_bytes(_sealed(body))
    monkeypatch.setattr(wire, "MAX_DOCUMENT", 1_000_000)
    bomb = zlib.compress(b'{"a":"' + b"x" * 2_000_000 + b'"}')
    with pytest.raises(WireError, match="more than"):
        Control.from_bytes(_sealed(bomb))


def test_nan_is_refused_when_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Beat(token=1, seq=1, phase="train", step=1, speed=float("nan")).to_bytes()


def test_a_damaged_gzip_is_a_wire_error_wherever_it_is_damaged() -> None:
    grant = Grant("j", 1, "s", "p", "run", "code", "sha", 1.0)
    data = grant.to_gzip()
    assert Grant.from_gzip(data) == grant
    for at in range(len(data)):
        bent = bytearray(data)
        bent[at] ^= 0xFF
        try:
            read = Grant.from_gzip(bytes(bent))
        except WireError:
            continue
        assert read == grant  # a byte of gzip's own header, which carries nothing
    for cut in range(len(data)):
        with pytest.raises(WireError):
            Grant.from_gzip(data[:cut])
    with pytest.raises(WireError):
        Grant.from_gzip(gzip.compress(b"hello"))


def test_equal_documents_have_equal_bytes_and_dicts_keep_their_order() -> None:
    a = Grant("j", 1, "s", "p", "run", "code", "sha", 1.0, env={"b": "1", "a": "2"})
    b = Grant("j", 1, "s", "p", "run", "code", "sha", 1.0, env={"b": "1", "a": "2"})
    assert a.to_gzip() == b.to_gzip()
    assert list(Grant.from_gzip(a.to_gzip()).env) == ["b", "a"]


def test_keys_are_those_of_the_format_page() -> None:
    sha = "0123456789abcdef" + "0" * 48
    assert wire.spec_key("j") == "jobs/j/spec.json"
    assert wire.code_key("j", sha) == "jobs/j/code-0123456789abcdef.tar.gz"
    assert wire.control_key("j") == "jobs/j/control.json"
    assert wire.grant_key("j", 7) == "jobs/j/t0007/grant.json.gz"
    assert wire.beat_key("j", 7) == "jobs/j/t0007/beat.json"
    assert wire.result_key("j", 12345) == "jobs/j/t12345/result.json"
    assert wire.bundle_key(sha) == "worker/0123456789abcdef.pyz"
    names = {w: wire.numbered_key("j", 7, w, 1) for w in ("log", "metrics", "pack", "manifest", "output")}
    assert names == {
        "log": "jobs/j/t0007/log-000001.gz",
        "metrics": "jobs/j/t0007/metrics-000001.gz",
        "pack": "jobs/j/t0007/pack-000001",
        "manifest": "jobs/j/t0007/manifest-000001.json",
        "output": "jobs/j/t0007/output-000001.tar.gz",
    }


@given(st.integers(0, 10**7), st.integers(0, 10**8))
def test_a_manifests_place_is_read_from_its_key(token: int, seq: int) -> None:
    key = wire.numbered_key("a-job", token, "manifest", seq)
    assert wire.manifest_place(key) == (token, seq)
    assert wire.token_of(key) == token


@pytest.mark.parametrize(
    "key", ["jobs/j/t0001/manifest-000001.json.tmp", "jobs/j/t0001/pack-000001", "jobs/j/t1/manifest-000001.json", ""]
)
def test_other_keys_have_no_place(key: str) -> None:
    assert wire.manifest_place(key) is None


def test_a_manifest_keeps_numbers_of_any_size() -> None:
    manifest = Manifest("j", 1, 1, 10**20, "api", [], [], state={"a": [1 << 200, 0.1, -0.0]})
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert json.dumps(again.state) == json.dumps(manifest.state)
