"""LocalStore when the disk is full, the process dies, folders vanish, or a name is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuhop.errors import DiskFull, StoreError
from gpuhop.stores.keys import TEMP_MARK
from gpuhop.stores.local import LocalStore


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_full_disk_keeps_the_old_object_and_no_leftover(small_disk: Path, tmp_path: Path) -> None:
    store = LocalStore(small_disk / "root")
    store.put("jobs/a/pack", b"old" * 1000)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    acts: list[Callable[[], None]] = [
        lambda: store.put("jobs/a/pack", os.urandom(3 << 20)),
        lambda: store.put("jobs/b/pack", os.urandom(3 << 20)),
        lambda: store.put_file("jobs/a/pack", str(source)),
    ]
    for act in acts:
        with pytest.raises(DiskFull) as caught:
            act()
        assert "df -h" in caught.value.hint
    assert _files(small_disk) == ["root/jobs/a/pack"]
    assert store.get("jobs/a/pack") == b"old" * 1000
    store.put("jobs/b/pack", os.urandom(1 << 20))  # the failed tries gave their space back


_WRITER = """
import sys
from gpuhop.stores.local import LocalStore
store = LocalStore(sys.argv[1])
print("go", flush=True)
number = 0
while True:
    number += 1
    store.put("k", bytes([65 + number % 2]) * 4_000_000)
"""


def test_a_writer_killed_at_any_time_leaves_a_whole_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("k", b"A" * 4_000_000)
    leftovers = 0
    for delay in (0.003, 0.007, 0.013, 0.02):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path / "root")], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        body = store.get("k")
        assert body in (b"A" * 4_000_000, b"B" * 4_000_000)
        assert [entry.key for entry in store.list("")] == ["k"]
        leftovers += sum(Path(name).name.startswith(TEMP_MARK) for name in _files(tmp_path / "root"))
    assert leftovers > 0  # else no kill fell into a write, and nothing was shown


def test_the_bytes_are_synced_before_the_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "root")
    target = tmp_path / "root" / "a" / "b" / "k"
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        real(descriptor)
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name[:5], target.exists()))

    monkeypatch.setattr(os, "fsync", spy)
    store.put("a/b/k", b"x")
    assert [name for name, _ in synced[-2:]] == [TEMP_MARK, "b"]
    assert [exists for _, exists in synced[-2:]] == [False, True]
    assert len(synced) == 5  # the folders above "root", "a" and "b", which were new; the file; its folder


def test_delete_removes_empty_folders_while_others_write_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")

    def churn(worker: int) -> None:
        for _ in range(60):
            store.put(f"x/y/z/{worker}", b"x")
            store.delete(f"x/y/z/{worker}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert list((tmp_path / "root").iterdir()) == []


def test_a_name_is_an_object_or_a_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("a/b", b"x")
    for key in ("a", "a/b/c"):
        with pytest.raises(StoreError):
            store.put(key, b"y")
    assert _files(tmp_path / "root") == ["a/b"]


def test_foreign_files_and_links_are_not_objects(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = LocalStore(root)
    store.put("a/k", b"x")
    (root / "a" / ".tmp-0123").write_bytes(b"leftover")
    (root / "a" / "with space").write_bytes(b"foreign")
    (root / "link").symlink_to(tmp_path)
    assert [entry.key for entry in store.list("")] == ["a/k"]


def test_an_odd_root_is_quoted_in_addresses(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "with space & ümlaut?#")
    store.put("k", b"x")
    assert store.presign("get", "k", 1) == (tmp_path / "with space & ümlaut?#" / "k").as_uri()
    assert store.presign("put_new", "k", 1).endswith("%23/k?create=once")
