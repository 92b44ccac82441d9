"""Mark, wait, sweep on a real ledger and a real store: what is needed stays through saves, prunes, pins and crashes;
what is not goes, and its bytes are counted once."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.engine import JOB, Rig, profile, quick_folder
from tests.support.faults import HookedStore
from tests.support.ledgered import begin, end, ledgered
from tests.support.scripted import ScriptedPlatform, Service

from gpuhop.clock import ManualClock
from gpuhop.db import sessions, storage
from gpuhop.domain.retention import GRACE_S
from gpuhop.engine import launching, retention, survey
from gpuhop.errors import InvalidInput, NotFound, StoreError
from gpuhop.services import storage as service
from gpuhop.stores.local import LocalStore
from gpuhop_worker import wire
from gpuhop_worker.retention import Best, Keep, Saved, chosen
from gpuhop_worker.wire import Grant, Manifest


class Crash(BaseException):
    """The kill."""


def save(store: LocalStore, token: int, seq: int, step: int, packs: list[str] | None = None) -> str:
    """A checkpoint with a pack of its own, and `packs` of others. Returns its own pack's key."""
    own = wire.numbered_key(JOB, token, "pack", seq)
    store.put(own, b"x" * (100 + seq))
    named = [{"key": key, "size": 4} for key in [*(packs or []), own]]
    manifest = Manifest(JOB, token, seq, step, "api", named, [])
    store.put(wire.numbered_key(JOB, token, "manifest", seq), manifest.to_bytes())
    return own


def grant(store: LocalStore, token: int, parents: list[tuple[int, int]]) -> None:
    """The grant of a live session that may start from these."""
    keys = [wire.numbered_key(JOB, t, "manifest", seq) for t, seq in parents]
    packs = [pack["key"] for key in keys for pack in Manifest.from_bytes(store.get(key)).packs]
    addresses = {key: {"get": f"file:///{key}"} for key in [*keys, *packs]}
    made = Grant(JOB, token, "s", "lab", "run", "code", "0", 10.0, parents=keys, addresses=addresses)
    store.put(wire.grant_key(JOB, token), made.to_gzip())


def there(store: LocalStore, what: str = "") -> set[str]:
    """Short names of manifests and packs: m1/2, p1/2."""
    found = set()
    for entry in store.list(wire.job_prefix(JOB)):
        token, _, name = entry.key.removeprefix(wire.job_prefix(JOB)).partition("/")
        if name.startswith(("manifest-", "pack-")):
            found.add(f"{name[0]}{int(token[1:])}/{int(name.split('-')[1].split('.')[0])}")
    return found


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with quick_folder() as folder:
        yield LocalStore(folder)


def wait(rig: Rig, seconds: float = GRACE_S) -> None:
    assert isinstance(rig.clock, ManualClock)
    rig.clock.advance(seconds)


# ---------------------------------------------------------------- waiting


def test_marked_then_removed_after_the_grace(store: LocalStore) -> None:
    for seq in (1, 2, 3):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 3}) as rig:
        first = retention.sweep(rig.parts, JOB)
        assert first.removed == () and len(first.waiting) == 4
        wait(rig, GRACE_S - 1)
        assert retention.sweep(rig.parts, JOB).removed == ()
        assert len(there(store)) == 6
        wait(rig, 1)
        removed = [mark.key for mark in retention.sweep(rig.parts, JOB).removed]
        assert [wire.manifest_place(key) for key in removed] == [(1, 1), (1, 2), None, None]
        assert there(store) == {"m1/3", "p1/3"}
        with rig.parts.db.read() as c:
            (freed,) = storage.freed_of(c, JOB)
            assert (freed.why, freed.objects, freed.at) == ("pruned", 4, rig.clock.now())
            kinds = {row.kind: row.objects for row in storage.stock_of(c, JOB)}
        assert kinds == {"checkpoints": 2, "waiting": 0, "leftovers": 0, "records": 1}


