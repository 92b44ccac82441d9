"""Freezing on real folders and real git repositories: what is taken, the same bytes each time, every refusal."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpuhop.errors import InvalidInput
from gpuhop.spec.freeze import FrozenCode, freeze


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, "-C", str(root), *arguments], check=True, capture_output=True)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder `code` beside which there is nothing of git."""
    folder = tmp_path / "code"
    write(folder, {"train.py": "print(1)\n", "lib/data.py": "x = 1\n"})
    return folder


def frozen(folder: Path, **options: int) -> FrozenCode:
    return freeze(folder, into=folder.parent / "out", **options)


def refused(folder: Path, **options: int) -> InvalidInput:
    """The refusal; nothing may be left behind."""
    with pytest.raises(InvalidInput) as caught:
        frozen(folder, **options)
    out = folder.parent / "out"
    assert not out.exists() or not list(out.iterdir())
    return caught.value


def unpack(code: FrozenCode, target: Path) -> dict[str, str]:
    with tarfile.open(code.archive) as tar:
        tar.extractall(target, filter="data")
    return {
        path.relative_to(target).as_posix(): path.read_text()
        for path in target.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_a_plain_folder(code: Path, tmp_path: Path) -> None:
    found = frozen(code)
    assert found.files == ("lib/data.py", "train.py")
    assert found.archive == tmp_path / "out" / f"code-{found.sha256}.tar.gz"
    assert hashlib.sha256(found.archive.read_bytes()).hexdigest() == found.sha256
    assert found.size_bytes == found.archive.stat().st_size
    assert found.content_bytes == 15
    assert unpack(found, tmp_path / "there") == {"train.py": "print(1)\n", "lib/data.py": "x = 1\n"}
    assert list((tmp_path / "out").iterdir()) == [found.archive]


def test_without_a_place_it_lies_in_a_folder_of_its_own(code: Path) -> None:
    found = freeze(code)
    assert list(found.archive.parent.iterdir()) == [found.archive]
    shutil.rmtree(found.archive.parent)


def test_same_content_same_hash(code: Path, tmp_path: Path) -> None:
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o700)
    (code / "link").symlink_to("train.py")
    first = frozen(code)
    other = tmp_path / "elsewhere" / "copy"
    other.mkdir(parents=True)
    for name in sorted(os.listdir(code), reverse=True):
        source = code / name
        if source.is_dir():
            shutil.copytree(source, other / name)
        else:
            shutil.copy(source, other / name, follow_symlinks=False)
    (other / "run.sh").chmod(0o755)
    (other / "train.py").chmod(0o666)
    os.utime(other / "train.py", (1, 1))
    (other / "empty").mkdir()
    second = frozen(other)
    assert second.sha256 == first.sha256
    assert second.archive.read_bytes() == first.archive.read_bytes()
    with tarfile.open(first.archive) as tar:
        rows = [(m.name, m.type, m.mode, m.mtime, m.uid, m.gid, m.uname, m.linkname) for m in tar]
    assert rows == [
        ("lib/data.py", tarfile.REGTYPE, 0o644, 0, 0, 0, "", ""),
        ("link", tarfile.SYMTYPE, 0o644, 0, 0, 0, "", "train.py"),
        ("run.sh", tarfile.REGTYPE, 0o755, 0, 0, 0, "", ""),
        ("train.py", tarfile.REGTYPE, 0o644, 0, 0, 0, "", ""),
    ]
    assert first.archive.read_bytes()[4:8] == b"\0\0\0\0"  # gzip's own time
    (other / "train.py").write_text("print(2)\n")
    assert frozen(other).sha256 != first.sha256


def test_hard_links_and_long_names(code: Path, tmp_path: Path) -> None:
    long = "/".join(["d" * 60] * 5) + "/é.py"
    write(code, {long: "y"})
    os.link(code / "train.py", code / "twin.py")
    found = frozen(code)
    assert unpack(found, tmp_path / "there")["twin.py"] == "print(1)\n"
    assert long in found.files


def test_what_is_never_taken_and_what_the_ignore_file_names(code: Path) -> None:
    write(
        code,
        {
            ".git": "gitdir: nowhere",
            "lib/__pycache__/a.pyc": "",
            "lib/b.pyc": "",
            ".venv/bin/python": "",
            ".gpuhop/state": "",
            "data/big.bin": "",
            "notes.txt": "",
            "keep.txt": "",
            "lib/kaggle.json": "{}",
            ".env": "TOKEN=x",
            "cert.pem": "x",
            ".gpuhopignore": "data/\n*.txt\n!keep.txt\n!cert.pem\n!lib/b.pyc\n",
        },
    )
    (code / ".git").unlink()
    (code / "sub").mkdir()
    write(code, {"sub/.git": "gitdir: nowhere"})
    found = frozen(code)
    assert found.files == (".gpuhopignore", "cert.pem", "keep.txt", "lib/data.py", "train.py")
    assert found.credentials == (".env", "lib/kaggle.json")
    assert found.untracked == ()


