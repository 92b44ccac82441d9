"""The log: a secret never gets out, wherever it is cut; a dead stdout stops nothing."""

from __future__ import annotations

import gzip
import itertools
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.waiting import until

from gpuhop_worker import logbook
from gpuhop_worker.logbook import Logbook
from gpuhop_worker.store import GrantStore
from gpuhop_worker.streams import SegmentStream

SECRET = "hf_aabaabaabac"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    handle = os.open(tmp_path_factory.mktemp("out") / "stdout", os.O_CREAT | os.O_WRONLY)
    monkeypatch.setattr(logbook, "STDOUT", handle)


def book(path: Path, *secrets: str) -> tuple[Logbook, SegmentStream]:
    stream = SegmentStream(GrantStore({"k": {"put": path.as_uri()}}), ["k"], may_drop=True)
    return Logbook(stream, secrets), stream


def written(path: Path, log: Logbook) -> bytes:
    log.flush()
    return gzip.decompress(path.read_bytes()) if path.exists() else b""


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 60), max_size=8), st.text("hf_abc", max_size=10), st.text("hf_abc", max_size=10))
def test_a_secret_cut_anywhere_is_masked_and_the_rest_is_whole(cuts: list[int], before: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.gz"
        log, _ = book(path, SECRET)
        whole = (before + SECRET + after + SECRET + "\n").encode()
        places = sorted({0, len(whole), *(c for c in cuts if c < len(whole))})
        for a, b in itertools.pairwise(places):
            log.output(whole[a:b])
        log.output_ends()
        log.close()
        assert written(path, log) == whole.replace(SECRET.encode(), b"***")


def test_what_is_held_back_at_the_end_comes_out(tmp_path: Path) -> None:
    log, _ = book(tmp_path / "log.gz", SECRET)
    log.output(b"token is " + SECRET.encode()[:5])
    assert written(tmp_path / "log.gz", log) == b"token is "
    log.output_ends()
    assert written(tmp_path / "log.gz", log) == b"token is " + SECRET.encode()[:5]


def test_the_workers_own_words_are_masked_too(tmp_path: Path) -> None:
    log, _ = book(tmp_path / "log.gz", SECRET)
    log.say(f"store_failed: {SECRET}")
    assert written(tmp_path / "log.gz", log) == b"gpuhop: store_failed: ***\n"


def test_the_longer_of_two_secrets_is_masked_whole(tmp_path: Path) -> None:
    log, _ = book(tmp_path / "log.gz", "abcd", "abcdefgh")
    log.output(b"abcdefgh abcd\n")
    assert written(tmp_path / "log.gz", log) == b"*** ***\n"


def test_each_line_of_a_private_key_is_masked(tmp_path: Path) -> None:
    log, _ = book(tmp_path / "log.gz", "first line of it\nsecond line of it\n")
    log.output(b"> second line of it\n")
    assert written(tmp_path / "log.gz", log) == b"> ***\n"


def test_a_secret_of_three_characters_masks_nothing(tmp_path: Path) -> None:
    log, _ = book(tmp_path / "log.gz", "abc", "")
    log.output(b"abcabc\n")
    assert written(tmp_path / "log.gz", log) == b"abcabc\n"


def test_a_stdout_that_nobody_reads_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(logbook, "STDOUT", writing)
    log, _ = book(tmp_path / "log.gz")
    for _ in range(3000):
        log.output(b"x" * 999 + b"\n")
    log.say("still here")
    assert written(tmp_path / "log.gz", log).endswith(b"gpuhop: still here\n")
    got: list[bytes] = []

    def read() -> None:
        while piece := os.read(reading, 1 << 16):
            got.append(piece)

    reader = threading.Thread(target=read)
    reader.start()

    def told() -> bool:
        log.output(b"and on\n")
        return b" bytes are not shown here\n" in b"".join(got)

    until(told, what="the note of what was left out")
    log.close()
    os.close(writing)
    reader.join()
    os.close(reading)
    assert b"".join(got).endswith(b"and on\n")


def test_a_closed_stdout_stops_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(logbook, "STDOUT", writing)
    log, _ = book(tmp_path / "log.gz")
    log.output(b"one\n")
    log.close()
    log.output(b"two\n")
    os.close(writing)
    assert written(tmp_path / "log.gz", log) == b"one\ntwo\n"


def test_a_full_disk_under_stdout_stops_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(logbook, "STDOUT", handle)
    log, _ = book(tmp_path / "log.gz")
    log.output(b"one\n")
    log.close()
    os.close(handle)
    assert written(tmp_path / "log.gz", log) == b"one\n"
