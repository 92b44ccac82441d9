"""The documents that scheduler and worker exchange: sealed JSON, one dataclass each, and the names of all keys.

`docs/format.md` owns the byte-level rules; the numbers in brackets (R1 ...) are its MUST rules.
Python 3.9, standard library only: this file runs on both sides.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import zlib
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Type, TypeVar

FORMAT = 1
MAX_DOCUMENT = 256 * 1024 * 1024  # bytes; a larger one is refused before it is parsed
_SEAL = re.compile(rb"^gpuhop1 sha256:([0-9a-f]{64})\n")

# ---------------------------------------------------------------- errors


class WireError(Exception):
    """A document that cannot be trusted: wrong seal, wrong kind, unknown format, missing field."""


# ---------------------------------------------------------------- sealing


def seal(body: Dict[str, Any], *, deflated: bool = False) -> bytes:
    """JSON with a first line that holds the hash of the rest (R1). Keys keep their order: a saved dict's order can
    steer a training (a loop over it that draws random numbers)."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    if deflated:
        text = zlib.compress(text, 6)
    return b"gpuhop1 sha256:" + hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def unseal(data: bytes) -> Dict[str, Any]:
    """The JSON object under a seal. Raises WireError when a single bit is not as it was sealed (R2)."""
    if len(data) > MAX_DOCUMENT:
        raise WireError(f"document of {len(data)} bytes is over the limit of {MAX_DOCUMENT}")
    found = _SEAL.match(data)
    if found is None:
        raise WireError("no seal: the first line is not 'gpuhop1 sha256:<hash>'")
    body = data[found.end() :]
    if hashlib.sha256(body).hexdigest().encode() != found.group(1):
        raise WireError("the seal does not match: the document was damaged or cut")
    try:
        parsed = json.loads(body if body.startswith(b"{") else _inflate(body))
    except (ValueError, RecursionError) as error:
        raise WireError(f"sealed, but not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise WireError("sealed JSON is not an object")
    return parsed


def _inflate(body: bytes) -> bytes:
    """The JSON of a deflated body (R4)."""
    engine = zlib.decompressobj()
    try:
        text = engine.decompress(body, MAX_DOCUMENT)
    except zlib.error as error:
        raise WireError(f"sealed, but neither JSON nor a zlib stream: {error}") from error
    if not engine.eof or engine.unused_data:
        raise WireError(f"a zlib stream that does not end with the document, or inflates to more than {MAX_DOCUMENT}")
    return text


T = TypeVar("T", bound="Document")


@dataclasses.dataclass(frozen=True)
class Document:
    """Base of all documents. `kind` is the class name in lower case and stands in the JSON."""

    FORMATS: ClassVar[Tuple[int, ...]] = (1,)  # that this worker reads; the last one is written
    DEFLATED: ClassVar[bool] = False

    def to_bytes(self) -> bytes:
        # Not asdict: it copies every row of a manifest, and all values are plain JSON already.
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body["gpuhop"] = type(self).__name__.lower()
        body["format"] = self.FORMATS[-1]
        return seal(body, deflated=self.DEFLATED)

    @classmethod
    def from_bytes(cls: Type[T], data: bytes) -> T:
        """Raises WireError. Unknown fields are ignored, so that a newer minor writer can add some (R3)."""
        body = unseal(data)
        if body.get("gpuhop") != cls.__name__.lower():
            raise WireError("this is a {!r}, not a {!r}".format(body.get("gpuhop"), cls.__name__.lower()))
        if body.get("format") not in cls.FORMATS:
            raise WireError(f"format {body.get('format')!r} is not known here (this worker reads {cls.FORMATS})")
        fields = dataclasses.fields(cls)
        known = {f.name for f in fields}
        missing = [
            f.name
            for f in fields
            if f.name not in body and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise WireError("a {} lacks {}".format(cls.__name__.lower(), ", ".join(missing)))
        return cls(**{k: v for k, v in body.items() if k in known})


# ---------------------------------------------------------------- documents


@dataclasses.dataclass(frozen=True)
class Grant(Document):
    """All that a session may do, and nothing else: its work and the addresses it may use (I4).

    `addresses`: key -> {verb: URL}; verbs as in gpuhop.stores.base. `parents`: keys of manifests to resume from,
    the newest first. Times in seconds of the session's clock, which runs `time_scale` times as fast as real time
    (1.0 everywhere but in the lab).
    """

    job: str
    token: int
    session: str
    platform: str
    run: str
    code_key: str
    code_sha256: str
    budget_s: float
    setup: Optional[str] = None
    mode: str = "api"
    folder: Optional[str] = None
    every_steps: Optional[int] = None
    every_s: Optional[float] = None
    every_auto: bool = False
    mean_life_s: float = 4 * 3600.0  # how long sessions of this platform live, as far as is known
    read_back: bool = False  # fetch every pack again before its checkpoint counts
    keep: int = 3
    keep_every: Optional[int] = None  # steps
    keep_best: Optional[Dict[str, Any]] = None  # metric, mode, count, as in gpuhop_worker.retention.Best
    target_steps: Optional[int] = None
    target_epochs: Optional[int] = None
    progress: Optional[str] = None
    env: Dict[str, str] = dataclasses.field(default_factory=dict)
    secrets: List[str] = dataclasses.field(default_factory=list)
    outputs: List[str] = dataclasses.field(default_factory=list)
    parents: List[str] = dataclasses.field(default_factory=list)
    addresses: Dict[str, Dict[str, str]] = dataclasses.field(default_factory=dict)
    beat_s: float = 30.0
    log_s: float = 5.0
    grace_s: float = 60.0
    time_scale: float = 1.0
    packages: List[str] = dataclasses.field(default_factory=list)  # requirements that make the worker itself faster
    restarts: int = 3  # how often a command that crashed is started again in the same session

    def to_gzip(self) -> bytes:
        return gzip.compress(self.to_bytes(), mtime=0)

    @classmethod
    def from_gzip(cls, data: bytes) -> Grant:
        try:
            return cls.from_bytes(gzip.decompress(data))
        except (OSError, EOFError, zlib.error) as error:
            raise WireError(f"not a gzip file: {error}") from error


@dataclasses.dataclass(frozen=True)
class Control(Document):
    """How the scheduler speaks to a worker: the current token (fence) and an order."""

    token: int
    order: str = "run"  # run | drain | pause | cancel


@dataclasses.dataclass(frozen=True)
class Beat(Document):
    """A worker's sign of life. `seq` grows by one each time: its change, not `at`, proves life (clock skew)."""

    token: int
    seq: int
    phase: str  # setup | restore | train | drain | ship
    step: int
    saved_step: int = 0
    saved_seq: int = 0
    train_s: float = 0.0
    speed: float = 0.0  # steps per second of the session's clock
    device: str = "cpu"
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Result(Document):
    """The last word of a session. Accepted by the ledger only with the current token (I3)."""

    token: int
    status: str  # target | drained | failed
    reason: str  # one of REASONS
    step: int
    saved_step: int
    saved_seq: int
    train_s: float
    exit_code: Optional[int] = None
    message: str = ""
    outputs: List[str] = dataclasses.field(default_factory=list)
    progressed: bool = False  # something durable was added to the job in this session
    restarts: int = 0  # how often the command was started again after a crash
    repeated: bool = False  # started again, it failed with the same exit code and saved nothing in between


@dataclasses.dataclass(frozen=True)
class Manifest(Document):
    """The commit record that makes a checkpoint exist. It is written last (I2).

    `blocks`: rows [pack index, offset, stored length, raw length, codec, hash of the raw bytes, base row or -1].
    `tensors` and `files` refer to rows `first` up to, not including, `last`.
    """

    FORMATS: ClassVar[Tuple[int, ...]] = (1, 2, 3)
    DEFLATED: ClassVar[bool] = True

    job: str
    token: int
    seq: int
    step: int
    mode: str  # api | folder
    packs: List[Dict[str, Any]]
    blocks: List[List[Any]]
    tensors: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    files: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    state: Any = None
    parent: Optional[List[int]] = None
    fingerprint: Dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics_lines: int = 0
    created_at: float = 0.0  # seconds since the epoch by the worker's clock; for people, never for decisions
    hash: str = "sha256"  # of the blocks


REASONS: Dict[str, str] = {
    "target_reached": "the target is reached",
    "exited_0": "the command exited 0",
    "budget": "the chunk's time budget is used up",
    "signal": "the session was told to stop by a signal",
    "drained": "the scheduler asked for a drain",
    "paused": "the job was paused",
    "cancelled": "the job was cancelled",
    "script_failed": "the command failed",
    "script_killed": "the command was killed by a signal (out of memory is the usual cause)",
    "ended_early": "the command exited 0 before its target",
    "setup_failed": "the setup command failed",
    "restore_failed": "no checkpoint of the job could be restored",
    "restore_refused": "the script does not fit its checkpoint",
    "code_damaged": "the code archive does not match its hash",
    "store_failed": "the store could not be reached or refused a write",
    "disk_full": "the session's disk is full",
    "machine_failed": "the session's machine refused its disk or its memory",
    "secret_missing": "a secret that the job needs is not set on this platform",
    "worker_lacks": "this machine lacks packages that the job's checkpoint needs to be read",
}
"""Reasons a worker may give, each with its meaning in words."""


# ---------------------------------------------------------------- keys

_TOKEN = re.compile(r"/t(\d{4,})/")
_MANIFEST = re.compile(r"/t(\d{4,})/manifest-(\d{6,})\.json$")


def job_prefix(job: str) -> str:
    return f"jobs/{job}/"


def spec_key(job: str) -> str:
    return job_prefix(job) + "spec.json"


def code_key(job: str, sha256: str) -> str:
    return job_prefix(job) + f"code-{sha256[:16]}.tar.gz"


def control_key(job: str) -> str:
    return job_prefix(job) + "control.json"


def session_prefix(job: str, token: int) -> str:
    return job_prefix(job) + f"t{token:04d}/"


def grant_key(job: str, token: int) -> str:
    return session_prefix(job, token) + "grant.json.gz"


def beat_key(job: str, token: int) -> str:
    return session_prefix(job, token) + "beat.json"


def result_key(job: str, token: int) -> str:
    return session_prefix(job, token) + "result.json"


def numbered_key(job: str, token: int, what: str, number: int) -> str:
    """`what` is log, metrics, pack, manifest or output; numbers start at 1."""
    suffix = {"log": ".gz", "metrics": ".gz", "pack": "", "manifest": ".json", "output": ".tar.gz"}[what]
    return session_prefix(job, token) + f"{what}-{number:06d}{suffix}"


def bundle_key(sha256: str) -> str:
    return f"worker/{sha256[:16]}.pyz"


def manifest_place(key: str) -> Optional[Tuple[int, int]]:
    """(token, seq) of a manifest's key, None for any other key."""
    found = _MANIFEST.search(key)
    return (int(found.group(1)), int(found.group(2))) if found else None


def token_of(key: str) -> Optional[int]:
    """The token in a key's path, None for a key that belongs to no session."""
    found = _TOKEN.search(key)
    return int(found.group(1)) if found else None
