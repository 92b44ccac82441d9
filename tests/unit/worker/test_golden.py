"""Files that each version once wrote are read by today's worker and by the decoder written from docs/format.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden import make_chain, make_v1
from tests.support.sessions import ROOT, decode
from tests.support.states import load
from tests.unit.worker.test_codec import same

from gpuhop_worker import checkpoint, codec, plain_state, restore, wire
from gpuhop_worker.folder import put_in_place
from gpuhop_worker.restore import Restored
from gpuhop_worker.slots import Slot
from gpuhop_worker.store import GrantStore
from gpuhop_worker.wire import Grant, Manifest

GOLDEN = ROOT / "tests" / "golden"
V1 = GOLDEN / "v1"


def fetch(job: str, into: Path, said: list[str], root: Path = V1, manifest: str = "") -> Restored:
    """By the worker's own way: from a store with a grant, newest first, or one manifest."""
    keys = {str(p.relative_to(root)): {"get": p.as_uri()} for p in root.rglob("*") if p.is_file()}
    parents = sorted((k for k in keys if wire.manifest_place(k) and k.startswith(f"jobs/{job}/")), reverse=True)
    parents = [manifest] if manifest else parents
    restored = restore.fetch_newest(parents, job, GrantStore(keys), Slot(str(into / "slot")), said.append)
    assert restored is not None
    return restored


def part(restored: Restored, row: dict[str, Any]) -> bytes:
    size = sum(block[3] for block in restored.manifest.blocks[row["first"] : row["last"]])
    return bytes(restored.slot.view(restored.offsets[row["name"]], size))


def expected() -> dict[str, Any]:
    return {**make_v1.TENSORS, **{name: make_v1.TENSORS[target] for name, target in make_v1.ALIASES.items()}}


def test_the_decoder_reads_tensors_and_state(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = decode.newest(V1, "golden")
    assert (manifest["token"], manifest["seq"], manifest["step"]) == (2, 1, 7)
    assert "t0003/1" in capsys.readouterr().err
    assert decode.tensors(V1, manifest) == expected()
    state = decode.plain(manifest["state"])
    assert state.pop("w") == ("x", {"tensor": "model.w"})
    assert same(state, make_v1.STATE)


def test_the_worker_reads_tensors_and_state(tmp_path: Path) -> None:
    said: list[str] = []
    restored = fetch("golden", tmp_path, said)
    manifest = restored.manifest
    assert (manifest.token, manifest.seq, manifest.step) == (2, 1, 7)
    assert len(said) == 1 and "t0003/manifest-000001.json" in said[0]
    rows = {row["name"]: row for row in manifest.tensors if "alias" not in row}
    for name, (dtype, shape, stride, body) in make_v1.TENSORS.items():
        row = rows[name]
        assert (row["dtype"], row["shape"], row["stride"]) == (dtype, shape, stride)
        assert part(restored, row) == body
    state = codec.decode(manifest.state, lambda mark: mark)
    assert state.pop("w") == {"tensor": "model.w"}
    assert same(state, make_v1.STATE)


@pytest.mark.torch
def test_the_worker_makes_the_tensors(tmp_path: Path) -> None:
    from gpuhop_worker import torch_state

    restored = fetch("golden", tmp_path, [])
    for row in restored.manifest.tensors:
        if "alias" not in row:
            value = torch_state.value_of(part(restored, row), row)
            assert bytes(torch_state.bytes_of(value)) == make_v1.TENSORS[row["name"]][3]
            assert list(value.shape) == row["shape"]
            if not row["dtype"].startswith("numpy:"):
                assert list(value.stride()) == row["stride"]


def test_the_worker_makes_the_arrays(tmp_path: Path) -> None:
    turned = make_v1.TENSORS["ema.turned"]
    row = {"name": "t", "dtype": turned[0], "shape": turned[1], "stride": turned[2]}
    value = plain_state.value_of(turned[3], row)
    assert value.tolist() == [[1, 2], [3, 4]] and value.flags.f_contiguous


def test_both_read_the_folder(tmp_path: Path) -> None:
    want = {p: e if isinstance(e, str) else (e[0], e[2]) for p, e in make_v1.FILES.items()}
    assert decode.folder(V1, decode.newest(V1, "folder")) == want
    put_in_place(fetch("folder", tmp_path, []), str(tmp_path / "out"))
    got: dict[str, Any] = {}
    for path in (tmp_path / "out").rglob("*"):
        name = path.relative_to(tmp_path / "out").as_posix()
        if path.is_symlink():
            got[name] = os.readlink(path)
        elif path.is_file():
            got[name] = (path.stat().st_mode & 0o777, path.stat().st_mtime_ns, path.read_bytes())
    assert got == make_v1.FILES


def test_the_decoder_stitches_metrics() -> None:
    assert [(row["step"], row["token"]) for row in decode.metrics(V1, "golden")] == make_v1.STITCHED


@pytest.mark.parametrize("document", make_v1.DOCUMENTS, ids=lambda d: type(d).__name__)
def test_documents_are_read(document: Any) -> None:
    body = (V1 / "documents" / type(document).__name__.lower()).read_bytes()
    read = Grant.from_gzip(body) if isinstance(document, Grant) else type(document).from_bytes(body)
    assert read == document


def _chain(version: str, step: int) -> tuple[Path, str]:
    token, seq = make_chain.PLACES[step]
    return GOLDEN / version, wire.numbered_key("golden", token, "manifest", seq)


@pytest.mark.parametrize("step", make_chain.STEPS)
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_coded_blocks_and_chains_of_differences(version: str, step: int, tmp_path: Path) -> None:
    root, key = _chain(version, step)
    restored = fetch("golden", tmp_path, [], root, key)
    assert restored.manifest.step == step
    want = make_chain.expected(step)
    for row in restored.manifest.tensors:
        assert part(restored, row) == want[row["name"]][3]
    manifest = decode.unseal((root / key).read_bytes(), "manifest")
    assert decode.tensors(root, manifest) == want
    assert (manifest["format"], manifest.get("hash")) == {"v2": (2, None), "v3": (3, "blake3")}[version]


def test_the_chains_hold_every_codec_and_depth() -> None:
    manifest = Manifest.from_bytes((GOLDEN / "v3" / _chain("v3", 3)[1]).read_bytes())
    assert {row[4] for row in manifest.blocks} == {1, 2, 3}
    assert max(checkpoint.depth(manifest.blocks, index) for index in range(len(manifest.blocks))) == 3


def test_any_damage_to_a_pack_is_seen_by_both(tmp_path: Path) -> None:
    shutil.copytree(V1, tmp_path / "v1")
    pack = tmp_path / "v1" / decode.newest(V1, "folder")["packs"][0]["key"]
    body = bytearray(pack.read_bytes())
    for at in range(0, len(body), len(body) // 7):
        body[at] ^= 1
        pack.write_bytes(bytes(body))
        with pytest.raises(decode.Unreadable):
            decode.newest(tmp_path / "v1", "folder")
        manifest = Manifest.from_bytes((V1 / "jobs/folder/t0001/manifest-000001.json").read_bytes())
        keys = {entry["key"]: {"get": (tmp_path / "v1" / entry["key"]).as_uri()} for entry in manifest.packs}
        with pytest.raises(checkpoint.Damaged):
            load(GrantStore(keys), manifest)
        body[at] ^= 1
