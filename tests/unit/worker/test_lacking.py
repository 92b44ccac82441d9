"""Packages of the right name that are not the right ones: half installed, too old, broken. The worker does without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sessions import WORKERS

ASK = "from gpuhop_worker import codecs, hashing; print(codecs.available(), hashing.best())"


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("blake3", "", "True sha256"),
        ("blake3", "raise SystemError('built for another Python')", "True sha256"),
        ("zstandard", "ZstdError = ValueError", "False blake3"),
        ("zstandard", "raise AttributeError('module has no attribute')", "False blake3"),
        ("numpy", "raise RuntimeError('this CPU is too old')", "False blake3"),
    ],
)
def test_a_broken_package_is_as_good_as_none(tmp_path: Path, name: str, body: str, said: str) -> None:
    (tmp_path / f"{name}.py").write_text(body)
    path = f"{tmp_path}{os.pathsep}{WORKERS}"
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == said, done.stderr
