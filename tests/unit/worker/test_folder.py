"""Folder mode: a snapshot is the folder as it was, whole, or none; and it comes back byte for byte."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from gpuhop_worker import checkpoint
from gpuhop_worker.checkpoint import Damaged
from gpuhop_worker.folder import FolderWatch, open_for_writing, put_in_place, scan, whole
from gpuhop_worker.restore import Restored
from gpuhop_worker.slots import Slot, SlotKeeper
from gpuhop_worker.wire import Manifest

SETTLE = 1.0


class Site:
    """A checkpoint folder, its spool, and what was said."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "out"
        self.spool = root / "spool"
        self.folder.mkdir()
        self.spool.mkdir()
        self.said: list[str] = []
        self.slots = SlotKeeper(str(root), memory=False)
        self.watch = FolderWatch(str(self.folder), str(self.spool), self.slots, None, SETTLE, self.said.append)
        self.now = 100.0

    def write(self, name: str, body: bytes = b"x") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    def ready(self, after: float = SETTLE + 0.1, group: int = 2**22 + 1) -> bool:
        self.look(self.now, group)
        self.now += after
        return self.look(self.now, group)

    def look(self, now: float, group: int = 2**22 + 1) -> bool:
        self.watch.look_soon()
        self.watch.look(now, group)
        return self.watch.ready(now)

    def take(self) -> bool:
        return self.watch.take(5, {}, self.now)

    def taken(self) -> Restored:
        """The newest snapshot as it would be restored: the same bytes in a slot."""
        draft = checkpoint.read_draft(str(self.spool / sorted(os.listdir(self.spool))[-1]))
        assert draft is not None
        slot = self.slots.opened(draft["slot"])
        offsets: dict[str, int] = {}
        rows: list[dict[str, Any]] = []
        blocks: list[list[Any]] = []
        for entry in draft["files"]:
            first = len(blocks)
            if "link" not in entry:
                offsets[entry["path"]] = entry["offset"]
                for start in range(0, entry["size"], checkpoint.BLOCK):
                    length = min(checkpoint.BLOCK, entry["size"] - start)
                    blocks.append([0, 0, length, length, 0, "0" * 64, -1])
            rows.append({**entry, "first": first, "last": len(blocks)})
        packs = [{"key": "jobs/j/t0001/pack-000001", "size": 1 << 40}]
        return Restored(Manifest("j", 1, 1, draft["step"], "folder", packs, blocks, files=rows), slot, offsets)


def empty(files: list[dict[str, Any]], folder: Path) -> Restored:
    """A checkpoint of empty files and links."""
    manifest = Manifest("j", 1, 1, 1, "folder", [], [], files=files)
    slot = Slot(str(folder / "slot-of-test"))
    slot.reserve(1)
    (folder / "slot-of-test").unlink()
    return Restored(manifest, slot, {str(file.get("path")): 0 for file in files})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def tree(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns, path.read_bytes())
    return found


# ---------------------------------------------------------------- when


def test_nothing_is_taken_before_the_folder_is_still(site: Site) -> None:
    site.write("a.json")
    assert not site.look(site.now)
    assert not site.look(site.now + SETTLE - 0.01)
    assert site.look(site.now + SETTLE)


def test_a_change_starts_the_wait_anew(site: Site) -> None:
    path = site.write("a.json", b"1")
    assert not site.look(100.0)
    path.write_bytes(b"22")
    assert not site.look(100.9)
    assert not site.look(101.8)


def test_the_same_state_is_taken_once(site: Site) -> None:
    site.write("a.json")
    assert site.ready() and site.take()
    assert not site.ready()
    site.write("b.json")
    assert site.ready()


def test_what_was_there_before_the_command_is_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "spool").mkdir()
    (tmp_path / "out" / "a").write_bytes(b"x")
    keeper = SlotKeeper(str(tmp_path), memory=False)
    watch = FolderWatch(str(tmp_path / "out"), str(tmp_path / "spool"), keeper, None, SETTLE, print)
    watch.look(0.0, 1)
    assert not watch.ready(10.0)