def test_git_takes_what_is_tracked_as_it_is_on_the_disk(code: Path, tmp_path: Path) -> None:
    git(code, "init", "-q")
    write(code, {"gone.py": "", "data/big.bin": "0", ".gitignore": "*.log\n", "forced.log": "f"})
    git(code, "add", "train.py", "lib", "gone.py", ".gitignore")
    git(code, "add", "-f", "forced.log")
    git(code, "commit", "-qm", "one")
    write(code, {"train.py": "print('changed')\n", "staged.py": "s", "new.py": "n", "x.log": "", "ä.py": "u"})
    git(code, "add", "staged.py", "ä.py")
    (code / "gone.py").unlink()
    found = frozen(code)
    assert found.files == (".gitignore", "forced.log", "lib/data.py", "staged.py", "train.py", "ä.py")
    assert found.untracked == ("data/", "new.py")
    assert unpack(found, tmp_path / "there")["train.py"] == "print('changed')\n"


def test_a_folder_inside_a_repository(tmp_path: Path) -> None:
    write(tmp_path, {"job/train.py": "a", "job/x/y.py": "b", "job/left.py": "c", "other/z.py": "d"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "job/train.py", "job/x", "other")
    found = frozen(tmp_path / "job")
    assert found.files == ("train.py", "x/y.py")
    assert found.untracked == ("left.py",)
    (tmp_path / "via").symlink_to(tmp_path / "job")
    assert frozen(tmp_path / "via").sha256 == found.sha256


def test_a_folder_that_git_ignores_is_taken_as_if_there_were_no_git(tmp_path: Path) -> None:
    """gpuhop's own demo, run inside a checkout, is such a folder."""
    write(tmp_path, {".gitignore": "scratch/\n", "scratch/job/train.py": "a", "other.py": "b"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".gitignore", "other.py")
    assert frozen(tmp_path / "scratch" / "job").files == ("train.py",)


def test_the_ignore_file_holds_in_git_too(code: Path) -> None:
    write(code, {"data/big.bin": "0", ".env": "X=1", ".gpuhopignore": "data/\n"})
    git(code, "init", "-q")
    git(code, "add", "-A")
    found = frozen(code)
    assert found.files == (".gpuhopignore", "lib/data.py", "train.py")
    assert found.credentials == (".env",)


def test_submodules_are_skipped_and_named(code: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    write(library, {"inner.py": ""})
    git(library, "init", "-q")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "one")
    git(code, "init", "-q")
    git(code, "add", "-A")
    git(code, "submodule", "add", "-q", str(library), "vendor/library")
    found = frozen(code)
    assert found.files == (".gitmodules", "lib/data.py", "train.py")
    assert found.submodules == ("vendor/library",)


def test_inside_dot_git_is_no_work_tree(code: Path) -> None:
    git(code, "init", "-q")
    assert "HEAD" in frozen(code / ".git").files


def test_no_folder(tmp_path: Path) -> None:
    error = refused(tmp_path / "none")
    assert error.fact == f"there is no code folder {tmp_path / 'none'}"
    assert error.hint == "set `code:` in job.yaml to the folder of the script"


def test_a_file_for_a_folder(code: Path) -> None:
    error = refused(code / "train.py")
    assert error.fact == f"{code / 'train.py'} is a file, and code must be a folder"
    assert error.hint == f"set `code: {code}` in job.yaml"


def test_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / ".venv").mkdir(parents=True)
    write(folder, {".venv/x": ""})
    error = refused(folder)
    assert error.fact == f"the code folder {folder} holds no file that could be taken"
    assert error.hint.startswith(f"ls -A {folder}")


def test_nothing_tracked(code: Path) -> None:
    git(code, "init", "-q")
    error = refused(code)
    assert error.fact == f"git tracks no file in {code} that could be taken, and only tracked files are"
    assert error.hint == f"git -C {code} add lib/ train.py"


def test_too_large(code: Path) -> None:
    for number in range(7):
        (code / f"w {number}.bin").write_bytes(b"0" * (100_000 + number * 100_000))
    error = refused(code, limit_bytes=2_000_000)
    assert error.fact == (
        f"the code in {code} is 2.8 MB, more than 2.0 MB; the largest files: w 6.bin (0.7 MB), w 5.bin (0.6 MB), "
        "w 4.bin (0.5 MB), w 3.bin (0.4 MB), w 2.bin (0.3 MB)"
    )
    assert error.hint == f"echo '/w\\ 6.bin' >> {code}/.gpuhopignore"
    subprocess.run(["bash", "-c", error.hint], check=True)
    subprocess.run(["bash", "-c", refused(code, limit_bytes=2_000_000).hint], check=True)
    assert "w 6.bin" not in frozen(code, limit_bytes=2_000_000).files


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../secret", "outside the code folder"),
        ("lib/../../secret", "outside the code folder"),
        ("/etc/passwd", "an absolute path means nothing on another machine"),
        ("via/../../secret", "outside the code folder"),
        ("ring", "leads back to itself"),
    ],
)
def test_links_that_leave(code: Path, tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "secret").write_text("x")
    (code / "via").symlink_to("lib")
    (code / "ring").symlink_to(target)
    error = refused(code)
    assert error.fact.startswith(f"the link ring in {code} points to {target}")
    assert said in error.fact
    assert error.hint == f"echo /ring >> {code}/.gpuhopignore"


