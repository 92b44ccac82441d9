"""Keeps one local session: starts the worker, ends it at its limit, notes when and how. Standard library only.

Run as `python -I host.py FOLDER`, detached from the scheduler, so that a session outlives it. FOLDER holds
`session.json` {"argv", "inherit", "secrets", "limit_s", "kill_s"}; this process writes `claimed` (who it is),
`started.json` and `ended.json`. Whoever makes `stop.json` wants the session to end.
The worker's whole process tree is killed, not only its group: the user's command has a group of its own. On Linux no
part of it outlives this keeper, and what loses its parent stays in sight.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def main(folder: str) -> int:
    if not claim(folder):
        return 0  # another keeper has it, or it was stopped before it began
    with open(os.path.join(folder, "session.json"), encoding="utf-8") as source:
        spec = json.load(source)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if stop_wanted(folder):
        note(folder, "ended.json", {"at": time.time(), "code": None, "why": "stopped"})
        return 0
    worker = start_worker(folder, spec)
    signal.signal(signal.SIGTERM, lambda number, frame: kill_tree(worker.pid))
    note(
        folder,
        "started.json",
        {"pid": worker.pid, "id": identity(worker.pid), "host": os.getpid(), "at": time.time()},
    )
    if stop_wanted(folder):  # asked for before started.json told whom to kill
        kill_tree(worker.pid)
    limit = min(x for x in (spec["limit_s"], spec["kill_s"]) if x is not None)
    try:
        code = worker.wait(timeout=limit)
        why = "ended"
    except subprocess.TimeoutExpired:
        kill_tree(worker.pid)
        code = worker.wait()
        why = "limit" if limit == spec["limit_s"] else "killed"
    kill_rest(worker.pid)
    note(folder, "ended.json", {"at": time.time(), "code": code, "why": why})
    return 0


def start_worker(folder: str, spec: dict[str, list[str]]) -> subprocess.Popen[bytes]:
    names = [*spec["inherit"], *spec["secrets"]]
    keeper = os.getpid()

    def tie() -> None:
        """In the child: it dies with its keeper, else it would run on unmetered and beyond its limit."""
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)

    with open(os.path.join(folder, "output.log"), "ab") as output:
        return subprocess.Popen(
            spec["argv"],
            env={name: os.environ[name] for name in names if name in os.environ},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie,  # noqa: PLW1509  this process has one thread
        )


# ---------------------------------------------------------------- notes


def note(folder: str, name: str, body: dict[str, object]) -> None:
    temp = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    with open(temp, "w", encoding="utf-8") as out:
        json.dump(body, out)
    os.replace(temp, os.path.join(folder, name))


def claim(folder: str) -> bool:
    """Take the session; False when it is taken. The file appears whole: nobody ever reads an empty claim."""
    temp = os.path.join(folder, f".claimed.{os.getpid()}.tmp")
    with open(temp, "w", encoding="utf-8") as out:
        json.dump({"pid": os.getpid(), "id": identity(os.getpid())}, out)
    try:
        os.link(temp, os.path.join(folder, "claimed"))
    except FileExistsError:
        return False
    finally:
        os.unlink(temp)
    return True


def stop_wanted(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "stop.json"))


# ---------------------------------------------------------------- processes


def identity(pid: int) -> str | None:
    """Tells a process from a later one with the same number; None when it does not run (a zombie does not)."""
    if os.path.isdir("/proc/self"):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as source:
                fields = source.read().rpartition(")")[2].split()
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
                boot = source.read().strip()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()


def kill_rest(worker: int) -> None:
    """What the ended worker left behind: on Linux it has become our child, elsewhere its session is all we know."""
    if _LIBC is None:
        for pid, _, session in processes():
            if session == worker and pid != worker:
                _send(pid, signal.SIGKILL)
        return
    for _ in range(100):
        rest = [pid for pid in tree(os.getpid()) if pid != os.getpid()]
        if not rest:
            return
        for pid in rest:
            _send(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def kill_tree(root: int) -> None:
    """Stop everything first, so that nothing can start a child meanwhile, then kill it."""
    members = tree(root)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in members:
            _send(pid, number)
        members = sorted({*members, *tree(root)})


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def tree(root: int) -> list[int]:
    """The process and its descendants, by parent links; and everything in the sessions that they lead."""
    parents: dict[int, list[int]] = {}
    leaders: dict[int, list[int]] = {}
    for pid, parent, session in processes():
        parents.setdefault(parent, []).append(pid)
        leaders.setdefault(session, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.append(pid)
            queue += parents.get(pid, []) + leaders.get(pid, [])
    return found


def processes() -> list[tuple[int, int, int]]:
    """(pid, parent, session) of all processes: from /proc, or from `ps` where there is none."""
    if not os.path.isdir("/proc/self"):
        text = subprocess.run(["ps", "-axo", "pid=,ppid=,sess="], capture_output=True, text=True, check=False).stdout
        return [(int(a), int(b), int(c, 16)) for a, b, c in (line.split()[:3] for line in text.splitlines())]
    rows = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as source:
                    fields = source.read().rpartition(")")[2].split()
                rows.append((int(name), int(fields[1]), int(fields[3])))
            except OSError:
                continue
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
