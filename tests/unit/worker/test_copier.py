"""The copy thread: what goes wrong in it, beside it, or at the end of its process holds nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.sessions import WORKERS

from gpuhop_worker.copier import Copier


def test_work_that_raises_ends_no_later_work(capfd: pytest.CaptureFixture[str]) -> None:
    copier, done = Copier(), threading.Event()

    def fails() -> None:
        raise MemoryError

    def later() -> None:
        copier.start(fails)
        copier.start(done.set)
        copier.join()

    waits = threading.Thread(target=later, daemon=True)
    waits.start()
    waits.join(20)
    assert done.is_set() and not waits.is_alive()
    assert "MemoryError" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_is_forked_meanwhile_does_not_wait_for_a_thread_that_it_has_not() -> None:
    copier, go, done = Copier(), threading.Event(), threading.Event()
    copier.start(lambda: [None, None][go.wait(20)])
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it, where it waits
        copier.join()
        copier.start(done.set)  # it may even have copies of its own
        copier.join()
        os._exit(0 if done.is_set() else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    copier.join()


SCRIPT = """
import sys
from gpuhop_worker.copier import Copier
copier = Copier()
copier.start(lambda: open(sys.argv[1], "w").write(sys.stdin.read()))
raise RuntimeError("the script ends")
"""


def test_a_script_that_fails_while_its_last_save_is_copied_does_not_lose_it(tmp_path: Path) -> None:
    target = tmp_path / "saved"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(target)],
        env={**os.environ, "PYTHONPATH": str(WORKERS)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "the script ends" not in (line := process.stderr.readline()):
        assert line
    process.communicate("whole")
    assert process.returncode == 1
    assert target.read_text() == "whole"
