"""The user's command: a process group of its own, its output pumped, stopped politely and then for good."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Callable, Dict, Iterator, List, Optional

from gpuhop_worker import files

POLL_S = 0.05  # how often a running command is looked at


def shell(command: str) -> List[str]:
    """bash stops at the first failing line; where there is none, sh does."""
    bash = shutil.which("bash")
    argv = [bash, "-eo", "pipefail", "-c", command] if bash else ["/bin/sh", "-ec", command]
    setpriv = shutil.which("setpriv")
    # Linux: a command whose runner was killed must not train on as an orphan.
    return [setpriv, "--pdeathsig", "KILL", *argv] if setpriv else argv


class Command:
    """A running command. `output` gets its merged stdout and stderr in pieces, from a thread of its own."""

    def __init__(self, text: str, cwd: str, env: Dict[str, str], output: Callable[[bytes], None]) -> None:
        self._process = subprocess.Popen(
            shell(text),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._output = output
        self._finished = False
        self._pump = threading.Thread(target=self._read, name="gpuhop-output", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Optional[int]:
        """The exit status (negative: killed by that signal), None while it runs."""
        return self._process.poll()

    def has_survivors(self) -> bool:
        """After the command ended: True while others of its group go on. A shell dies of a SIGTERM at once, and the
        training that it started may still be saving."""
        return any(files.process_birth(pid) is not None for pid in group_members(self.pid))

    def gone(self, within_s: float) -> bool:
        """After `finish`: True when nobody of its group goes on, at the latest after so long."""
        end = time.monotonic() + within_s
        while self.has_survivors():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def signal(self, number: int) -> None:
        """To the whole group; silent when it is gone."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def finish(self) -> int:
        """Kill what the command left behind in its group, read the rest of the output. Call after it ended."""
        status = self._process.wait()
        if not self._finished:  # once: afterwards the group's number may belong to somebody else
            self._finished = True
            self.signal(signal.SIGKILL)
            self._pump.join(timeout=5.0)
        return status

    def kill(self) -> int:
        if not self._finished:
            self.signal(signal.SIGKILL)
        return self.finish()

    def _read(self) -> None:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        with self._process.stdout:
            while True:
                piece = os.read(handle, 65536)
                if not piece:
                    return
                self._output(piece)


def group_members(group: int) -> Iterator[int]:
    """Pids of a process group, zombies included (Linux; elsewhere none)."""
    if not os.path.isdir("/proc/self"):
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getpgid(int(name)) == group:
                    yield int(name)
            except OSError:
                continue


def exit_code(status: int) -> int:
    """bash reports a killed child as 128 + signal; Popen as a negative number. One form: negative."""
    return 128 - status if 128 < status <= 192 else status
