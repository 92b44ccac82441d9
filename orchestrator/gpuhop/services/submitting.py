"""From job.yaml to a queued job: validate, freeze the code, put both into the store, then the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuhop.db import jobs
from gpuhop.db.records import JobRow
from gpuhop.domain.job import JobSpec
from gpuhop.domain.states import JobState, Wish
from gpuhop.domain.world import JobView
from gpuhop.engine.parts import Parts
from gpuhop.spec import codec
from gpuhop.spec.freeze import FrozenCode
from gpuhop_worker import wire


@dataclass(frozen=True)
class Submitted:
    """`id` of the new job and what was frozen."""

    id: str
    code: FrozenCode


def new_id(name: str, draw: Callable[[], str]) -> str:
    """`draw` gives a few random characters: the same name may be submitted many times."""
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "job"
    return f"{base[:40]}-{draw()}"


def earlier(parts: Parts, source: Path) -> list[JobRow]:
    """Unfinished jobs from the same file."""
    with parts.db.read() as c:
        return jobs.same_file(c, str(source))


def submit(parts: Parts, spec: JobSpec, code: FrozenCode, source: Path, job_id: str) -> Submitted:
    """Store first, ledger last: a crash in between leaves objects that nobody reads. Raises StoreError."""
    body = codec.encode(spec)
    parts.store.put_file(wire.code_key(job_id, code.sha256), str(code.archive))
    # The copy in the store does not tell where the code lay on the user's machine.
    shown = codec.encode(replace(spec, code=""))
    parts.store.put(wire.spec_key(job_id), wire.seal({"gpuhop": "spec", "format": wire.FORMAT, "spec": shown}))
    with parts.db.write() as c:
        jobs.insert(
            c,
            id=job_id,
            name=spec.name,
            spec=json.dumps(body),
            spec_hash=codec.spec_hash(spec),
            source=str(source),
            code_sha256=code.sha256,
            code_size=code.size_bytes,
            priority=spec.priority,
            now=parts.clock.now(),
        )
    return Submitted(job_id, code)


def as_view(spec: JobSpec, parts: Parts) -> JobView:
    """A job that is not submitted, as the planner would see it: for --dry-run."""
    now = parts.clock.now()
    return JobView(
        id=new_id(spec.name, lambda: "xxxx"),
        spec=spec,
        state=JobState.QUEUED,
        wish=Wish.RUN,
        step=0,
        used_s=0.0,
        created_at=now,
        waiting_since=now,
    )