def test_the_loop_looks_again_when_something_is_ripe_and_never_without_need(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 2}) as rig:
        retention.sweep_later(rig.parts, JOB)
        for after, left in ((GRACE_S / 2, 4), (GRACE_S / 2, 2)):
            wait(rig, after)
            with rig.parts.db.read() as c:
                due = storage.jobs_to_look_at(c, rig.clock.now())
            for job in due:
                retention.sweep_later(rig.parts, job)
            assert len(there(store)) == left
        wait(rig, 100 * GRACE_S)
        with rig.parts.db.read() as c:
            assert storage.jobs_to_look_at(c, rig.clock.now()) == []


def test_a_store_that_is_away_is_asked_again(store: LocalStore) -> None:
    save(store, 1, 1, 1)

    def away(verb: str, key: str, moment: str) -> None:
        raise StoreError("away", "wait")

    with ledgered(HookedStore(store, away_after_submit := lambda *_: None), JOB, {1: 1}) as rig:
        assert away_after_submit is not None
        assert isinstance(rig.store, HookedStore)
        rig.store.hook = away
        retention.sweep_later(rig.parts, JOB)
        with rig.parts.db.read() as c:
            assert storage.jobs_to_look_at(c, rig.clock.now()) == []
        wait(rig, retention.RETRY_S)
        with rig.parts.db.read() as c:
            assert storage.jobs_to_look_at(c, rig.clock.now()) == [JOB]


def test_what_is_needed_again_is_spared_and_waits_anew(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 2}) as rig:
        retention.sweep(rig.parts, JOB)
        service.pin(rig.parts, JOB, (1, 1))
        wait(rig)
        assert retention.sweep(rig.parts, JOB).removed == ()
        service.unpin(rig.parts, JOB, (1, 1))
        assert retention.sweep(rig.parts, JOB).removed == ()
        wait(rig)
        assert len(retention.sweep(rig.parts, JOB).removed) == 2


# ---------------------------------------------------------------- live sessions


def test_while_a_session_lives_what_it_may_read_or_writes_is_not_touched(store: LocalStore) -> None:
    for seq in (1, 2, 3):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 3}) as rig:
        assert begin(rig) == 2
        grant(store, 2, [(1, 2)])
        store.put(wire.numbered_key(JOB, 2, "pack", 9), b"on its way")
        retention.sweep(rig.parts, JOB)
        wait(rig)
        retention.sweep(rig.parts, JOB, at_once=True)
        assert there(store) == {"m1/2", "p1/2", "m1/3", "p1/3", "p2/9"}
        save(store, 2, 1, 4)
        save(store, 2, 2, 5, packs=[wire.numbered_key(JOB, 1, "pack", 2)])
        retention.sweep(rig.parts, JOB)
        wait(rig)
        retention.sweep(rig.parts, JOB)
        assert there(store) == {"m1/2", "p1/2", "m2/1", "p2/1", "m2/2", "p2/2", "p2/9"}
        end(rig, JOB, 2)
        retention.sweep(rig.parts, JOB)
        wait(rig)
        retention.sweep(rig.parts, JOB)
        assert there(store) == {"m2/2", "p2/2", "p1/2"}
        with rig.parts.db.read() as c:
            assert {row.why for row in storage.freed_of(c, JOB)} == {"pruned", "leftover"}


def test_without_its_grant_a_live_session_may_read_anything(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 2}) as rig:
        retention.sweep(rig.parts, JOB)
        begin(rig)
        wait(rig)
        assert retention.sweep(rig.parts, JOB) == retention.Swept()
        assert len(there(store)) == 4


