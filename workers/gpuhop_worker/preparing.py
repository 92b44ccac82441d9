"""The way to the command: code, secrets, setup, the state to begin with."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
from typing import Callable, Dict, Mapping, Optional

from gpuhop_worker import files, restore
from gpuhop_worker.folder import put_in_place
from gpuhop_worker.logbook import Logbook
from gpuhop_worker.meter import Meter
from gpuhop_worker.places import Places
from gpuhop_worker.process import POLL_S, Command, exit_code
from gpuhop_worker.restore import Restored
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore
from gpuhop_worker.verdict import Ended
from gpuhop_worker.wire import Grant


def fetch_code(grant: Grant, store: GrantStore, folder: str) -> None:
    """Raises Ended, StoreFailure, OSError."""
    archive = store.get(grant.code_key)
    if hashlib.sha256(archive).hexdigest() != grant.code_sha256:
        raise Ended("failed", "code_damaged")
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar.getmembers():
            files.inside(folder, member.name)
        tar.extractall(folder)  # noqa: S202  our own archive, its hash and its names checked


def check_secrets(grant: Grant, environ: Mapping[str, str]) -> None:
    """Raises Ended."""
    missing = [name for name in grant.secrets if not environ.get(name)]
    if missing:
        raise Ended("failed", "secret_missing", "not set here: {}".format(", ".join(missing)))


def run_setup(grant: Grant, folder: str, env: Dict[str, str], log: Logbook, stop_if_told: Callable[[], None]) -> None:
    """Raises Ended, and what `stop_if_told` raises; then nothing of the setup goes on."""
    if not grant.setup:
        return
    log.say("setup")
    command = Command(grant.setup, folder, env, log.output)
    try:
        while command.poll() is None:
            stop_if_told()
            time.sleep(POLL_S)
        code = exit_code(command.finish())
    finally:
        command.kill()
        log.output_ends()
    if code != 0:
        raise Ended("failed", "setup_failed", f"setup exited with {code}", code)


def fetch_state(
    grant: Grant,
    store: GrantStore,
    slot: Slot,
    say: Callable[[str], None],
    stop_if_told: Callable[[], None],
    meter: Meter,
) -> Optional[Restored]:
    """The newest checkpoint that verifies, None for a job without one. Raises Ended, StoreFailure."""
    try:
        return restore.fetch_newest(grant.parents, grant.job, store, slot, say, stop_if_told, meter)
    except restore.CannotRead as error:
        raise Ended("failed", "worker_lacks", str(error)) from error
    except restore.NothingVerifies as error:
        raise Ended("failed", "restore_failed", str(error)) from error


def put_down(grant: Grant, places: Places, restored: Restored) -> None:
    """Lay a restored state where the command finds it."""
    if grant.mode == "folder":
        put_in_place(restored, checkpoint_folder(grant, places))
    else:
        files.write_atomic(places.manifest, restored.manifest.to_bytes())


def checkpoint_folder(grant: Grant, places: Places) -> str:
    """Folder mode: where the script keeps its checkpoints."""
    return files.inside(places.code, grant.folder or ".")
