"""Slots: who may write where, and that running out of room is an error and no crash."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sessions import WORKERS

from gpuhop_worker import slots
from gpuhop_worker.slots import Picker, Slot, SlotKeeper, layout


@given(st.lists(st.integers(0, 10_000)))
def test_parts_do_not_overlap_and_are_aligned(sizes: list[int]) -> None:
    offsets, whole = layout(sizes)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(offset % slots.ALIGN == 0 for offset in offsets)
    assert all(end <= after for end, after in zip(ends, [*offsets[1:], whole], strict=False))


@given(st.lists(st.booleans(), max_size=30), st.booleans())
def test_neither_the_base_nor_a_waiting_snapshot_is_overwritten(waits: list[bool], restored: bool) -> None:
    """`committed` is what the runner differences against, `waiting` what it still ships."""
    picker = Picker("a" if restored else None)
    committed, waiting = ("a" if restored else None), None
    for still in waits:
        if waiting is not None and not still:
            committed, waiting = waiting, None
        name = picker.pick(waiting=waiting is not None)
        assert name not in (committed, waiting)
        picker.took(name)
        if waiting is not None:
            return  # only the last snapshot of a session is taken while another waits
        waiting = name


def test_a_snapshot_that_never_became_whole_does_not_free_the_one_before_it() -> None:
    picker = Picker()
    picker.took(picker.pick(waiting=False))  # a: it has left, and is the base of differences
    torn = picker.pick(waiting=False)
    picker.took(torn)
    picker.dropped(torn)
    assert picker.pick(waiting=False) != "a"


def test_after_a_crash_neither_the_waiting_state_nor_its_base_is_overwritten() -> None:
    picker = Picker("b", "a")
    assert picker.pick(waiting=True) == "c"
    assert Picker("b", "a").pick(waiting=False) == "a", "it has left: the base is free"


@pytest.mark.parametrize("memory", [True, False])
def test_another_process_sees_what_was_written(tmp_path: Path, memory: bool) -> None:
    keeper = SlotKeeper(str(tmp_path), memory=memory)
    code = (
        "import sys; from gpuhop_worker.slots import Slot\n"
        "slot = Slot(sys.argv[1]); slot.reserve(100000); slot.view(64, 5)[:] = b'hello'"
    )
    path = str(Path(slots.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, keeper.paths["a"]], check=True, env={**os.environ, "PYTHONPATH": path})
    assert bytes(keeper.opened("a").view(64, 5)) == b"hello"
    keeper.close()


def test_growing_keeps_earlier_views_alive(tmp_path: Path) -> None:
    slot = Slot(str(tmp_path / "s"))
    slot.reserve(100)
    view = slot.view(0, 5)
    view[:] = b"first"
    slot.reserve(1 << 20)
    assert bytes(view) == b"first"
    assert bytes(slot.view(0, 5)) == b"first"


def test_a_full_disk_is_an_error_now_and_no_bus_error_later(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False)
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        slot = Slot(str(tmp_path / "s"))
        with pytest.raises(OSError, match="No space left") as failure:
            slot.reserve(8 << 20)
        assert failure.value.errno == errno.ENOSPC
        slot.reserve(1 << 20)
        slot.view(0, 1 << 20)[:] = bytes(1 << 20)
        slot.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=False)


def test_copy_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        if not there:
            monkeypatch.delitem(sys.modules, "numpy", raising=False)
        target = bytearray(6)
        slots.copy(memoryview(target), b"abcdef")
        assert target == b"abcdef"


SCRIPT = """
import os, resource, sys
from gpuhop_worker.slots import Slot
slot = Slot(sys.argv[1])
slot.reserve(1 << 20)
slot.view(0, 4)[:] = b"kept"
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
try:
    slot.reserve(8 << 20)
except OSError:
    print(os.stat(sys.argv[1]).st_size == 1 << 20, open(sys.argv[1], "rb").read(4))
"""


def test_room_that_does_not_suffice_is_given_back(tmp_path: Path) -> None:
    """Else a save that was skipped for want of space would leave the training none."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "slot")],
        env={**os.environ, "PYTHONPATH": str(WORKERS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True b'kept'\n", done.stderr
