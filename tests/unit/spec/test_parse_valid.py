"""What a valid job.yaml becomes."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuhop.domain.job import Checkpoint, Every, JobSpec, Limits, Resources, Target
from gpuhop.errors import InvalidInput, NotFound
from gpuhop.spec.docs import FULL, SMALLEST
from gpuhop.spec.parse import parse, parse_bytes, parse_file
from gpuhop.spec.schema import KEYS, children
from gpuhop_worker.retention import Best, Keep

KNOWN = ("colab", "kaggle", "local", "ssh")
BASE = "name: mnist\nrun: python train.py\ntarget: {steps: 20000}\n"


def read(text: str) -> JobSpec:
    return parse(text, "/work/job.yaml", known_platforms=KNOWN)


def test_smallest_has_the_domain_defaults() -> None:
    assert read(SMALLEST) == JobSpec("mnist", "/work", "python train.py", Target(steps=20000))


def test_every_key() -> None:
    assert read(FULL) == JobSpec(
        name="gpt2-small",
        code="/work/src",
        setup="pip install -r requirements.txt",
        run="python train.py --config gpt2.json",
        target=Target(steps=20000),
        checkpoint=Checkpoint("folder", "out", Every(seconds=600.0), Keep(3)),
        progress=r"step (\d+)",
        resources=Resources(gpu=True, gpu_count=1, gpu_memory_gb=15.0, disk_gb=20.0),
        platforms=("kaggle", "colab"),
        limits=Limits(60.0, datetime(2026, 12, 24, 17, tzinfo=UTC)),
        priority=10,
        env=(("BATCH_SIZE", "32"), ("AMP", "true")),
        secrets=("WANDB_API_KEY",),
        outputs=("out/*.pt", "metrics.json"),
    )


def test_the_schema_tells_the_domain_defaults() -> None:
    defaults = {row.path: row.default for row in KEYS}
    plain = read(BASE)
    assert defaults["checkpoint.mode"] == plain.checkpoint.mode
    assert defaults["checkpoint.keep"] == str(plain.checkpoint.keep.last) == defaults["checkpoint.keep.last"]
    assert read(BASE + f"checkpoint: {{every: {defaults['checkpoint.every']}}}") == plain
    assert read(BASE + f"resources: {{gpu: {defaults['resources.gpu']}}}") == plain
    assert defaults["resources.gpu.count"] == str(plain.resources.gpu_count)
    assert defaults["priority"] == str(plain.priority)


@pytest.mark.parametrize("row", [row for row in KEYS if row.kind != "section"], ids=lambda row: row.path)
def test_each_example_of_the_schema_is_valid(row: object) -> None:
    from gpuhop.spec.schema import Key

    assert isinstance(row, Key)
    top = row.path.partition(".")[0]
    lines = {"name": "name: a", "run": "run: b", "target": "target: {until: exit}"}
    lines[top] = row.example
    if row.path == "progress":
        lines["checkpoint"] = "checkpoint: {mode: folder, folder: out}"
    assert read("\n".join(lines.values())).name


def test_no_word_of_others_is_a_key_of_ours_in_the_same_section() -> None:
    for row in KEYS:
        names = {other.name for other in children(row.parent)} - {row.name}
        assert not names & set(row.words), row.path


@pytest.mark.parametrize(
    ("written", "every"),
    [
        ("90s", Every(seconds=90.0)),
        ("10m", Every(seconds=600.0)),
        ("1.5h", Every(seconds=5400.0)),
        ("1h30m", Every(seconds=5400.0)),
        ("1h 30m", Every(seconds=5400.0)),
        ("200 steps", Every(steps=200)),
        ("1 step", Every(steps=1)),
        ("{steps: 200}", Every(steps=200)),
        ("{steps: 1_000}", Every(steps=1000)),
    ],
)
def test_every_is_written_in_many_ways(written: str, every: Every) -> None:
    assert read(f"{BASE}checkpoint: {{every: {written}}}").checkpoint.every == every


@pytest.mark.parametrize(
    ("written", "keep"),
    [
        ("5", Keep(5)),
        ("{last: 2}", Keep(2)),
        ("{every_steps: 10000}", Keep(3, 10000)),
        ("{best: {metric: val_loss}}", Keep(3, None, Best("val_loss"))),
        (
            "{last: 1, every_steps: 5, best: {metric: 'a/b', mode: max, count: 2}}",
            Keep(1, 5, Best("a/b", "max", 2)),
        ),
    ],
)
def test_keep_is_a_number_or_a_mapping(written: str, keep: Keep) -> None:
    assert read(f"{BASE}checkpoint: {{keep: {written}}}").checkpoint.keep == keep


@pytest.mark.parametrize(
    ("written", "resources"),
    [
        ("yes", Resources(gpu=True)),
        ("True", Resources(gpu=True)),
        ("'no'", Resources()),
        ("false", Resources()),
        ("{count: 2}", Resources(gpu=True, gpu_count=2)),
        ("{memory: 16GiB}", Resources(gpu=True, gpu_memory_gb=17.179869184)),
        ("{memory: 15 gb, count: 2}", Resources(gpu=True, gpu_count=2, gpu_memory_gb=15.0)),
        ("{memory: 15000MB}", Resources(gpu=True, gpu_memory_gb=15.0)),
    ],
)
def test_gpu(written: str, resources: Resources) -> None:
    assert read(f"{BASE}resources: {{gpu: {written}}}").resources == resources


@pytest.mark.parametrize(
    "written",
    [
        "2026-12-24T18:00:00+01:00",
        "'2026-12-24T18:00:00+01:00'",
        "2026-12-24 18:00:00 +1",
        "2026-12-24t17:00:00.000z",
        "2026-12-24 17:00Z",
        "!!timestamp 2026-12-24 12:00:00 -05:00",
    ],
)
def test_deadlines_are_one_instant_in_utc(written: str) -> None:
    found = read(f"{BASE}limits: {{deadline: {written}}}").limits.deadline
    assert found == datetime(2026, 12, 24, 17, tzinfo=UTC)
    assert found.tzinfo is UTC


@pytest.mark.parametrize("written", ["010", "1_000", "1e3", "yes", "True", "1.50", "0x1F", "2026-01-01", "12:30", "''"])
def test_env_values_stay_as_written(written: str) -> None:
    assert read(f"{BASE}env: {{V: {written}}}").env == (("V", written.strip("'")),)


def test_env_keeps_the_order_of_the_file() -> None:
    assert [name for name, _ in read(f"{BASE}env: {{Z: 1, A: 2, M: 3}}").env] == ["Z", "A", "M"]


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HF_HUB_TOKEN", "SK_LIVE_KEY_NAME", "WANDB_API_KEY", "x", "GH_TOKEN_FOR_CI"]
)
def test_names_of_secrets_that_look_a_little_like_values(name: str) -> None:
    assert read(f"{BASE}secrets: [{name}]").secrets == (name,)


def test_aliases_within_limits() -> None:
    spec = read("name: &n mnist\nrun: *n\ntarget: {until: exit}\nenv: {A: *n}\n")
    assert (spec.run, spec.env, spec.target) == ("mnist", (("A", "mnist"),), Target(until_exit=True))


def test_progress_is_for_folder_mode_and_steps() -> None:
    spec = read(BASE + "checkpoint: {mode: folder, folder: ./out/, every: 50 steps}\nprogress: 'step=(\\d+)'\n")
    assert spec.checkpoint == Checkpoint("folder", "out", Every(steps=50))
    assert spec.progress == r"step=(\d+)"


def test_code_is_seen_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for filename, code, found in [
        ("job.yaml", "", str(tmp_path)),
        ("a/job.yaml", "code: ../b/./c\n", str(tmp_path / "b/c")),
        ("/x/y/job.yaml", "code: /srv/code/\n", "/srv/code"),
        ("<stdin>", "code: src\n", str(tmp_path / "src")),
    ]:
        assert parse(BASE + code, filename, known_platforms=()).code == found


def test_bytes_and_files(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    spec = parse_file(path, known_platforms=KNOWN)
    assert spec == parse_bytes(path.read_bytes(), str(path), known_platforms=KNOWN)
    assert spec.code == str(tmp_path)
    with pytest.raises(NotFound, match="there is no file"):
        parse_file(tmp_path / "none.yaml", known_platforms=KNOWN)
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        parse_file(tmp_path, known_platforms=KNOWN)


def test_importing_the_package_does_not_import_yaml() -> None:
    program = (
        "import sys, gpuhop.spec.parse, gpuhop.spec.freeze, gpuhop.spec.codec, gpuhop.spec.docs\n"
        "assert 'yaml' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_packs_are_read_back_where_it_is_asked_for() -> None:
    text = BASE + "checkpoint: {read_back: %s}\n"
    assert parse(text % "always", "job.yaml", known_platforms=()).checkpoint.read_back
    assert not parse(text % "never", "job.yaml", known_platforms=()).checkpoint.read_back
