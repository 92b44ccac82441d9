"""The worker zipapp: the same bytes each time, and it runs alone."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuhop.platforms.bundle import build


def test_same_sources_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    monkeypatch.chdir(tmp_path)
    os.umask(os.umask(0o077))
    assert build() == first
    assert first.sha256 == hashlib.sha256(first.body).hexdigest()


def test_it_holds_the_whole_worker_and_nothing_else(tmp_path: Path) -> None:
    import gpuhop_worker

    package = Path(gpuhop_worker.__file__).parent
    path = tmp_path / "w.pyz"
    path.write_bytes(build().body)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    wanted = {f"gpuhop_worker/{p.relative_to(package).as_posix()}" for p in package.rglob("*.py")}
    assert set(names) == wanted | {"__main__.py"} and names == ["__main__.py", *sorted(wanted)]


def test_it_runs_without_any_package(tmp_path: Path) -> None:
    path = tmp_path / "w.pyz"
    path.write_bytes(build().body)
    argv = [sys.executable, "-I", "-S", str(path), "--grant", "file:///nowhere", "--dir", str(tmp_path / "d")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 10
    assert "the grant cannot be read" in done.stderr