@pytest.mark.parametrize(
    "name",
    ["a.tmp", "a.tmp-123", "a.pt.part", "a.partial", "x.incomplete", "a~", "a.lock", ".a.swp", ".nfs0001", "tmpx/a"],
)
def test_unfinished_names_are_left_out(site: Site, name: str) -> None:
    site.write(name)
    assert scan(str(site.folder)) == ()
    assert not site.ready()


@pytest.mark.parametrize("name", [".metadata", ".hydra/config.yaml", "partition.pt", "template.json", "my.parts/a"])
def test_other_names_are_carried(site: Site, name: str) -> None:
    site.write(name)
    assert [row[0] for row in scan(str(site.folder))] == [name]


@pytest.fixture
def writer(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a file open for writing, and one for reading."""
    site.write("read.json")
    code = f"w = open({str(site.folder / 'w.dat')!r}, 'wb'); r = open({str(site.folder / 'read.json')!r}); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    until((site.folder / "w.dat").exists, what="the writer's file")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_file_that_is_held_open_for_writing_is_waited_for(site: Site, writer: subprocess.Popen[bytes]) -> None:
    until(lambda: open_for_writing(str(site.folder), writer.pid), what="the open file")
    assert not site.ready(group=writer.pid)
    assert not site.watch.ready_at_end(time.time() + 1000)
    assert not open_for_writing(str(site.folder), os.getpgid(0))
    writer.communicate(b"\n")
    assert site.ready(group=writer.pid)


def test_after_its_own_end_a_command_is_trusted_and_after_a_kill_only_what_was_still(site: Site) -> None:
    path = site.write("a.json", b"{")
    changed = path.stat().st_mtime
    assert not site.watch.ready_at_end(changed + SETTLE - 0.1)
    assert site.watch.ready_at_end(changed + SETTLE + 0.1)
    assert site.watch.ready_at_end(None)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
@pytest.mark.parametrize("seen", [True, False], ids=["looked at since", "not looked at since"])
def test_after_a_jump_of_the_clock_the_times_of_files_are_not_believed(
    site: Site, monkeypatch: pytest.MonkeyPatch, jump: float, seen: bool
) -> None:
    """An hour forward just after a file was begun: by its time it has been still for an hour."""
    path = site.write("a.json", b"{")
    changed = path.stat().st_mtime
    real, slept = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jump + slept[0])
    if seen:
        site.look(site.now)
    assert not site.watch.ready_at_end(changed + jump + SETTLE / 2)
    os.utime(path, (changed + jump, changed + jump))
    assert site.watch.ready_at_end(real() + jump + 2 * SETTLE), "still for long enough since the jump"


def test_a_folder_that_cannot_be_read_is_an_error_and_no_empty_folder(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write("deep/a.json")
    real = os.scandir

    def failing(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match="Input/output error"):
        scan(str(site.folder))


def test_files_from_a_clock_that_was_ahead_are_older_than_what_is_written_now(site: Site, tmp_path: Path) -> None:
    ahead = time.time_ns() + 3600 * 10**9
    for place, name in enumerate(["first", "second"]):
        os.utime(site.write(name), ns=(ahead + place, ahead + place))
    assert site.ready() and site.take()
    target = tmp_path / "again"
    put_in_place(site.taken(), str(target))
    fresh = target / "fresh"
    fresh.write_bytes(b"")
    times = [(target / name).stat().st_mtime_ns for name in ("first", "second", "fresh")]
    assert times == sorted(times) and times[0] < times[1]


# ---------------------------------------------------------------- known containers


def torch_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("archive/data.pkl", b"x" * 1000)
        out.writestr("archive/data/0", b"y" * 5000)


def safetensors(path: Path) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))


@pytest.mark.parametrize(
    ("name", "make"),
    [(f"a{end}", torch_zip) for end in (".pt", ".pth", ".ckpt", ".bin", ".npz", ".keras", ".zip")]
    + [("a.safetensors", safetensors)],
)
def test_a_container_cut_at_any_place_is_not_whole(site: Site, name: str, make: Any) -> None:
    path = site.folder / name
    make(path)
    body = path.read_bytes()
    assert whole(str(path))
    for cut in range(0, len(body), 61):
        path.write_bytes(body[:cut])
        if cut == 1:
            continue  # a single P of PK is any file
        assert not whole(str(path)), cut
    path.write_bytes(body[:-1])
    assert not whole(str(path))
    assert not site.ready() and not site.watch.ready_at_end(None)
    assert site.said == [f"{name} is not whole: the checkpoint folder cannot be saved while it is like that"]


def test_an_old_torch_file_and_plain_binaries_pass(site: Site) -> None:
    for name in ("old.pt", "raw.bin"):
        assert whole(str(site.write(name, b"\x80\x02 not a zip")))
    assert whole(str(site.write("empty.json", b"")))
    assert not whole(str(site.write("empty.pt", b"")))


# ---------------------------------------------------------------- what


def fill(site: Site) -> None:
    big = bytes(range(256)) * 40_000  # three blocks
    site.write("ckpt-9/model.bin", big)
    site.write("ckpt-10/model.bin", big[::-1])
    site.write("empty", b"")
    site.write("run.sh", b"#!/bin/sh\n").chmod(0o755)
    site.write("ckpt-10/.metadata", b"dcp")
    os.utime(site.folder / "ckpt-9/model.bin", ns=(1, 1_600_000_000_123_456_789))
    (site.folder / "latest").symlink_to("ckpt-10")
    (site.folder / "ckpt-10" / "up").symlink_to("../ckpt-9/model.bin")
    (site.folder / "absolute").symlink_to(site.folder / "ckpt-9")
    (site.folder / "ckpt-9" / "absolute").symlink_to(site.folder / "run.sh")


def test_the_folder_comes_back_byte_for_byte_with_modes_times_and_links(site: Site, tmp_path: Path) -> None:
    fill(site)
    before = tree(site.folder)
    assert site.ready() and site.take()
    target = tmp_path / "elsewhere" / "out"
    target.mkdir(parents=True)
    (target / "stale").write_bytes(b"from the code archive")
    put_in_place(site.taken(), str(target))
    after = tree(target)
    assert after.pop("absolute") == "ckpt-9" and before.pop("absolute")
    assert after.pop("ckpt-9/absolute") == "../run.sh" and before.pop("ckpt-9/absolute")
    assert after == before
    assert os.listdir(tmp_path / "elsewhere") == ["out"]


def test_the_newest_file_by_time_stays_the_newest(site: Site, tmp_path: Path) -> None:
    for step, name in ((9, "ckpt-9"), (10, "ckpt-10"), (2, "ckpt-2")):
        path = site.write(name)
        os.utime(path, (step, step))
    assert site.ready() and site.take()
    put_in_place(site.taken(), str(tmp_path / "again"))
    assert max((tmp_path / "again").iterdir(), key=os.path.getmtime).name == "ckpt-10"


def test_links_that_lead_out_are_left_out_and_said_once(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    site.write("a.json")
    (site.folder / "data").symlink_to(tmp_path / "data")
    (site.folder / "up").symlink_to("../data")
    assert site.ready() and site.take()
    site.write("b.json")
    assert site.ready() and site.take()
    assert [f["path"] for f in site.taken().manifest.files] == ["a.json", "b.json"]
    assert sorted(site.said) == [
        "the link data leads out of the checkpoint folder, so it is not carried",
        "the link up leads out of the checkpoint folder, so it is not carried",
    ]


def test_a_file_that_changes_while_it_is_read_voids_the_try(site: Site) -> None:
    path = site.write("a.bin", b"x" * 100)
    assert site.ready()
    path.write_bytes(b"y" * 100)
    assert not site.take()
    assert os.listdir(site.spool) == []


@pytest.mark.parametrize("change", ["shorter", "gone", "new file", "replaced"])
def test_every_change_since_the_look_voids_the_try(site: Site, change: str) -> None:
    path = site.write("a.bin", b"x" * 100)
    assert site.ready()
    if change == "shorter":
        os.truncate(path, 10)
    elif change == "gone":
        path.unlink()
    elif change == "new file":
        site.write("b.bin")
    else:
        site.write("c", b"x" * 100).replace(path)
    assert not site.take()
    assert os.listdir(site.spool) == []


def test_a_file_that_cannot_be_read_leaves_nothing_behind(site: Site) -> None:
    site.write("a.bin")
    assert site.ready()
    (site.folder / "a.bin").unlink()
    (site.folder / "a.bin").mkdir()
    with pytest.raises(OSError):
        site.take()
    assert os.listdir(site.spool) == []


# ---------------------------------------------------------------- escapes


def entry(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "size": 0, "mode": 0o644, "mtime": 1, "first": 0, "last": 0, **more}


@pytest.mark.parametrize(
    "files",
    [
        [entry("../x")],
        [entry("/etc/x")],
        [entry("a/../../x")],
        [entry("a/./x")],
        [entry("a//x")],
        [entry("")],
        [entry("a\0b")],
        [entry("a", link="/etc/passwd")],
        [entry("a", link="../x")],
        [entry("a/b", link="../../x")],
        [entry("a", link="b/../../x")],
        [entry("a", link=".")],
        [entry("a", link="")],
        [entry("a", link="b"), entry("a/x")],
        [entry("p/q", link=".."), entry("p/q/e", link="../x")],
        [entry("a"), entry("a/b")],
        [entry("a"), entry("a")],
        [entry(3)],  # type: ignore[arg-type]
        [{"path": "a"}],
    ],
)
def test_paths_that_lead_out_are_refused_before_a_file_is_written(tmp_path: Path, files: list[dict[str, Any]]) -> None:
    restored = empty(files, tmp_path)
    with pytest.raises(Damaged):
        put_in_place(restored, str(tmp_path / "deep" / "out"))
    assert list(tmp_path.iterdir()) == []


def test_links_that_stay_are_made(tmp_path: Path) -> None:
    files = [entry("a/b/c"), entry("a/up", link="../x"), entry("x"), entry("l", link="a/b")]
    put_in_place(empty(files, tmp_path), str(tmp_path / "out"))
    assert sorted(tree(tmp_path / "out")) == ["a/b/c", "a/up", "l", "x"]


def test_a_link_where_the_folder_belongs_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "keep").write_bytes(b"x")
    (tmp_path / "out").symlink_to("other")
    put_in_place(empty([entry("a")], tmp_path), str(tmp_path / "out"))
    assert (tmp_path / "other" / "keep").exists()
    assert not (tmp_path / "out").is_symlink()


def test_blocks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = Manifest("j", 1, 1, 1, "folder", [{"key": "p", "size": 10}], [[0, 0, 10, 10, 0, "x"]])
    checkpoint.check_shape(good)
    bad: list[list[Any]] = [[1, 0, 10, 10, 0, "x"], [0, 1, 10, 10, 0, "x"], [0, -1, 5, 5, 0, "x"]]
    bad += [[0, 0, 10, 1 << 40, 0, "x"], [0], ["a", 0, 10, 10, 0, "x"]]
    for block in bad:
        with pytest.raises(Damaged):
            checkpoint.check_shape(replace(good, blocks=[block]))
    for row in (entry("a", last=2), entry("a", first=1, last=0), entry("a", first=-1)):
        with pytest.raises(Damaged):
            checkpoint.check_shape(replace(good, files=[row]))
    for tensor in ({"name": "a", "alias": "b"}, {"first": 0, "last": 1}, {"name": "a"}):
        with pytest.raises(Damaged):
            checkpoint.check_shape(replace(good, tensors=[tensor]))
