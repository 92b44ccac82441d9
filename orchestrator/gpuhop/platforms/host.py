"""Keeps one local session: starts the worker, ends it at its limit, notes when and how. Standard library only.

Run as `python -I host.py FOLDER`, detached from the scheduler, so that a session outlives it. FOLDER holds
`session.json` {"argv", "env", "limit_s", "kill_s", "secrets"}; this process writes `claimed` (its pid),
`started.json` and `ended.json`.
The worker's whole process tree is killed, not only its group: the user's command has a group of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main(folder: str) -> int:
    try:
        claim = os.open(os.path.join(folder, "claimed"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return 0  # another host has it: launching twice starts nothing twice
    os.write(claim, str(os.getpid()).encode())
    os.close(claim)
    with open(os.path.join(folder, "session.json"), encoding="utf-8") as source:
        spec = json.load(source)
    env = {**spec["env"], **{name: os.environ[name] for name in spec["secrets"] if name in os.environ}}
    with open(os.path.join(folder, "output.log"), "ab") as output:
        worker = subprocess.Popen(
            spec["argv"],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note(folder, "started.json", {"pid": worker.pid, "host": os.getpid(), "at": time.time()})
    signal.signal(signal.SIGTERM, lambda number, frame: kill_tree(worker.pid))
    limit = min(x for x in (spec["limit_s"], spec["kill_s"]) if x is not None)
    try:
        code = worker.wait(timeout=limit)
        why = "ended"
    except subprocess.TimeoutExpired:
        kill_tree(worker.pid)
        code = worker.wait()
        why = "limit" if limit == spec["limit_s"] else "killed"
    kill_tree(worker.pid)
    note(folder, "ended.json", {"at": time.time(), "code": code, "why": why})
    return 0


def note(folder: str, name: str, body: dict[str, object]) -> None:
    temp = os.path.join(folder, f".{name}.tmp")
    with open(temp, "w", encoding="utf-8") as out:
        json.dump(body, out)
    os.replace(temp, os.path.join(folder, name))


def kill_tree(root: int) -> None:
    """Stop everything first, so that nothing can start a child meanwhile, then kill it."""
    members = tree(root)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        members = sorted({*members, *tree(root)})


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
