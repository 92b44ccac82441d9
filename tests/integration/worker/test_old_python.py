"""The worker as it is shipped: one zipapp, reproducible, alone on Python 3.9 with nothing but its standard library."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.kills import hop, moments
from tests.support import jobs
from tests.support.sessions import WORKERS, Bench

from gpuhop.platforms import bundle


def python39() -> str | None:
    """A Python 3.9 that starts, if this machine has one."""
    found = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"))
    for candidate in [*map(str, found), shutil.which("python3.9") or ""]:
        if candidate:
            code = "import sys; print(sys.version_info[:2] == (3, 9))"
            done = subprocess.run([candidate, "-I", "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == "True":
                return candidate
    return None


PYTHON = python39()


def zipapp(folder: Path) -> Path:
    path = folder / "worker.pyz"
    path.write_bytes(bundle.build().body)
    return path


@pytest.mark.skipif(PYTHON is None, reason="no Python 3.9 here (looked in ~/.pyenv/versions and on the PATH)")
def test_a_job_hops_on_python_3_9(tmp_path: Path) -> None:
    assert PYTHON is not None
    script = jobs.PLAIN + "\nimport sys\nprint('python', *sys.version_info[:2])\n"
    bench = Bench(tmp_path / "b", {"train.py": script}, target_steps=60, every_steps=5)
    bench.worker = [PYTHON, "-I", str(zipapp(tmp_path))]
    story = hop(bench, moments(39, 4, 12))
    assert bench.result().status == "target", story
    assert b"python 3 9\n" in bench.log()
    whole = Bench(tmp_path / "c", {"train.py": script}, target_steps=60, every_steps=5)
    assert whole.run({"PAUSE": "0"})[0] == 0  # on this Python: what is plain Python is equal on both
    assert whole.outcome()["metrics"] == bench.outcome()["metrics"]


@pytest.mark.skipif(PYTHON is None, reason="no Python 3.9 here (looked in ~/.pyenv/versions and on the PATH)")
def test_folder_mode_on_python_3_9(tmp_path: Path) -> None:
    assert PYTHON is not None
    settings: dict[str, Any] = {"mode": "folder", "folder": "out", "every_steps": None, "every_s": 0.1}
    bench = Bench(tmp_path, {"train.py": jobs.FOLDER}, target_steps=20, progress=r"^step (\d+)", **settings)
    bench.worker = [PYTHON, "-I", str(zipapp(tmp_path))]
    code, output = bench.run({"STEPS_TOTAL": "20", "PAUSE": "0"})
    assert (code, bench.result().status) == (0, "target"), output
    assert bench.outcome()["files"][".latest"][1] == b"out/ckpt-20.json"


@pytest.mark.skipif(PYTHON is None, reason="no Python 3.9 here (looked in ~/.pyenv/versions and on the PATH)")
def test_a_crash_on_python_3_9(tmp_path: Path) -> None:
    assert PYTHON is not None
    crash = (
        "    if step == 33 and not os.path.exists('crashed'): open('crashed', 'w').close(); os.kill(os.getpid(), 9)\n"
    )
    script = jobs.PLAIN.replace("    time.sleep(", crash + "    time.sleep(")
    bench = Bench(tmp_path, {"train.py": script}, target_steps=60, every_steps=5)
    bench.worker = [PYTHON, "-I", str(zipapp(tmp_path))]
    code, output = bench.run({"PAUSE": "0.02", "PIP_NO_INDEX": "1"}, packages=["no_such_package"])
    assert (code, bench.result().status, bench.result().restarts) == (0, "target", 1), output
    assert "goes on without no_such_package" in output


@pytest.mark.skipif(PYTHON is None, reason="no Python 3.9 here (looked in ~/.pyenv/versions and on the PATH)")
def test_every_file_compiles_on_python_3_9(tmp_path: Path) -> None:
    assert PYTHON is not None
    copy = shutil.copytree(WORKERS, tmp_path / "workers", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run([PYTHON, "-I", "-m", "compileall", "-q", str(copy)], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_bundle_is_reproducible_and_holds_the_worker_alone(tmp_path: Path) -> None:
    first = bundle.build()
    for path in WORKERS.rglob("*.py"):
        os.utime(path)  # only its time changes
    assert bundle.build() == first
    code = "from gpuhop.platforms import bundle; print(bundle.build().sha256)"
    env = {**os.environ, "PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first.sha256
    with zipfile.ZipFile(io.BytesIO(first.body)) as archive:
        names = archive.namelist()
        assert all(name == "__main__.py" or name.startswith("gpuhop_worker/") for name in names)
        assert all(name.endswith(".py") for name in names)
        assert len(names) == 1 + len(list((WORKERS / "gpuhop_worker").rglob("*.py")))