def test_a_session_that_is_granted_during_the_look_stops_it(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    rigs: list[Rig] = []

    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "get" and rigs:
            begin(rigs.pop())

    with ledgered(HookedStore(store, hook), JOB, {1: 2}) as rig:
        rigs.append(rig)
        assert retention.sweep(rig.parts, JOB, at_once=True).overtaken
        assert len(there(store)) == 4


def test_so_does_one_that_is_over_again_by_its_end(store: LocalStore) -> None:
    """A look may take long. The session fell back to a checkpoint that the rule of the look does not keep."""
    older, _ = save(store, 1, 1, 1), save(store, 1, 2, 2)
    rigs: list[Rig] = []

    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "get" and rigs:
            rig = rigs.pop()
            begin(rig)
            save(store, 2, 1, 3, [older])
            end(rig, JOB, 1)

    with ledgered(HookedStore(store, hook), JOB, {1: 2}) as rig:
        rigs.append(rig)
        assert retention.sweep(rig.parts, JOB, keep=Keep(1), at_once=True).overtaken
        assert len(there(store)) == 6


def test_a_session_is_not_given_what_is_going(store: LocalStore) -> None:
    """A sweep that was killed in the middle, and then the newest turns out damaged: what is going is no parent."""
    for seq in (1, 2):
        save(store, 1, seq, seq)

    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "delete":
            raise Crash

    with ledgered(HookedStore(store, hook), JOB, {1: 2}) as rig:
        with pytest.raises(Crash):
            retention.sweep(rig.parts, JOB, at_once=True)
        with pytest.raises(InvalidInput, match="is being removed"):
            service.pin(rig.parts, JOB, (1, 1))
        begin(rig)
        (session,) = [row for row in rig.rows() if row.sealed_seq is None]
        parents = launching.parents_of(rig.parts, JOB, 5)
        assert len(parents) == 2
        rig.drop()
        rig.platforms = {"lab": ScriptedPlatform(Service(profile(), rig.clock))}
        launching.start_session(rig.parts, session, parents)
        made = Grant.from_gzip(store.get(wire.grant_key(JOB, session.token)))
        assert made.parents == [parents[0].key]


# ---------------------------------------------------------------- pins


def test_only_what_can_be_restored_can_be_pinned(store: LocalStore) -> None:
    for seq in (1, 2, 3):
        save(store, 1, seq, seq)
    store.put(wire.numbered_key(JOB, 1, "manifest", 2), b"rubbish")
    with ledgered(store, JOB, {1: 2}) as rig:
        for place in [(1, 2), (1, 3), (9, 1)]:
            with pytest.raises(NotFound, match="no readable checkpoint"):
                service.pin(rig.parts, JOB, place)
        service.pin(rig.parts, JOB, (1, 1))
        service.pin(rig.parts, JOB, (1, 1))
        service.unpin(rig.parts, JOB, (1, 1))
        with pytest.raises(NotFound, match="is not pinned"):
            service.unpin(rig.parts, JOB, (1, 1))
    assert service.place_of("t0007/3") == service.place_of("7/3") == (7, 3)
    for text in ("7", "t7/0", "x/1", "7/3/1", ""):
        with pytest.raises(InvalidInput):
            service.place_of(text)


def test_the_checkpoint_of_a_live_session_cannot_be_pinned_yet(store: LocalStore) -> None:
    """The session would prune it: it asks nobody."""
    with ledgered(store) as rig:
        save(store, begin(rig), 1, 10)
        with pytest.raises(InvalidInput, match="lives and removes its own"):
            service.pin(rig.parts, JOB, (1, 1))
        end(rig, JOB, 1)
        service.pin(rig.parts, JOB, (1, 1))


def test_a_forks_pin_holds_beside_the_users(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 2}) as rig:
        with rig.parts.db.write() as c:
            storage.pin(c, JOB, (1, 1), rig.clock.now(), holder="fork other-job")
        service.pin(rig.parts, JOB, (1, 1))
        service.unpin(rig.parts, JOB, (1, 1))
        assert retention.sweep(rig.parts, JOB, at_once=True).removed == ()
        found = service.look(rig.parts, JOB)
        assert found.seen.decision.why[(1, 1)] == ("fork other-job",)


# ---------------------------------------------------------------- best


