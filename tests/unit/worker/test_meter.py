"""A long restore and a long upload say how far they are."""

from __future__ import annotations

from pathlib import Path

from tests.golden import make_chain
from tests.support.sessions import ROOT

from gpuhop_worker import restore, wire
from gpuhop_worker.meter import Meter
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore


def test_of_nothing_it_says_nothing() -> None:
    meter = Meter()
    meter.add(5)
    assert meter.text == ""
    meter.begin("shipping step 3", 306_000_000)
    meter.add(62_000_000)
    assert meter.text == "shipping step 3, 62 of 306 MB"
    meter.add(400_000_000)
    assert meter.text == "shipping step 3, 306 of 306 MB"
    meter.end()
    assert meter.text == ""


def test_a_restore_says_how_far_it_is_and_ends(tmp_path: Path) -> None:
    root = ROOT / "tests" / "golden" / "v3"
    keys = {str(p.relative_to(root)): {"get": p.as_uri()} for p in root.rglob("*-*") if p.is_file()}
    key = wire.numbered_key("golden", *make_chain.PLACES[4][:1], "manifest", make_chain.PLACES[4][1])
    meter, seen = Meter(), set()
    found = restore.fetch_newest(
        [key],
        "golden",
        GrantStore(keys),
        Slot(str(tmp_path / "slot")),
        print,
        between=lambda: seen.add(meter.text),
        meter=meter,
    )
    assert found is not None
    assert {text[:16] for text in seen if text} == {"restoring step 4"}
    assert meter.text == ""
