"""A scripted service: sessions "run" by writing the worker's documents into the store, under the test's clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuhop.clock import Clock
from gpuhop.domain.judge import Phase
from gpuhop.domain.quota import Charge
from gpuhop.domain.world import Profile
from gpuhop.platforms.base import (
    Handle,
    LaunchRequest,
    RefusalKind,
    Refused,
    Rendered,
    RunState,
    Usage,
)
from gpuhop_worker import store as worker_store
from gpuhop_worker import wire
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.wire import Beat, Control, Grant, Manifest, Result


@dataclass
class Script:
    """How the sessions of a service behave. Steps per second; what befalls a session, by its name's token.

    `fate`: token -> "die" (silently, after `die_s`), "mute" (runs, never beats), "fail" (the command fails at once),
    "lack" (its Python cannot read the checkpoint),
    "fail-late" (fails after its first checkpoint), "fail-twice" (the same, and was tried again in vain), "idle" (trains
    without saving), "stuck" (ignores orders).
    """

    speed: float = 5.0
    fate: dict[int, str] = field(default_factory=dict)
    usual: str = "work"
    die_s: float = 30.0
    refuse: list[Refused] = field(default_factory=list)
    queue_s: float = 0.0

    def of(self, token: int) -> str:
        return self.fate.get(token, self.usual)


@dataclass
class Remote:
    """One session at the service: its machine."""

    name: str
    grant_url: str
    limit_s: float
    made_at: datetime
    opened: bool
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: ScriptedWorker | None = None


def follow(trace: int, step: int) -> int:
    """The "training": the state after one more step."""
    return (trace * 1103515245 + step + 12345) % 2**31


def trace_at(step: int) -> int:
    found = 0
    for index in range(step):
        found = follow(found, index)
    return found


class ScriptedWorker:
    """The worker's side of format.md without a process: restores, steps, saves, beats, obeys, leaves a result."""

    def __init__(self, grant: Grant, fate: str, speed: float, began: datetime) -> None:
        self.grant, self.fate, self.speed, self.began = grant, fate, speed, began
        self.store = GrantStore(grant.addresses, patience_s=0.0)
        self.seq = self.beats = 0
        self.saved_step = 0
        self.lines: list[bytes] = []
        self.done = False
        self.kept: list[list[str]] = []
        self.step, self.trace, self.parent = self._restore()
        self.first = self.step

    def _restore(self) -> tuple[int, int, list[int] | None]:
        for key in self.grant.parents:
            try:
                manifest = Manifest.from_bytes(self.store.get(key))
                for pack in manifest.packs:
                    self.store.get(pack["key"])
            except (StoreFailure, wire.WireError):
                continue
            return manifest.step, int(manifest.state["trace"]), [manifest.token, manifest.seq]
        assert not self.grant.parents, "none of the parents could be restored"
        return 0, 0, None

    def advance(self, now: datetime) -> None:
        """Everything that this worker does until `now`. A store that is away is a reason to wait, as in real life."""
        try:
            self._advance(now)
        except StoreFailure as failure:
            if failure.final:
                raise

    def _advance(self, now: datetime) -> None:
        if self.done:
            return
        worked = (now - self.began).total_seconds()
        if self.fate == "lack":
            return self._result("failed", "worker_lacks", worked)
        if self.fate == "fail":
            return self._result("failed", "script_failed", worked)
        goal = self.grant.target_steps or 0
        wanted = min(goal, self.first + int(min(worked, self.grant.budget_s) * self.speed))
        while self.step < wanted:
            self._one_step()
            if self.step % (self.grant.every_steps or 20) == 0 and self.fate != "idle":
                self._save()
                if self.fate in ("fail-late", "fail-twice"):
                    return self._result("failed", "script_failed", worked, repeated=self.fate == "fail-twice")
        order = self._order()
        if order == "fenced":
            self.done = True
        elif self.step >= goal:
            self._save()
            self._result("target", "target_reached", worked)
        elif order in ("pause", "cancel", "drain") and self.fate != "stuck":
            self._save()
            self._result("drained", {"pause": "paused", "cancel": "cancelled", "drain": "drained"}[order], worked)
        elif worked >= self.grant.budget_s and self.fate not in ("stuck", "mute"):
            self._save()
            self._result("drained", "budget", worked)
        elif self.fate != "mute":
            self._beat("train", worked)
        return None

    def _one_step(self) -> None:
        self.lines.append(json.dumps({"step": self.step, "trace": self.trace}).encode() + b"\n")
        self.trace = follow(self.trace, self.step)
        self.step += 1

    def _key(self, what: str, number: int = 1) -> str:
        return wire.numbered_key(self.grant.job, self.grant.token, what, number)

    def _order(self) -> str:
        control = Control.from_bytes(self.store.get(wire.control_key(self.grant.job)))
        return "fenced" if control.token > self.grant.token else control.order

    def _save(self) -> None:
        if self.fate == "idle" or (self.saved_step == self.step and self.seq):
            return
        if self._order() == "fenced":
            return
        self.store.put(self._key("metrics"), gzip.compress(b"".join(self.lines), mtime=0))
        self.seq += 1
        pack = self._key("pack", self.seq)
        self.store.put_once(pack, b"state %d" % self.trace)
        manifest = Manifest(
            self.grant.job,
            self.grant.token,
            self.seq,
            self.step,
            "api",
            [{"key": pack, "size": len(b"state %d" % self.trace)}],
            [],
            state={"trace": self.trace},
            parent=self.parent,
        )
        self.store.put_once(self._key("manifest", self.seq), manifest.to_bytes())
        self.saved_step = self.step
        self.kept.append([self._key("manifest", self.seq), pack])
        while len(self.kept) > self.grant.keep:
            for key in self.kept.pop(0):
                self.store.delete(key)

    def _beat(self, phase: str, worked: float) -> None:
        self.beats += 1
        beat = Beat(
            self.grant.token,
            self.beats,
            phase,
            self.step,
            self.saved_step,
            self.seq,
            train_s=worked,
            speed=self.speed,
        )
        self.store.put(wire.beat_key(self.grant.job, self.grant.token), beat.to_bytes())

    def _result(self, status: str, reason: str, worked: float, repeated: bool = False) -> None:
        self._beat("ship", worked)
        result = Result(
            self.grant.token, status, reason, self.step, self.saved_step, self.seq, worked, repeated=repeated
        )
        self.store.put_once(wire.result_key(self.grant.job, self.grant.token), result.to_bytes())
        self.done = True