def test_best_by_the_metrics_that_each_session_knew(store: LocalStore) -> None:
    def lines(token: int, *rows: tuple[int, float]) -> None:
        text = "".join(json.dumps({"step": step, "val": value}) + "\n" for step, value in rows)
        store.put(wire.numbered_key(JOB, token, "metrics", 1), gzip.compress(text.encode()))

    lines(1, (9, 0.5), (19, 0.1))
    save(store, 1, 1, 10)
    save(store, 1, 2, 20)
    lines(2, (14, 0.3), (24, 0.4))  # from step 10 again: what was measured at 19 is not its own
    save(store, 2, 1, 15)
    save(store, 2, 2, 25)
    keep = Keep(1, None, Best("val", "min", 2))
    with ledgered(store, JOB, {1: 2, 2: 2}, keep) as rig:
        with rig.parts.db.write() as c:
            c.execute(sa.text("update sessions set start_step = 10 where token = 2"))
        why = service.look(rig.parts, JOB).seen.decision.why
        assert why == {(1, 2): ("best",), (2, 1): ("best",), (2, 2): ("last",)}


# ---------------------------------------------------------------- unfinished writes


def test_leftovers_of_killed_writers_wait_and_go_and_are_counted(store: LocalStore, tmp_path: Path) -> None:
    with ledgered(store, JOB, {1: 0}) as rig:
        root = store._root
        token = begin(rig)
        paths = {
            "dead": root / f"jobs/{JOB}/t0001/.tmp-dead",
            "live": root / f"jobs/{JOB}/t{token:04d}/.tmp-live",
            "grows": root / f"jobs/{JOB}/.tmp-grows",
            "unknown": root / "jobs/never-submitted/.tmp-code",
        }
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 50)
        assert retention.tidy(rig.parts).removed == ()
        paths["grows"].write_bytes(b"x" * 60)
        wait(rig)
        removed = {mark.key for mark in retention.tidy(rig.parts).removed}
        assert removed == {f"jobs/{JOB}/t0001/.tmp-dead", "jobs/never-submitted/.tmp-code"}
        assert {name for name, path in paths.items() if path.exists()} == {"live", "grows"}
        with rig.parts.db.read() as c:
            assert [(row.why, row.objects, row.bytes) for row in storage.freed_of(c, JOB)] == [("unfinished", 1, 50)]
            assert [(row.why, row.objects, row.bytes) for row in storage.freed_of(c, None)] == [("unfinished", 1, 50)]
        wait(rig)
        assert {mark.key for mark in retention.tidy(rig.parts).removed} == {f"jobs/{JOB}/.tmp-grows"}


# ---------------------------------------------------------------- crashes


def crashing(store: LocalStore, rig: Rig, at: int) -> bool:
    """One sweep, killed at the so-many-th moment around a write of store or ledger. True when it was killed."""
    seen = [0]

    def moment(*_: object) -> None:
        seen[0] += 1
        if seen[0] - 1 == at:
            raise Crash

    def hook(verb: str, key: str, when: str) -> None:
        if verb == "delete":
            moment()

    rig.drop()
    rig.store = HookedStore(store, hook)
    engine = rig.parts.db.engine
    sa.event.listen(engine, "commit", moment)
    try:
        retention.sweep(rig.parts, JOB)
        retention.tidy(rig.parts)
        return False
    except Crash:
        return True
    finally:
        sa.event.remove(engine, "commit", moment)
        rig.drop()
        rig.store = store


def test_a_crash_at_any_write_is_harmless_and_each_byte_is_counted_once() -> None:
    at = 0
    while True:
        with quick_folder() as folder:
            store = LocalStore(folder)
            shared = save(store, 1, 1, 1)
            save(store, 1, 2, 2)
            save(store, 1, 3, 3, packs=[shared])
            store.put(wire.numbered_key(JOB, 1, "pack", 77), b"no manifest names it")
            (folder / f"jobs/{JOB}/.tmp-dead").write_bytes(b"dead")
            before = sum(entry.size for entry in store.list("")) + 4
            with ledgered(store, JOB, {1: 3}) as rig:
                before += sum(entry.size for entry in store.list("")) + 4 - before
                retention.sweep(rig.parts, JOB)
                retention.tidy(rig.parts)
                wait(rig)
                killed = crashing(store, rig, at)
                whole = {"m1/3", "p1/3", "p1/1"}
                assert whole <= there(store)
                left = there(store)
                assert "m1/2" not in left or "p1/2" in left  # what is still a checkpoint is a whole one
                for _ in range(2):
                    wait(rig)
                    retention.sweep(rig.parts, JOB)
                    retention.tidy(rig.parts)
                assert there(store) == whole and list(store.leftovers("")) == []
                after = sum(entry.size for entry in store.list(""))
                with rig.parts.db.read() as c:
                    rows = storage.freed_of(c, JOB)
                    assert storage.marks_of(c, JOB) == storage.unfinished_marks(c, "") == {}
                assert sum(row.bytes for row in rows) == before - after
                assert {row.why for row in rows} == {"pruned", "leftover", "unfinished"}
        if not killed:
            assert at > 12
            return
        at += 1


