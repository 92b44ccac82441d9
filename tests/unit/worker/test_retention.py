"""Which checkpoints stay: the rule itself, and that a session's view of it never contradicts the scheduler's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhop_worker.retention import Best, Keep, MeasuredFile, Measurements, Saved, as_json, chosen, from_json, of_grant
from gpuhop_worker.wire import Grant


def run(*steps: int, token: int = 1, values: dict[int, float] | None = None) -> list[Saved]:
    """Checkpoints of one session at these steps; `values`: what was measured, by index of step."""
    found = Measurements("loss")
    for step, value in (values or {}).items():
        found.add(line(step, value))
    return [Saved((token, seq), step, found.before(step)) for seq, step in enumerate(steps, 1)]


def line(step: int, value: float) -> bytes:
    return f'{{"step":{step},"loss":{value!r}}}'.encode()


def steps_of(saved: list[Saved], keep: Keep) -> dict[int, list[str]]:
    why = chosen(saved, keep)
    return {one.step: why[one.place] for one in saved if one.place in why}


def test_the_newest() -> None:
    assert steps_of(run(10, 20, 30, 40), Keep(2)) == {30: ["last"], 40: ["last"]}
    older = run(90, token=9) + run(5, token=10)
    assert chosen(older, Keep(1)) == {(10, 1): ["last"]}  # the newest session, not the highest step


def test_every_so_many_steps_the_first_at_or_after() -> None:
    saved = run(7, 99, 130, 180, 200, 260, 401, 402)
    assert steps_of(saved, Keep(1, 100)) == {130: ["every"], 200: ["every"], 401: ["every"], 402: ["last"]}


def test_the_same_steps_again_the_newer_session_stands_for_them() -> None:
    saved = [*run(100, 200, token=1), *run(100, 150, token=2)]
    assert set(chosen(saved, Keep(1, 100))) == {(1, 2), (2, 1), (2, 2)}


def test_best_by_a_value_that_belongs_to_the_first_checkpoint_after_it() -> None:
    saved = run(10, 20, 30, 40, 50, values={9: 0.5, 24: 0.1, 39: 0.3})
    assert steps_of(saved, Keep(1, None, Best("loss"))) == {30: ["best"], 50: ["last"]}
    two = Keep(1, None, Best("loss", count=2))
    assert steps_of(saved, two) == {30: ["best"], 40: ["best"], 50: ["last"]}
    assert steps_of(saved, Keep(1, None, Best("loss", "max"))) == {10: ["best"], 50: ["last"]}


def test_what_is_no_number_is_never_the_best() -> None:
    found = Measurements("loss")
    for text in (b'{"step":1,"loss":{"~":"f","v":"nan"}}', b'{"step":2,"loss":true}', b"rubbish", b'{"step":3}'):
        found.add(text)
    found.add(b'{"step":4,"loss":null}')
    found.add(b'{"step":5,"loss":%d}' % 10**400)
    found.add(b'{"step":6,"loss":NaN}')
    assert found.before(6) is None
    assert chosen([Saved((1, 1), 7, found.before(7))], Keep(1, None, Best("loss"))) == {(1, 1): ["last"]}


def test_a_value_counts_for_states_that_have_its_step_behind_them() -> None:
    found = Measurements("loss")
    for step, value in [(3, 0.5), (7, 0.2), (7, 0.4)]:
        found.add(line(step, value))
    assert [found.before(step) for step in (0, 3, 4, 7, 8)] == [None, None, (3, 0.5), (3, 0.5), (7, 0.4)]
    found.cut(7)
    assert found.before(100) == (3, 0.5)


def test_what_a_crashed_command_had_measured_is_cut() -> None:
    found = Measurements("loss")
    for line in (b'{"step":1,"loss":3.0}', b'{"step":5,"loss":0.5}', b'{"step":4,"~cut":true}', b'{"step":4,"acc":1}'):
        found.add(line)
    assert found.before(9) == (1, 3.0)


def test_a_metrics_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    found = MeasuredFile(str(path), "loss")
    assert found.before(10) is None
    path.write_bytes(line(1, 0.5) + b"\n" + line(2, 0.25))
    assert found.before(10) == (1, 0.5)  # the last line is not whole yet
    with path.open("ab") as out:
        out.write(b"\n")
    assert found.before(10) == (2, 0.25)


KEEPS = st.builds(
    Keep,
    last=st.integers(1, 3),
    every_steps=st.none() | st.integers(1, 7),
    best=st.none()
    | st.builds(Best, metric=st.just("loss"), mode=st.sampled_from(["min", "max"]), count=st.integers(1, 3)),
)
MEASURED = st.none() | st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("inf")]))
SAVED = st.lists(
    st.builds(Saved, place=st.tuples(st.integers(1, 4), st.integers(1, 4)), step=st.integers(0, 20), measured=MEASURED),
    max_size=12,
    unique_by=lambda one: one.place,
)


@settings(max_examples=300, deadline=None)
@given(SAVED, KEEPS, st.integers(1, 4))
def test_a_session_never_removes_what_the_scheduler_would_keep(saved: list[Saved], keep: Keep, token: int) -> None:
    own = [one for one in saved if one.place[0] == token]
    of_all, of_own = chosen(saved, keep), chosen(own, keep)
    for one in own:
        assert set(of_all.get(one.place, [])) <= set(of_own.get(one.place, []))


@settings(max_examples=300, deadline=None)
@given(SAVED, KEEPS)
def test_removing_after_each_save_ends_where_removing_once_does(saved: list[Saved], keep: Keep) -> None:
    left: list[Saved] = []
    for one in saved:
        left.append(one)
        why = chosen(left, keep)
        left = [two for two in left if two.place in why]
    assert {one.place for one in left} == set(chosen(saved, keep))


@settings(max_examples=100, deadline=None)
@given(KEEPS)
def test_a_rule_goes_through_json_and_a_grant(keep: Keep) -> None:
    assert from_json(as_json(keep)) == keep
    best = None if keep.best is None else {"metric": "loss", "mode": keep.best.mode, "count": keep.best.count}
    grant = Grant("j", 1, "s", "p", "run", "c", "0", 1.0, keep=keep.last, keep_every=keep.every_steps, keep_best=best)
    assert of_grant(Grant.from_bytes(grant.to_bytes())) == keep


def test_a_grant_of_before_keeps_the_newest() -> None:
    assert of_grant(Grant("j", 1, "s", "p", "run", "c", "0", 1.0, keep=5)) == Keep(5)


@pytest.mark.parametrize("data", [None, True, "3", {}, {"last": 0, "every_steps": None, "best": None}])
def test_what_is_no_rule(data: object) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        from_json(data)