class Service:
    """The far end of a platform: it lives on when the scheduler dies. Time passes in `advance`."""

    def __init__(self, profile: Profile, clock: Clock, script: Script | None = None) -> None:
        self.profile = profile
        self.clock = clock
        self.script = script or Script()
        self.sessions: dict[str, Remote] = {}
        self.calls: list[tuple[str, str]] = []
        self.broken: set[str] = set()
        """Verbs that raise: launch, launch-after (the session is made, the answer is lost), poll, stop."""

    def call(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if verb in self.broken:
            raise ConnectionError(f"{verb}: the service does not answer")

    def live(self) -> list[Remote]:
        return [one for one in self.sessions.values() if one.started_at is not None and one.ended_at is None]

    def advance(self) -> None:
        """Let every machine do what it does until now."""
        now = self.clock.now()
        for one in self.sessions.values():
            if one.ended_at is None and one.opened:
                self._advance(one, now)

    def _advance(self, one: Remote, now: datetime) -> None:
        if one.started_at is None:
            if now < one.made_at + timedelta(seconds=self.script.queue_s):
                return
            one.started_at = now
        if one.worker is None:
            grant = Grant.from_gzip(worker_store.fetch(one.grant_url))
            fate = self.script.of(grant.token)
            one.worker = ScriptedWorker(grant, fate, self.script.speed, one.started_at)
        worker = one.worker
        limit = one.started_at + timedelta(seconds=one.limit_s)
        if worker.fate == "die":
            limit = min(limit, one.started_at + timedelta(seconds=self.script.die_s))
        worker.advance(min(now, limit))
        if worker.done:
            one.ended_at = min(now, limit)
        elif now >= limit:
            one.ended_at = limit

    def charges(self) -> list[Charge]:
        """The service's own books."""
        rows = []
        for one in self.sessions.values():
            if one.started_at is not None:
                end = one.ended_at or self.clock.now()
                rows.append(Charge(one.started_at, end, (end - one.started_at).total_seconds()))
        return rows


class ScriptedPlatform:
    """The adapter for a Service: stateless, one per scheduler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def profile(self) -> Profile:
        return self._service.profile

    def render(self, request: LaunchRequest) -> Rendered:
        fields = {"grant": request.grant_url, "limit_s": request.limit_s, "secrets": list(request.secrets)}
        return Rendered(request.name, f"a scripted session of {request.limit_s:.0f} s", request.grant_url, fields)

    def launch(self, rendered: Rendered) -> Handle:
        service = self._service
        service.call("launch", rendered.name)
        if rendered.name not in service.sessions:
            if service.script.refuse:
                raise service.script.refuse.pop(0)
            busy = [one for one in service.sessions.values() if one.ended_at is None]
            if len(busy) >= service.profile.slots:
                raise Refused(RefusalKind.SLOTS, f"all {service.profile.slots} slots are taken")
            limit = rendered.fields["limit_s"]
            assert isinstance(limit, int | float)
            service.sessions[rendered.name] = Remote(
                rendered.name,
                str(rendered.fields["grant"]),
                float(limit),
                service.clock.now(),
                opened=not service.profile.attended,
            )
        service.call("launch-after", rendered.name)
        return Handle(rendered.name, f"scripted://{rendered.name}" if service.profile.attended else None)

    def press(self, name: str) -> None:
        self._service.sessions[name].opened = True

    def poll(self, handle: Handle) -> RunState:
        self._service.call("poll", handle.id)
        one = self._service.sessions.get(handle.id)
        if one is None:
            return RunState(Phase.GONE, note="no such session")
        if one.ended_at is not None:
            return RunState(Phase.GONE, one.started_at, one.ended_at)
        if one.started_at is not None:
            return RunState(Phase.RUNNING, one.started_at)
        return RunState(Phase.QUEUED if one.opened else Phase.AWAITING)

    def stop(self, handle: Handle) -> None:
        self._service.call("stop", handle.id)
        one = self._service.sessions.get(handle.id)
        if one is not None and one.ended_at is None:
            one.ended_at = self._service.clock.now()

    def logs(self, handle: Handle) -> Iterator[str]:
        yield "a scripted session leaves no output\n"

    def usage(self, now: datetime) -> Usage | None:
        return Usage(sum(row.seconds for row in self._service.charges()))