# ---------------------------------------------------------------- any sequence


@dataclass
class World:
    """A job whose sessions follow the worker's rule, and a scheduler that is killed now and then."""

    store: LocalStore
    rig: Rig
    keep: Keep
    saved: dict[tuple[int, int], Saved] = field(default_factory=dict)  # all that were ever committed
    packs: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    own: list[tuple[int, int]] = field(default_factory=list)  # of the live session, not pruned
    values: list[tuple[int, float]] = field(default_factory=list)
    live: int = 0
    step: int = 0
    seq: int = 0
    parents: list[tuple[int, int]] = field(default_factory=list)
    pinned: set[tuple[int, int]] = field(default_factory=set)

    def start(self, back: int) -> None:
        if self.live:
            return
        with self.rig.parts.db.read() as c:
            ledger = survey.known(c, JOB)
        self.parents = sorted(self.saved, reverse=True)[: self.keep.last]
        self.parents = [one for one in self.parents if one in self.there(ledger)]
        origin = self.parents[min(back, len(self.parents) - 1)] if self.parents else None
        self.step = self.saved[origin].step if origin else 0
        expected = self.saved[self.parents[0]].step if self.parents else 0
        self.live = begin(self.rig, JOB, expected)
        grant(self.store, self.live, self.parents)
        self.seq, self.own, self.last = 0, [], origin
        self.lines: list[tuple[int, float]] = []

    def there(self, ledger: survey.Known) -> set[tuple[int, int]]:
        return {place for e in self.store.list(wire.job_prefix(JOB)) if (place := wire.manifest_place(e.key))}

    def save(self, steps: int, value: float | None, refs: int) -> None:
        if not self.live:
            return
        self.step += steps
        self.seq += 1
        if value is not None:
            self.lines.append((self.step - 1, value))
            text = "".join(json.dumps({"step": step, "val": val}) + "\n" for step, val in self.lines)
            self.store.put(wire.numbered_key(JOB, self.live, "metrics", 1), gzip.compress(text.encode()))
        place = (self.live, self.seq)
        packs = self.packs[self.last][-refs:] if self.last and refs else []
        own = save(self.store, *place, self.step, packs=packs)
        first = self.lines[0][0] if self.lines else None
        past = self.values if first is None else [row for row in self.values if row[0] < min(self.expected, first)]
        known = [row for row in [*past, *self.lines] if row[0] < self.step]
        self.saved[place] = Saved(place, self.step, known[-1] if known else None)
        self.packs[place] = [*packs, own]
        self.own.append(place)
        self.last = place
        self.prune()

    @property
    def expected(self) -> int:
        (row,) = [one for one in self.rig.rows(JOB) if one.token == self.live]
        return row.start_step

    def prune(self) -> None:
        """As Shipper._prune does: by its own metrics."""
        mine = []
        for place in self.own:
            rows = [row for row in self.lines if row[0] < self.saved[place].step]
            mine.append(Saved(place, self.saved[place].step, rows[-1] if rows else None))
        stay = chosen(mine, self.keep)
        for place in [one for one in self.own if one not in stay]:
            self.own.remove(place)
            self.store.delete(wire.numbered_key(JOB, *place[:1], "manifest", place[1]))
            named = {key for one in self.own for key in self.packs[one]}
            for key in self.packs[place]:
                if key not in named and wire.token_of(key) == self.live:
                    self.store.delete(key)

    def stop(self) -> None:
        if not self.live:
            return
        if self.lines:
            cut = min(self.expected, self.lines[0][0])
            self.values = [row for row in self.values if row[0] < cut] + self.lines
        end(self.rig, JOB, max((place[1] for place in self.own), default=0))
        self.live = 0

    def pin(self, which: int, on: bool) -> None:
        whole = sorted(place for place in self.saved if self.is_whole(place))
        if not whole:
            return
        place = whole[which % len(whole)]
        if on:
            try:
                service.pin(self.rig.parts, JOB, place)
            except InvalidInput as error:
                assert "is being removed" in error.fact or place[0] == self.live
                return
            self.pinned.add(place)
        elif place in self.pinned:
            service.unpin(self.rig.parts, JOB, place)
            self.pinned.discard(place)

    def is_whole(self, place: tuple[int, int]) -> bool:
        keys = {entry.key for entry in self.store.list(wire.job_prefix(JOB))}
        return {wire.numbered_key(JOB, place[0], "manifest", place[1]), *self.packs[place]} <= keys

    def needed(self) -> set[tuple[int, int]]:
        found = set(chosen(self.saved.values(), self.keep))
        return found | self.pinned | (set(self.parents) | set(self.own) if self.live else set())

    def check(self) -> None:
        for place in self.needed():
            assert self.is_whole(place), (place, self.needed())


