"""Segments: one stream cut into numbered objects, each rewritten by its one writer until it is full."""

from __future__ import annotations

import gzip
import random
import threading
from pathlib import Path

import pytest

from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.streams import MetricsFile, SegmentStream

SEGMENT = 100


class Folder:
    """A folder store with `count` keys, which can be taken away and given back."""

    def __init__(self, root: Path, count: int) -> None:
        self.root = root / "store"
        self.keys = [f"s-{n:06d}.gz" for n in range(1, count + 1)]
        urls = {key: {"put": (self.root / key).as_uri()} for key in self.keys}
        self.store = GrantStore(urls, patience_s=0.0)

    def stream(self, *, may_drop: bool) -> SegmentStream:
        return SegmentStream(self.store, self.keys, may_drop=may_drop, segment=SEGMENT)

    def parts(self) -> list[bytes]:
        return [gzip.decompress(p.read_bytes()) for p in sorted(self.root.glob("s-*"))]

    def text(self) -> bytes:
        return b"".join(self.parts())

    def break_it(self) -> None:
        if self.root.exists():
            self.root.rename(self.root.with_name("away"))
        self.root.write_bytes(b"a file where the folder was")

    def mend(self) -> None:
        self.root.unlink()
        away = self.root.with_name("away")
        if away.exists():
            away.rename(self.root)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %06d of the stream\n" % n for n in range(first, first + count))


def test_everything_arrives_in_order_in_segments_cut_at_lines(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 50)
    stream = folder.stream(may_drop=False)
    for n in range(100):
        stream.append(lines(n, 1))
        if n % 7 == 0:
            stream.flush()
    stream.flush()
    assert folder.text() == lines(0, 100)
    assert all(part.endswith(b"\n") and len(part) <= SEGMENT for part in folder.parts())


def test_a_segment_is_rewritten_until_it_is_full(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 5)
    stream = folder.stream(may_drop=True)
    stream.append(b"one\n")
    stream.flush()
    stream.append(b"two\n")
    stream.flush()
    assert folder.parts() == [b"one\ntwo\n"]


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 5)
    stream = folder.stream(may_drop=True)
    stream.flush()
    assert not folder.root.exists()
    stream.append(b"one\n")
    stream.flush()
    (folder.root / folder.keys[0]).unlink()
    stream.flush()
    assert folder.parts() == []


def test_metrics_are_never_dropped_when_the_keys_run_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 3)
    stream = folder.stream(may_drop=False)
    stream.append(lines(0, 1000))
    stream.flush()
    assert folder.text() == lines(0, 1000)
    assert len(folder.parts()) == 3


def test_logs_keep_the_newest_and_say_how_much_was_dropped(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 3)
    stream = folder.stream(may_drop=True)
    for n in range(1000):
        stream.append(lines(n, 1))
        if n % 50 == 0:
            stream.flush()
    stream.flush()
    first, second, last = folder.parts()
    assert lines(0, 1000).startswith(first + second)
    note, _, rest = last.partition(b"\n")
    dropped = int(note.split()[1])
    assert note == b"gpuhop: %d bytes of log were dropped here" % dropped
    assert lines(0, 1000).endswith(rest)
    assert len(first + second) + dropped + len(rest) == len(lines(0, 1000))
    assert len(rest) <= 2 * SEGMENT


def test_a_line_longer_than_a_segment_is_cut_and_not_lost(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 20)
    stream = folder.stream(may_drop=False)
    stream.append(b"x" * 777 + b"\n")
    stream.flush()
    assert folder.text() == b"x" * 777 + b"\n"


@pytest.mark.parametrize("may_drop", [False, True])
def test_a_failed_flush_forgets_nothing(tmp_path: Path, may_drop: bool) -> None:
    folder = Folder(tmp_path, 40)
    stream = folder.stream(may_drop=may_drop)
    stream.append(lines(0, 2))
    stream.flush()
    folder.break_it()
    for n in range(2, 20):
        stream.append(lines(n, 1))
        with pytest.raises(StoreFailure):
            stream.flush()
    folder.mend()
    stream.flush()
    assert folder.text() == lines(0, 20)


def test_without_keys_nothing_is_shipped_and_nothing_fails() -> None:
    stream = SegmentStream(GrantStore({}), [], may_drop=True, segment=SEGMENT)
    stream.append(lines(0, 100))
    stream.flush()


def test_many_threads_lose_and_mix_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 400)
    stream = folder.stream(may_drop=False)

    def write(name: int) -> None:
        for n in range(200):
            stream.append(b"%d:%06d\n" % (name, n))
            if n % 20 == name:
                stream.flush()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.flush()
    got = folder.text().splitlines()
    for name in range(4):
        assert [g for g in got if g.startswith(b"%d:" % name)] == [b"%d:%06d" % (name, n) for n in range(200)]
    assert len(got) == 800


def test_random_appends_and_outages_end_in_the_whole_stream(tmp_path: Path) -> None:
    draw = random.Random(8)
    folder = Folder(tmp_path, 60)
    stream = folder.stream(may_drop=False)
    whole, broken = b"", False
    for _ in range(400):
        if draw.random() < 0.1:
            broken = not broken
            (folder.break_it if broken else folder.mend)()
        piece = bytes(draw.choice(b"ab\n") for _ in range(draw.randrange(40)))
        whole += piece
        stream.append(piece)
        try:
            stream.flush()
        except StoreFailure:
            assert broken
    if broken:
        folder.mend()
    stream.flush()
    assert folder.text() == whole


def test_a_metrics_file_ships_whole_lines_only_and_counts_them(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 60)
    path = tmp_path / "metrics.jsonl"
    source = MetricsFile(str(path), folder.stream(may_drop=False))
    assert source.durable() == 0
    path.write_bytes(b'{"step":0}\n{"step":1}\n{"st')
    assert source.durable() == 2
    assert folder.text() == b'{"step":0}\n{"step":1}\n'
    with path.open("ab") as out:
        out.write(b'ep":2}\n')
    folder.break_it()
    with pytest.raises(StoreFailure):
        source.durable()
    folder.mend()
    assert source.durable() == 3
    assert folder.text() == b'{"step":0}\n{"step":1}\n{"step":2}\n'


@pytest.mark.parametrize("shipped", [True, False], ids=["shipped before", "not yet shipped"])
def test_a_crash_is_marked_and_its_half_line_removed(tmp_path: Path, shipped: bool) -> None:
    folder = Folder(tmp_path, 60)
    path = tmp_path / "metrics.jsonl"
    source = MetricsFile(str(path), folder.stream(may_drop=False))
    path.write_bytes(b'{"step":0}\n{"step":1}\n{"st')
    if shipped:
        assert source.durable() == 2
    source.cut(1)
    with path.open("ab") as out:
        out.write(b'{"step":1}\n')
    assert source.durable() == 4
    assert folder.text() == path.read_bytes() == b'{"step":0}\n{"step":1}\n{"step":1,"~cut":true}\n{"step":1}\n'


def test_a_crash_before_the_first_line_needs_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    source = MetricsFile(str(path), Folder(tmp_path, 60).stream(may_drop=False))
    source.cut(5)
    assert not path.exists()
    path.write_bytes(b'{"st')
    source.cut(5)
    assert path.read_bytes() == b""
