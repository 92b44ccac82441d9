"""Every region of a manifest and of a pack, damaged in every way: what is restored is exact, or nothing is.

The checkpoint of step 4 stands alone but for what never changed, the one of step 3 is a chain of differences. Damage to
what only the newest one names must lead to the one before; damage to what all name must end in a refusal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden import make_chain
from tests.support.sessions import decode

from gpuhop_worker import restore, wire
from gpuhop_worker.restore import NothingVerifies, Restored
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore
from gpuhop_worker.wire import Manifest

PLACES = {place: step for step, place in make_chain.PLACES.items()}
Region = tuple[int, int]  # first byte, behind the last byte


def flipped(data: bytes, region: Region) -> bytes:
    at = (region[0] + region[1]) // 2
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


def truncated(data: bytes, region: Region) -> bytes:
    return data[: region[0]]


def zeroed(data: bytes, region: Region) -> bytes:
    return data[: region[0]] + bytes(region[1] - region[0]) + data[region[1] :]


def doubled(data: bytes, region: Region) -> bytes:
    return data[: region[1]] + data[region[0] :]


def swapped(data: bytes, region: Region) -> bytes:
    """With the bytes that follow, or come before."""
    start, size = region[0], region[1] - region[0]
    if start + 2 * size > len(data):
        start = max(0, len(data) - 2 * size)
    size = (len(data) - start) // 2 if start + 2 * size > len(data) else size
    return data[:start] + data[start + size : start + 2 * size] + data[start : start + size] + data[start + 2 * size :]


def left_out(data: bytes, region: Region) -> bytes:
    return data[: region[0]] + data[region[1] :]


DAMAGES: list[Callable[[bytes, Region], bytes]] = [flipped, truncated, zeroed, doubled, swapped, left_out]


class Site:
    """A store in a folder with the chain of checkpoints up to a step."""

    def __init__(self, root: Path, newest: int) -> None:
        self.root, self.newest = root, newest
        make_chain.main(root)
        for step in range(newest + 1, len(make_chain.STEPS)):
            self.path(self.manifest_key(step)).unlink()
        self.slot = Slot(str(root / "slot"))

    def path(self, key: str) -> Path:
        return self.root / key

    def manifest_key(self, step: int) -> str:
        token, seq = make_chain.PLACES[step]
        return wire.numbered_key("golden", token, "manifest", seq)

    def manifest(self, step: int) -> Manifest:
        return Manifest.from_bytes(self.path(self.manifest_key(step)).read_bytes())

    def fetch(self, said: list[str]) -> Restored:
        keys = {str(p.relative_to(self.root)): {"get": p.as_uri()} for p in (self.root / "jobs").rglob("*-*")}
        parents = [self.manifest_key(step) for step in range(self.newest, -1, -1)]
        found = restore.fetch_newest(parents, "golden", GrantStore(keys, patience_s=0.0), self.slot, said.append)
        assert found is not None
        return found

    def outcome(self) -> tuple[int | None, list[str]]:
        """(step restored, None for none; what was said). Raises AssertionError when a single byte is wrong."""
        said: list[str] = []
        try:
            found = self.fetch(said)
        except NothingVerifies:
            return None, said
        want = make_chain.expected(found.manifest.step)
        assert found.manifest.step == PLACES[found.manifest.token, found.manifest.seq]
        assert found.manifest.state["step"] == found.manifest.step
        for name, _, size in restore.part_sizes(found.manifest):
            assert bytes(found.slot.view(found.offsets[name], size)) == want[name][3], name
        return found.manifest.step, said


@pytest.fixture(scope="module", params=[3, 4])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("chain"), request.param)


def regions_of_manifest(data: bytes) -> Iterator[Region]:
    body = data.index(b"\n") + 1
    yield from [(0, 7), (8, 15), (15, 40), (body - 20, body - 1), (body - 1, body), (body, body + 2)]
    step = max(1, (len(data) - body) // 12)
    for start in range(body, len(data), step):
        yield start, min(start + step, len(data))


def regions_of_pack(manifest: Manifest, pack: int) -> Iterator[Region]:
    """Of each block: its header, the lengths of its planes, the borders of its planes, its first and last bytes."""
    for row in manifest.blocks:
        if row[0] == pack:
            start, stop = row[1], row[1] + row[2]
            yield from [(start, start + 2), (start + 2, start + 7), (start + 7, start + 12), (start, stop)]
            yield from [(start + 22, start + 30), ((start + stop) // 2, (start + stop) // 2 + 9), (stop - 4, stop)]


def changed(path: Path, damage: Callable[[bytes, Region], bytes], regions: Iterator[Region]) -> Iterator[Region]:
    """Damages the file in one region after the other; it is whole again at the end."""
    whole = path.read_bytes()
    try:
        for region in regions:
            body = damage(whole, region)
            if body[: len(whole)] != whole:  # bytes behind the end that no row names are no damage
                path.write_bytes(body)
                yield region
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_manifest(site: Site, damage: Callable[[bytes, Region], bytes]) -> None:
    path = site.path(site.manifest_key(site.newest))
    for region in changed(path, damage, regions_of_manifest(path.read_bytes())):
        step, said = site.outcome()
        assert step == site.newest - 1, region
        assert len(said) == 1 and "falling back to the one before" in said[0]
    assert site.outcome() == (site.newest, [])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_pack(site: Site, damage: Callable[[bytes, Region], bytes]) -> None:
    manifest = site.manifest(site.newest)
    older = {pack["key"] for step in range(site.newest) for pack in site.manifest(step).packs}
    count = 0
    for number, pack in enumerate(manifest.packs):
        path = site.path(pack["key"])
        for region in changed(path, damage, regions_of_pack(manifest, number)):
            step, said = site.outcome()
            assert step != site.newest, (pack, region)
            if pack["key"] not in older:
                assert step == site.newest - 1, (pack, region)
            assert any(pack["key"] in line for line in said), (said, region)
            count += 1
    assert count > 30
    assert site.outcome() == (site.newest, [])


def test_a_missing_pack_and_a_pack_in_the_place_of_another(site: Site) -> None:
    manifest = site.manifest(site.newest)
    bodies = {pack["key"]: site.path(pack["key"]).read_bytes() for pack in manifest.packs}
    for key, body in bodies.items():
        site.path(key).unlink()
        assert site.outcome()[0] != site.newest
        for other in bodies.values():
            if other != body:
                site.path(key).write_bytes(other)
                assert site.outcome()[0] != site.newest
        site.path(key).write_bytes(body)
    assert site.outcome() == (site.newest, [])


def test_a_manifest_in_the_place_of_another(site: Site) -> None:
    """Also one that verifies: of another step, of another job."""
    path = site.path(site.manifest_key(site.newest))
    whole = path.read_bytes()
    for step in range(site.newest - 1):
        path.write_bytes(site.path(site.manifest_key(step)).read_bytes())
        assert site.outcome()[0] == site.newest - 1
    stranger = Manifest.from_bytes(whole).__dict__ | {"job": "another"}
    path.write_bytes(Manifest(**stranger).to_bytes())
    assert site.outcome()[0] == site.newest - 1
    path.write_bytes(whole)


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a row outside its pack": lambda m: m["blocks"][0].__setitem__(1, 10**9),
    "a row before its pack": lambda m: m["blocks"][0].__setitem__(1, -1),
    "a pack that is not there": lambda m: m["blocks"][0].__setitem__(0, 99),
    "a negative pack": lambda m: m["blocks"][0].__setitem__(0, -1),
    "an empty block": lambda m: m["blocks"][0].__setitem__(3, 0),
    "a block that is too long": lambda m: m["blocks"][0].__setitem__(3, 1 << 40),
    "another codec": lambda m: m["blocks"][0].__setitem__(4, 1),
    "another hash": lambda m: m["blocks"][0].__setitem__(5, "00" * 32),
    "a base in a circle": lambda m: m["blocks"][0].__setitem__(6, 0),
    "a base that is not there": lambda m: m["blocks"][0].__setitem__(6, 10**6),
    "text for a number": lambda m: m["blocks"][0].__setitem__(1, "0"),
    "a short row": lambda m: m["blocks"][0].__delitem__(slice(3, None)),
    "rows of a part that are not there": lambda m: m["tensors"][0].__setitem__("last", 10**6),
    "a part without rows": lambda m: m["tensors"][0].__delitem__("first"),
    "an alias of nothing": lambda m: m["tensors"].append({"name": "x", "alias": "nobody"}),
    "blocks that are no list": lambda m: m.__setitem__("blocks", {}),
    "packs that are no list": lambda m: m.__setitem__("packs", 7),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_sealed_manifest_that_lies(site: Site, lie: str) -> None:
    path = site.path(site.manifest_key(site.newest))
    whole = path.read_bytes()
    body = wire.unseal(whole)
    LIES[lie](body)
    path.write_bytes(wire.seal(body, deflated=True))
    try:
        assert site.outcome()[0] == site.newest - 1
    finally:
        path.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_the_decoder_loads_no_damage_either(site: Site, damage: Callable[[bytes, Region], bytes]) -> None:
    manifest = site.manifest(site.newest)
    older = {pack["key"] for pack in site.manifest(site.newest - 1).packs}
    for number, pack in enumerate(manifest.packs):
        if pack["key"] not in older:
            some = itertools.islice(regions_of_pack(manifest, number), 0, None, 5)  # it is slow: plain Python
            for region in changed(site.path(pack["key"]), damage, some):
                assert decode.newest(site.root, "golden")["step"] < site.newest, region
