"""What a session may read and write: the grant, with an address for every key that it will ever need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gpuhop.db.records import SessionRow
from gpuhop.domain.job import JobSpec
from gpuhop.domain.world import Profile
from gpuhop.engine.checkpoints import Saved
from gpuhop.stores.base import Store, Verb
from gpuhop_worker import wire
from gpuhop_worker.wire import Grant

LOGS = 96
METRICS = 32
MOST_CHECKPOINTS = 400
MOST_PACKS = 2000


PACKAGES = ("numpy>=1.22,<3", "zstandard>=0.21,<1", "blake3>=0.4,<2")
"""What makes a worker faster where it may install something: arrays, compression, a fast hash. It needs none."""


@dataclass(frozen=True)
class Amounts:
    """How many numbered keys a grant holds."""

    manifests: int
    packs: int


def amounts(spec: JobSpec, budget_s: float, parents: Sequence[Saved]) -> Amounts:
    """Sized to the chunk: one checkpoint per interval and some to spare, packs by the size of the last one."""
    every = spec.checkpoint.every
    count = MOST_CHECKPOINTS if every.seconds is None else int(budget_s / every.seconds) + 8
    count = max(16, min(MOST_CHECKPOINTS, count))
    known = [len(one.manifest.packs) for one in parents if one.manifest is not None]
    per = (known[0] + 1) if known else 2
    return Amounts(count, max(64, min(MOST_PACKS, count * per)))


def life_s(session: SessionRow, profile: Profile, time_scale: float) -> float:
    """Real seconds that a session's addresses live: as long as the session may, opened late or not, and an hour."""
    return (session.hold_s + (profile.open_s if profile.attended else 0.0)) / time_scale + 3600.0


def make(
    *,
    store: Store,
    spec: JobSpec,
    session: SessionRow,
    code_sha256: str,
    parents: Sequence[Saved],
    profile: Profile,
    mean_life_s: float,
    time_scale: float,
) -> Grant:
    """The session's grant."""
    ttl_s = life_s(session, profile, time_scale)
    job, token = session.job_id, session.token
    code_key = wire.code_key(job, code_sha256)
    return Grant(
        job=job,
        token=token,
        session=session.name,
        platform=session.platform,
        run=spec.run,
        setup=spec.setup,
        code_key=code_key,
        code_sha256=code_sha256,
        budget_s=session.budget_s,
        mode=spec.checkpoint.mode,
        folder=spec.checkpoint.folder,
        every_steps=spec.checkpoint.every.steps,
        every_s=spec.checkpoint.every.seconds,
        every_auto=spec.checkpoint.every.auto,
        mean_life_s=mean_life_s,
        read_back=spec.checkpoint.read_back,
        keep=spec.checkpoint.keep.last,
        keep_every=spec.checkpoint.keep.every_steps,
        keep_best=None if spec.checkpoint.keep.best is None else asdict(spec.checkpoint.keep.best),
        target_steps=spec.target.steps,
        target_epochs=spec.target.epochs,
        progress=spec.progress,
        env=dict(spec.env),
        secrets=list(spec.secrets),
        outputs=list(spec.outputs),
        parents=[one.key for one in parents],
        addresses=_addresses(store, job, token, code_key, parents, amounts(spec, session.budget_s, parents), ttl_s),
        beat_s=profile.beat_s,
        log_s=profile.log_s,
        grace_s=profile.grace_s,
        time_scale=time_scale,
        packages=list(PACKAGES) if profile.installs else [],
    )


def _addresses(
    store: Store, job: str, token: int, code_key: str, parents: Sequence[Saved], many: Amounts, ttl_s: float
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}

    def allow(key: str, *verbs: Verb) -> None:
        for verb in verbs:
            found.setdefault(key, {})[verb] = store.presign(verb, key, ttl_s)

    once: tuple[Verb, ...] = ("put", "get", "put_new") if store.traits.create_once else ("put", "get")
    allow(code_key, "get")
    allow(wire.control_key(job), "get")
    for one in parents:
        allow(one.key, "get")
        for pack in one.manifest.packs if one.manifest is not None else ():
            allow(pack["key"], "get")
    allow(wire.beat_key(job, token), "put", "get")  # get: a session that was here before is seen
    allow(wire.result_key(job, token), *once)
    allow(wire.numbered_key(job, token, "output", 1), *once)
    for what, count in (("log", LOGS), ("metrics", METRICS)):
        for number in range(1, count + 1):
            allow(wire.numbered_key(job, token, what, number), "put")
    for what, count in (("manifest", many.manifests), ("pack", many.packs)):
        for number in range(1, count + 1):
            allow(wire.numbered_key(job, token, what, number), *once, "delete")
    return found