def test_a_link_through_a_link_that_leaves(code: Path, tmp_path: Path) -> None:
    git(code, "init", "-q")
    (tmp_path / "outside").mkdir()
    (code / "door").symlink_to("../outside")
    (code / "b").symlink_to("door/x")
    git(code, "add", "b", "train.py")
    assert "the link b in" in refused(code).fact


def test_links_inside_stay_links(code: Path, tmp_path: Path) -> None:
    (code / "folder").symlink_to("lib")
    (code / "lib" / "up").symlink_to("../train.py")
    (code / "dangling").symlink_to("made-later")
    found = frozen(code)
    assert found.files == ("dangling", "folder", "lib/data.py", "lib/up", "train.py")
    unpack(found, tmp_path / "there")
    assert (tmp_path / "there/lib/up").readlink() == Path("../train.py")
    assert (tmp_path / "there/folder/data.py").read_text() == "x = 1\n"


def test_pipes_and_sockets(code: Path) -> None:
    os.mkfifo(code / "pipe")
    error = refused(code)
    assert error.fact == f"{code / 'pipe'} is neither a file nor a link (a pipe, a socket or a device)"
    assert error.hint == f"echo /pipe >> {code}/.gpuhopignore"
    (code / "pipe").unlink()
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            os.chdir(code)  # a socket's path is short
            listener.bind("sock")
        finally:
            os.chdir(here)
        assert "a socket" in refused(code).fact


def test_unreadable(code: Path) -> None:
    (code / "train.py").chmod(0)
    if os.access(code / "train.py", os.R_OK):
        pytest.skip("this user (root) reads everything")
    assert refused(code).fact == f"{code / 'train.py'} cannot be read: Permission denied"
    (code / "lib").chmod(0)
    assert refused(code).fact == f"{code / 'lib'} cannot be read: Permission denied"
    (code / "lib").chmod(0o755)


def test_names_that_are_not_utf8(code: Path) -> None:
    path = os.fsencode(code) + b"/caf\xe9.py"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert refused(code).fact == f"the name of b'caf\\xe9.py' in {code} is not UTF-8"


def test_a_broken_repository(code: Path) -> None:
    git(code, "init", "-q")
    git(code, "add", "-A")
    (code / ".git" / "index").write_bytes(b"not an index")
    error = refused(code)
    assert error.fact.startswith(f"git cannot list the files of {code}: ")
    assert error.hint == f"git -C {code} status"


def test_git_is_absent(code: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in refused(code).fact


def test_a_full_disk(code: Path) -> None:
    from gpuhop.errors import DiskFull
    from gpuhop.spec.archive import write_archive

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (code / "noise").write_bytes(os.urandom(300_000))
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(DiskFull, match="no space left"):
        write_archive(code, ["noise", "train.py"], full)


def test_a_file_that_vanishes(code: Path, tmp_path: Path) -> None:
    from gpuhop.spec.archive import write_archive

    with open(tmp_path / "x", "wb") as target, pytest.raises(InvalidInput, match="changed while it was read"):
        write_archive(code, ["gone.py"], target)


def test_an_endless_file_of_zeros_is_streamed(code: Path) -> None:
    with open(code / "zeros.bin", "wb") as sparse:
        sparse.truncate(64_000_000)
    found = frozen(code)
    assert found.content_bytes == 64_000_015
    with gzip.open(found.archive) as packed:
        assert packed.read(512)
