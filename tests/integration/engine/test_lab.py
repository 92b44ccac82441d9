"""Whole jobs on lab platforms with real worker processes, killed in every way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.lab import JOB, TRAIN, Lab, lab, row, scheduler, settings

from gpuhop.db import jobs
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.engine.driver import DriverLock, current
from gpuhop.errors import DriverLocked
from gpuhop.platforms import host
from gpuhop.platforms.local import read_note
from gpuhop.services import streams

TWO = {"kaggle": row(), "studiolab": row(1.8)}


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[Lab]:
    with lab(settings(tmp_path / "home", {"kaggle": row()})) as made:
        yield made


def test_a_job_hops_over_three_platforms_with_silent_kills(tmp_path: Path) -> None:
    """Two machines vanish, their platforms' quota is then too small, and the third wants a person."""
    small = {"kind": "weekly", "amount_h": 0.05}  # 1.8 real seconds: one session
    platforms = {"kaggle": row(1.8, window=small), "studiolab": row(1.75, window=small), "colab": row(2.2)}
    kills = [30, 60]
    with lab(settings(tmp_path / "home", platforms)) as made:
        made.submit(200)

        def between() -> None:
            at = (kills or [10**6])[0]
            live = [one for one in made.rows() if one.state is SessionState.RUNNING and one.saved_step >= at]
            if live and made.platform(live[0].platform).kill(live[0].name):
                kills.pop(0)

        made.run(between=between)
        assert made.job().state is JobState.DONE
        assert kills == []
        rows = made.rows()
        assert [one.platform for one in rows][:3] == ["kaggle", "studiolab", "colab"]
        assert [one.state for one in rows][:2] == [SessionState.LOST] * 2
        made.check(200)


def test_cancel_pause_and_resume_while_it_runs(kaggle: Lab) -> None:
    def wish(what: Wish) -> None:
        with kaggle.app.db.write() as c:
            jobs.set_wish(c, jobs.get(c, JOB), what, kaggle.app.clock.now())

    kaggle.submit(2000)
    kaggle.wait_step(5)
    wish(Wish.PAUSE)
    kaggle.run(lambda: kaggle.job().state is JobState.PAUSED)
    (first,) = kaggle.rows()
    assert (first.reason, first.saved_step) == (Reason.PAUSED, first.step)
    wish(Wish.RUN)
    kaggle.run(lambda: kaggle.rows()[-1].token == 2 and kaggle.rows()[-1].step > first.saved_step)
    assert kaggle.rows()[1].start_step == first.saved_step
    wish(Wish.CANCEL)
    kaggle.run(lambda: kaggle.job().state is JobState.CANCELLED)
    kaggle.check_books()


def test_cancelled_at_once_it_never_trains(kaggle: Lab) -> None:
    kaggle.submit()
    kaggle.tick()
    with kaggle.app.db.write() as c:
        jobs.set_wish(c, jobs.get(c, JOB), Wish.CANCEL, kaggle.app.clock.now())
    kaggle.run(lambda: kaggle.job().state is JobState.CANCELLED)
    kaggle.check_books()


def test_a_script_that_fails_at_once(kaggle: Lab) -> None:
    kaggle.submit(code="raise SystemExit(3)\n")
    kaggle.run()
    assert (kaggle.job().state, kaggle.job().reason) == (JobState.FAILED, Reason.SCRIPT_FAILED)
    assert len(kaggle.rows()) == 1
    kaggle.check_books()


def test_a_script_that_fails_after_progress_is_tried_once_more_where_it_is(tmp_path: Path) -> None:
    """And needs no second session for that."""
    late = TRAIN.replace("    time.sleep(0.01)\n", "    time.sleep(0.05)\n    assert step < 15, 'the bug'\n")
    with lab(settings(tmp_path / "home", {"kaggle": row(60.0)})) as made:
        made.submit(code="print('a start', flush=True)\n" + late)
        made.run()
        assert (made.job().state, made.job().reason) == (JobState.FAILED, Reason.SCRIPT_FAILED)
        assert "twice from the same state" in made.job().detail
        assert len(made.rows()) == 1
        assert streams.text_of(made.app.store, JOB, 1, "log").count(b"a start\n") == 2
        made.check_books()


