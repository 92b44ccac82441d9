"""Make .venv and install everything that this repository needs, from pinned constraints. Standard library only.

torch: the pin names a version, not a build. Where pip is offered a CPU build of it (a find-links folder, or the CPU
index in TORCH_INDEX), that one is taken: pip prefers 2.13.0+cpu to 2.13.0. On Linux without either, the general
registry's build brings CUDA, several GB: the script says so and how to avoid it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  this very script is what an older Python is told by
        print(f"gpuhop needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        print("  next: make PYTHON=python3.12 demo", file=sys.stderr)
        return 1
    python = VENV / "bin" / "python"
    if not python.exists():
        try:
            venv.create(VENV, with_pip=True, clear=VENV.exists())
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"a virtual environment cannot be made: {error}", file=sys.stderr)
            print("  next: sudo apt install python3-venv   (Debian, Ubuntu)", file=sys.stderr)
            return 1
    print("installing into .venv (about a minute; much longer where torch brings CUDA)", flush=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[dev]", *torch_source()]
    return subprocess.run(command, check=False, env=os.environ).returncode


def torch_source() -> list[str]:
    """Extra pip arguments that offer a CPU build."""
    index = os.environ.get("TORCH_INDEX")
    if index:
        return ["--extra-index-url", index]
    offered = os.environ.get("PIP_FIND_LINKS") or os.environ.get("PIP_EXTRA_INDEX_URL")
    if platform.system() == "Linux" and not offered:
        print("note: this may fetch torch with CUDA (several GB). For the small CPU build:", file=sys.stderr)
        print("  make TORCH_INDEX=<PyTorch's CPU package index> ...", file=sys.stderr)
    return []


if __name__ == "__main__":
    sys.exit(main())
