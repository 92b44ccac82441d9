"""JobSpec -> JSON -> JobSpec is exact, and the hash is the spec's own."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop.domain.job import Checkpoint, Every, JobSpec, Limits, Resources, Target
from gpuhop.errors import InvalidInput
from gpuhop.spec.codec import decode, encode, spec_hash
from gpuhop.spec.docs import FULL
from gpuhop.spec.parse import parse
from gpuhop_worker.retention import Best, Keep

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
AMOUNT = st.floats(min_value=0.001, max_value=1e6)
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=ZONES)
COUNT = st.integers(1, 10**12)
TARGETS = st.one_of(
    COUNT.map(lambda n: Target(steps=n)), COUNT.map(lambda n: Target(epochs=n)), st.just(Target(until_exit=True))
)
EVERY = st.one_of(COUNT.map(lambda n: Every(steps=n)), AMOUNT.map(lambda s: Every(seconds=s)))
BESTS = st.builds(Best, metric=TEXT, mode=st.sampled_from(["min", "max"]), count=st.integers(1, 9))
KEEPS = st.builds(Keep, last=st.integers(1, 9), every_steps=st.none() | COUNT, best=st.none() | BESTS)
CHECKPOINTS = st.builds(
    Checkpoint, mode=st.sampled_from(["api", "folder"]), folder=st.none() | TEXT, every=EVERY, keep=KEEPS
)
RESOURCES = st.builds(
    Resources,
    gpu=st.booleans(),
    gpu_count=st.integers(1, 8),
    gpu_memory_gb=st.none() | AMOUNT,
    disk_gb=st.none() | AMOUNT,
)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
SPECS = st.builds(
    JobSpec,
    name=TEXT,
    code=TEXT,
    run=TEXT,
    target=TARGETS,
    setup=st.none() | TEXT,
    checkpoint=CHECKPOINTS,
    resources=RESOURCES,
    platforms=TEXTS,
    limits=st.builds(Limits, gpu_hours=st.none() | AMOUNT, deadline=st.none() | MOMENTS),
    priority=st.integers(-100, 100),
    env=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    secrets=TEXTS,
    outputs=TEXTS,
    progress=st.none() | TEXT,
)


@settings(max_examples=150, deadline=None)
@given(SPECS)
def test_round_trip(spec: JobSpec) -> None:
    again = decode(json.loads(json.dumps(encode(spec))))
    assert again == spec
    assert encode(again) == encode(spec)
    assert spec_hash(again) == spec_hash(spec)


def full() -> JobSpec:
    return parse(FULL, "/work/job.yaml", known_platforms=("kaggle", "colab"))


def test_every_field_is_carried_and_hashed() -> None:
    """A field added to the domain and forgotten here would fail this."""
    fields = {field.name for field in dataclasses.fields(JobSpec)}
    assert set(encode(full())) == fields | {"version"}
    for name in fields - {"target", "checkpoint", "resources", "limits", "priority", "env"}:
        value: Any = ("x",) if isinstance(getattr(full(), name), tuple) else "x"
        changed = dataclasses.replace(full(), **{name: value})
        assert spec_hash(changed) != spec_hash(full()), name
        assert decode(encode(changed)) == changed
    for part in (Target, Every, Checkpoint, Resources, Limits):
        sub = {Target: "target", Checkpoint: "checkpoint", Resources: "resources", Limits: "limits"}.get(part)
        # read_back: only where it is asked for, so that older specs keep their hash
        encoded = encode(dataclasses.replace(full(), checkpoint=dataclasses.replace(full().checkpoint, read_back=True)))
        found = encoded[sub] if sub else encoded["checkpoint"]["every"]  # type: ignore[index]
        assert isinstance(found, dict)
        assert set(found) == {field.name for field in dataclasses.fields(part)}


def test_hash_is_stable() -> None:
    assert spec_hash(full()) == "28f9f2c7e8798466b2a7f0e0047e775532b910d7e2be974f940d74b64e855913"
    moved = dataclasses.replace(
        full(), limits=Limits(60, datetime(2026, 12, 24, 12, tzinfo=timezone(-timedelta(hours=5))))
    )
    assert moved == full()
    assert spec_hash(moved) == spec_hash(full())
    assert decode(encode(moved)).limits.deadline == datetime(2026, 12, 24, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"version": 2}, "has version 2, and this gpuhop reads version 1"),
        ({"name": 5}, "this stored spec is damaged: TypeError"),
        ({"priority": True}, "TypeError"),
        ({"target": []}, "TypeError"),
        ({"env": [["A"]]}, "ValueError"),
        ({"limits": {"gpu_hours": None, "deadline": "soon"}}, "ValueError"),
        ({"limits": {}}, "KeyError"),
        ({"platforms": "kaggle"}, "TypeError"),
    ],
)
def test_damaged(change: dict[str, object], fact: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode({**encode(full()), **change})
    assert fact in caught.value.fact


@pytest.mark.parametrize("keep", [None, True, "3", [], {}, {"last": "x", "every_steps": None, "best": None}])
def test_a_bad_keep_is_damaged(keep: object) -> None:
    data = encode(full())
    checkpoint = data["checkpoint"]
    assert isinstance(checkpoint, dict)
    with pytest.raises(InvalidInput, match="damaged"):
        decode({**data, "checkpoint": {**checkpoint, "keep": keep}})


def test_a_spec_of_before_has_a_number_and_so_has_a_new_one_where_it_does() -> None:
    data = encode(full())
    checkpoint = data["checkpoint"]
    assert isinstance(checkpoint, dict) and checkpoint["keep"] == 3
    assert decode(data).checkpoint.keep == Keep(3)


def test_a_bad_mode_is_damaged() -> None:
    data = encode(full())
    checkpoint = data["checkpoint"]
    assert isinstance(checkpoint, dict)
    with pytest.raises(InvalidInput, match="no checkpoint mode"):
        decode({**data, "checkpoint": {**checkpoint, "mode": "x"}})