def test_a_worker_that_freezes_is_lost_and_the_zombie_adds_nothing(kaggle: Lab) -> None:
    """SIGSTOP for longer than the lease, the next session at work, then SIGCONT."""
    kaggle.submit(150)
    kaggle.wait_step(25)
    first = kaggle.rows()[0]
    work = kaggle.settings.home / "sessions" / "kaggle" / first.name
    started = read_note(work, "started.json")
    assert started is not None
    frozen = host.tree(started["pid"])
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    # The platform's stop does not reach this one: a machine that nobody can end.
    (work / "started.json").rename(work / "hidden.json")
    kaggle.run(lambda: kaggle.rows()[0].state is SessionState.LOST)
    sealed = kaggle.rows()[0].sealed_seq
    for pid in frozen:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
    kaggle.run(lambda: kaggle.job().state is JobState.DONE)
    give_up = time.monotonic() + 10
    while any(host.identity(pid) for pid in frozen):
        assert time.monotonic() < give_up, "the zombie does not leave"
        time.sleep(0.05)
    assert kaggle.rows()[0].sealed_seq == sealed
    assert kaggle.rows()[1].start_step <= first.saved_step + 10
    (work / "hidden.json").rename(work / "started.json")


def test_a_frozen_worker_is_ended_and_charged_as_its_service_counts(kaggle: Lab) -> None:
    kaggle.submit(150)
    kaggle.wait_step(25)
    first = kaggle.rows()[0]
    started = read_note(kaggle.settings.home / "sessions" / "kaggle" / first.name, "started.json")
    assert started is not None
    os.kill(started["pid"], signal.SIGSTOP)
    kaggle.run(lambda: kaggle.rows()[0].state is SessionState.LOST)
    assert host.identity(started["pid"]) is None
    kaggle.run()
    kaggle.check(150)


# ---------------------------------------------------------------- real schedulers


@pytest.mark.slow
def test_the_scheduler_is_killed_again_and_again(tmp_path: Path) -> None:
    """kill -9 in the middle, five times: sessions are adopted again, nothing is doubled, the books agree."""
    home = tmp_path / "home"
    with lab(settings(home, TWO)) as made:
        made.submit(200)
        for wait in (0.15, 0.4, 0.9, 1.4, 0.6):
            process = scheduler(home, TWO)
            assert (current(made.settings.database) or "").startswith(f"process {process.pid} on")
            time.sleep(wait)
            process.kill()
            process.wait()
            assert current(made.settings.database) is None
        last = scheduler(home, TWO)
        assert last.communicate(timeout=60)[0] == "over\n"
        assert made.job().state is JobState.DONE
        names = {work.name for folder in (home / "sessions").iterdir() for work in folder.iterdir()}
        assert names <= {one.name for one in made.rows()}
        made.check(200)


def test_sigterm_drains_the_scheduler_and_the_session_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    platforms = {"kaggle": row(4.0)}
    with lab(settings(home, platforms)) as made:
        made.submit(150)
        process = scheduler(home, platforms)
        give_up = time.monotonic() + 20
        while not (made.rows() and made.rows()[0].step > 5):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == "drained\n" and process.returncode == 0
        before = made.rows()[0]
        assert before.state is SessionState.RUNNING
        time.sleep(0.5)
        made.run()
        assert len(made.rows()) == 1 and made.rows()[0].step == 150
        made.check(150)


def test_two_schedulers_cannot_drive_one_database(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with lab(settings(home, TWO)) as made:
        made.submit(5000)
        first = scheduler(home, TWO)
        try:
            with (
                pytest.raises(DriverLocked, match=f"process {first.pid} on "),
                DriverLock(made.settings.database, "tests", made.app.clock.now()),
            ):
                pass
        finally:
            first.kill()
            first.wait()