PLAY = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 2)),
        st.tuples(st.just("save"), st.integers(1, 6), st.none() | st.sampled_from([0.1, 0.2, 0.3]), st.integers(0, 3)),
        st.tuples(st.just("save"), st.integers(1, 6), st.none() | st.sampled_from([0.1, 0.2, 0.3]), st.integers(0, 3)),
        st.tuples(st.just("stop")),
        st.tuples(st.just("pin"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("sweep"), st.none() | st.integers(0, 8)),
        st.tuples(st.just("wait"), st.sampled_from([GRACE_S / 3, GRACE_S])),
    ),
    max_size=30,
)
RULES = st.builds(
    Keep,
    last=st.integers(1, 3),
    every_steps=st.none() | st.integers(2, 9),
    best=st.none()
    | st.builds(Best, metric=st.just("val"), mode=st.sampled_from(["min", "max"]), count=st.integers(1, 2)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(PLAY, RULES)
def test_what_is_needed_survives_any_sequence_and_nothing_else_does_for_ever(play: list[tuple], keep: Keep) -> None:  # type: ignore[type-arg]
    with quick_folder() as folder:
        store = LocalStore(folder)
        with ledgered(store, JOB, {}, keep) as rig:
            world = World(store, rig, keep)
            for verb, *args in [("start", 0), *play]:
                if verb == "sweep":
                    crashing(store, rig, 10**9 if args[0] is None else args[0])
                elif verb == "wait":
                    wait(rig, args[0])
                else:
                    getattr(world, verb)(*args)
                world.check()
            world.stop()
            for _ in range(3):
                retention.sweep(rig.parts, JOB)
                world.check()
                wait(rig)
            seen = service.look(rig.parts, JOB).seen
            assert seen.unwanted == {}
            stays = set(seen.decision.why)
            assert stays >= world.needed()
            assert stays - world.needed() <= best_of(world, stays)
            packs = {key for place in stays for key in world.packs[place]}
            assert {key for key in seen.sizes if "/pack-" in key} == packs
            assert all(world.is_whole(place) for place in stays)


def best_of(world: World, stays: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The best of what is there, by the values that were recorded when each was saved."""
    found = chosen([world.saved[place] for place in stays], world.keep)
    return {place for place, words in found.items() if "best" in words}


def test_sessions_of_other_jobs_do_not_matter(store: LocalStore) -> None:
    for seq in (1, 2):
        save(store, 1, seq, seq)
    with ledgered(store, JOB, {1: 2}) as rig:
        rig.submit(job_id="job-10")
        begin(rig, "job-10")
        with rig.parts.db.read() as c:
            assert len(sessions.live(c)) == 1
        assert len(retention.sweep(rig.parts, JOB, at_once=True).removed) == 2
