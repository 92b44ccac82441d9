"""Packages that make the worker itself faster, installed for this session alone where the machine lacks them.

They go into the session's own folder, at the end of this process's import path: what the machine has is never shadowed,
and the user's command sees nothing of it. Whatever fails here, the worker goes on with its standard library.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from typing import Callable, Dict, List, Mapping, Sequence

LIMIT_S = 90.0  # for all of it
POLL_S = 0.05
LONGEST_REASON = 200  # characters of pip's own words
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def ensure(
    wanted: Sequence[str],
    folder: str,
    environ: Mapping[str, str],
    stopped: Callable[[], bool] = lambda: False,
    limit_s: float = LIMIT_S,
) -> List[str]:
    """Install what is missing of these requirements, so that it can be imported from here on. Returns lines for the
    log. `folder`: made when needed; `environ`: for pip; `stopped`: asked a few times a second, True ends the try.

    Call it before any module that looks for such a package when it is imported. Raises nothing."""
    absent = [requirement for requirement in wanted if not here(name_of(requirement))]
    if not absent:
        return []
    end = time.monotonic() + limit_s
    try:
        why = _install(absent, folder, environ, stopped, end)
        if why and len(absent) > 1 and not stopped():
            for requirement in absent:  # one of them may have no build for this machine
                _install([requirement], folder, environ, stopped, end)
    except Exception as error:  # a session never fails for want of speed
        why = repr(error)
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    names = [name_of(requirement) for requirement in absent]
    made = [name for name in names if here(name)]
    lacking = [name for name in names if name not in made]
    said = [f"installed for the worker: {', '.join(made)}"] if made else []
    if lacking:
        said.append(f"the worker goes on without {', '.join(lacking)}, which could not be installed: {why}")
    return said


def name_of(requirement: str) -> str:
    """The package's name, which is also the module's; empty for what is no requirement."""
    found = _NAME.match(requirement)
    return found.group(0) if found else ""


def here(name: str) -> bool:
    """True when it can be imported, of whatever version."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _install(
    requirements: Sequence[str], folder: str, environ: Mapping[str, str], stopped: Callable[[], bool], end: float
) -> str:
    """Why it did not work, empty when it did. Raises OSError."""
    if any(not name_of(requirement) for requirement in requirements):
        return f"not a requirement: {next(r for r in requirements if not name_of(r))!r}"
    os.makedirs(folder, exist_ok=True)
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    argv += ["--retries", "1", "--timeout", "15", "--only-binary=:all:", "--target", folder, *requirements]
    with open(_note_path(folder), "wb") as note:
        process = subprocess.Popen(
            argv,
            cwd=folder,  # `-m` looks here first, and nothing but packages lies here
            env=_for_pip(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=note,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            if stopped():
                return "the session was told to stop"
            if time.monotonic() > end:
                return "it took too long"
            time.sleep(POLL_S)
    finally:
        _end(process)
    return "" if process.returncode == 0 else _reason(folder) or f"pip exited with {process.returncode}"


def _for_pip(environ: Mapping[str, str]) -> Dict[str, str]:
    """Users' settings for pip (an index, a proxy) count, but for those that `--target` cannot be combined with."""
    return {name: value for name, value in environ.items() if name not in ("PIP_USER", "PIP_TARGET", "PIP_PREFIX")}


def _note_path(folder: str) -> str:
    return folder.rstrip(os.sep) + ".pip"


def _reason(folder: str) -> str:
    """The last error that pip wrote, without its colours."""
    with open(_note_path(folder), "rb") as source:
        text = re.sub(r"\x1b\[[0-9;]*m", "", source.read().decode("utf-8", "replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1][:LONGEST_REASON]


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
