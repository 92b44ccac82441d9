"""The runner's side as a process of its own: slots and a shipper that ships until its standard input closes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.engine import Session


def runner(folder: str, code: str) -> None:
    """The child. Says its session file, then ships what comes; says what it cost when its input closes."""
    session = Session(Path(folder))
    shipper = session.shipper(None if code == "auto" else code == "on")
    print(json.dumps(session.config()), flush=True)
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    shipped = raw = 0
    began = time.process_time()
    tokens = 1
    while not over.is_set():
        if shipper.checkpoints_left < 2:  # a new grant, as a new session has it
            tokens += 1
            session.token = tokens
            shipper = session.shipper(shipper.code)
        if shipper.ship_newest():
            shipped, raw = shipped + 1, raw + shipper.raw_bytes
        time.sleep(0.05)  # as the runner's own poll
    print(json.dumps({"saves": shipped, "raw": raw, "cpu": time.process_time() - began}), flush=True)


class Runner:
    """The parent's handle of one."""

    def __init__(self, folder: Path, code: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("run.py")), "--internal", "runner", str(folder), code]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.config: dict[str, Any] = self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> Any:
        """What it did, when it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        told = self._line()
        self.process.wait(timeout=60)
        return told
