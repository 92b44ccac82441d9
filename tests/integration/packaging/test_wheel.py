"""What is shipped: the wheel's names, its migrations, and a command that works from it, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuhop.db import migrate

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


def test_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"gpuhop", "gpuhop_worker", "gpuhop-0.1.0.dist-info"}
    allowed = (".py", ".toml", ".mako", "METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE")
    assert [name for name in names if not name.endswith(allowed)] == []
    assert "gpuhop/_alembic/env.py" in names
    assert any(name.startswith("gpuhop/_alembic/versions/0001_") for name in names)
    assert "gpuhop/demo/job/train.py" in names
    assert "gpuhop/lab/platforms.toml" in names


def test_the_command_works_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Unpacked far from the checkout, ahead of the editable install on the path."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GPUHOP_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(tmp_path / "site"),
    }
    for args in (["status"], ["doctor"], ["db"]):
        done = subprocess.run(
            [sys.executable, "-m", "gpuhop", *args], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"revision  {migrate.head()}" in done.stdout


def test_same_worker_from_wheel_and_checkout(wheel: Path, tmp_path: Path) -> None:
    from gpuhop.platforms.bundle import build

    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from gpuhop.platforms.bundle import build; print(build().sha256)"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == build().sha256


def test_alembic_is_the_library_and_not_our_folder() -> None:
    import alembic

    assert alembic.__file__ is not None
    assert "site-packages" in alembic.__file__
