"""The worker's own packages: installed for one session where they are missing, and never in anybody's way. No test here
uses a network: pip finds wheels that are made here, in a folder."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support import jobs
from tests.support.sessions import WORKERS, Bench, finish
from tests.support.waiting import until

from gpuhop.platforms import bundle
from gpuhop_worker.packages import name_of

PROBE = "gpuhop_probe"


def wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    """A package of one line, as pip takes it."""
    body = {
        f"{name}/__init__.py": f"version = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in body.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}")
    record = f"{name}-{version}.dist-info/RECORD"
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in {**body, record: "\n".join([*rows, f"{record},,"]) + "\n"}.items():
            archive.writestr(path, text)
    return made


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own, with pip and nothing else."""
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, capture_output=True)
    (folder / "worker.pyz").write_bytes(bundle.build().body)
    return folder


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, str]:
    """Environment of a pip that knows this folder alone, with one package in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, PROBE)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


SEES = jobs.PLAIN + f"\nimport importlib.util\nprint('the command sees', importlib.util.find_spec({PROBE!r}))\n"


def bench_on(machine: Path, root: Path, script: str = SEES) -> Bench:
    bench = Bench(root, {"train.py": script}, target_steps=60, every_steps=20)
    bench.worker = [str(machine / "venv" / "bin" / "python"), "-I", str(machine / "worker.pyz")]
    return bench


def test_what_is_missing_is_installed_for_the_worker_alone(
    machine: Path, tmp_path: Path, wheels: dict[str, str]
) -> None:
    bench = bench_on(machine, tmp_path)
    code, output = bench.run({**wheels, "PAUSE": "0"}, packages=[f"{PROBE}>=0.5"])
    assert code == 0, output
    assert f"gpuhop: installed for the worker: {PROBE}\n".encode() in bench.log()
    assert b"the command sees None\n" in bench.log()
    assert (bench.folder() / "lib" / PROBE).is_dir()


@pytest.mark.parametrize("asked", [["no_such_package"], [f"{PROBE}>=2"], ["!"], ["--index-url=x"]])
def test_what_cannot_be_installed_costs_nothing(
    machine: Path, tmp_path: Path, wheels: dict[str, str], asked: list[str]
) -> None:
    bench = bench_on(machine, tmp_path)
    code, output = bench.run({**wheels, "PAUSE": "0"}, packages=asked)
    assert (code, bench.result().status) == (0, "target"), output
    name = name_of(asked[0])
    assert f"gpuhop: the worker goes on without {name}, which could not be installed: ".encode() in bench.log()


def test_one_that_cannot_be_installed_does_not_keep_out_the_others(
    machine: Path, tmp_path: Path, wheels: dict[str, str]
) -> None:
    bench = bench_on(machine, tmp_path)
    code, output = bench.run({**wheels, "PAUSE": "0"}, packages=["no_such_package", PROBE])
    assert code == 0, output
    assert f"gpuhop: installed for the worker: {PROBE}\n".encode() in bench.log()
    assert b"without no_such_package, which could not be installed: ERROR: " in bench.log()


def test_what_the_machine_has_is_left_alone(machine: Path, tmp_path: Path, wheels: dict[str, str]) -> None:
    bench = bench_on(machine, tmp_path)
    code, output = bench.run({**wheels, "PAUSE": "0"}, packages=["pip>=999", "json"])
    assert code == 0, output
    assert b"install" not in bench.log() and not (bench.folder() / "lib").exists()


def test_a_machine_without_pip_goes_on_without(tmp_path: Path, wheels: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (tmp_path / "worker.pyz").write_bytes(bundle.build().body)
    bench = bench_on(tmp_path, tmp_path / "b")
    code, output = bench.run({**wheels, "PAUSE": "0"}, packages=[PROBE])
    assert code == 0, output
    assert b"which could not be installed: " in bench.log() and b"No module named pip" in bench.log()


# ---------------------------------------------------------------- a pip that hangs

HANGS = "import os, sys, time\nopen(os.environ['BEGUN'], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"


def hanging(folder: Path) -> dict[str, str]:
    """A stand-in for pip that never ends, and notes its pid."""
    (folder / "pip").mkdir()
    (folder / "pip" / "__init__.py").write_text("")
    (folder / "pip" / "__main__.py").write_text(HANGS)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(WORKERS)]), "BEGUN": str(folder / "begun")}


def gone(begun: Path) -> bool:
    try:
        state = Path(f"/proc/{begun.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_after_its_time_is_over_pip_is_ended(tmp_path: Path) -> None:
    env = {**os.environ, **hanging(tmp_path)}
    code = (
        "import os, sys; from gpuhop_worker import packages\n"
        f"said = packages.ensure([{PROBE!r}], sys.argv[1], os.environ, limit_s=1.0)\n"
        "print(said, sys.path[-1] == sys.argv[1], 'gpuhop_worker.codecs' in sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "lib")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    said = [f"the worker goes on without {PROBE}, which could not be installed: it took too long"]
    assert done.stdout.strip() == f"{said} True False"
    assert gone(tmp_path / "begun")


def test_a_signal_while_it_installs_ends_the_session_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "b", {"train.py": jobs.PLAIN}, target_steps=60)
    process = bench.start(bench.grant(packages=[PROBE]), hanging(tmp_path))
    until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text(), what="pip")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process, 30.0)
    assert (code, bench.result().status, bench.result().reason) == (0, "drained", "signal"), output
    assert bench.steps_logged() == 0 and gone(tmp_path / "begun")


def test_the_time_that_it_takes_is_the_sessions(tmp_path: Path) -> None:
    """Two seconds of budget that pip uses up are not there for the training."""
    slow = hanging(tmp_path)
    (tmp_path / "pip" / "__main__.py").write_text(HANGS.replace("600", "3"))
    bench = Bench(tmp_path / "b", {"train.py": jobs.PLAIN}, target_steps=60)
    code, output = bench.run(slow, packages=[PROBE], budget_s=2.0)
    assert (code, bench.result().reason, bench.steps_logged()) == (0, "budget", 0), output


# ---------------------------------------------------------------- order


def test_nothing_looks_for_the_packages_before_they_can_be_there() -> None:
    code = "import sys, gpuhop_worker.__main__; print(sorted(set(sys.modules) & {'gpuhop_worker.codecs', 'numpy'}))"
    env = {**os.environ, "PYTHONPATH": str(WORKERS)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
