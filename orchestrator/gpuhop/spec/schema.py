"""The keys of job.yaml as data: messages, docs/job-yaml.md and a JSON Schema come from this one table."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "section",
    "text",
    "choice",
    "integer",
    "number",
    "every",
    "keep",
    "gpu",
    "size",
    "datetime",
    "names",
    "globs",
    "env",
    "regex",
]

TYPE_NAMES: dict[Kind, str] = {
    "section": "mapping",
    "text": "text",
    "choice": "one word",
    "integer": "whole number",
    "number": "number",
    "every": "time or steps",
    "keep": "whole number or mapping",
    "gpu": "yes, no or mapping",
    "size": "size with a unit",
    "datetime": "date and time with a zone",
    "names": "list of names",
    "globs": "list of patterns",
    "env": "mapping of names to values",
    "regex": "regular expression",
}


@dataclass(frozen=True)
class Key:
    """One key. `default` and `example` are YAML as one would write it; `words` are what others call it.

    `minimum` and `maximum` bound integers and numbers (both ends included; a `number` must also be above 0).
    """

    path: str
    kind: Kind
    help: str
    example: str
    default: str | None = None
    required: bool = False
    allowed: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


MAX_STEPS = 999_999_999_999  # manifest names hold twelve digits (DESIGN section 4)

KEYS: tuple[Key, ...] = (
    Key(
        "name",
        "text",
        "What the job is called: letters, digits, `.`, `_` and `-`, at most 64, a letter or digit first.",
        "name: gpt2-small",
        required=True,
        words=("job", "title"),
    ),
    Key(
        "code",
        "text",
        "Folder with the code, relative to the folder of this file. Frozen at `submit`.",
        "code: ./src",
        default="the folder of job.yaml",
        words=("workdir", "source", "path", "dir"),
    ),
    Key(
        "setup",
        "text",
        "Shell command run once in each session before `run`.",
        "setup: pip install -r requirements.txt",
        words=("install", "before"),
    ),
    Key(
        "run",
        "text",
        "Shell command that trains, started in the code folder.",
        "run: python train.py",
        required=True,
        words=("command", "cmd", "script", "entrypoint", "main"),
    ),
    Key(
        "target",
        "section",
        "When the job is done: exactly one of the keys below.",
        "target: {steps: 20000}",
        required=True,
        words=("goal", "until_done"),
    ),
    Key(
        "target.steps",
        "integer",
        "Done after this many optimizer steps.",
        "target: {steps: 20000}",
        minimum=1,
        maximum=MAX_STEPS,
        words=("max_steps", "num_steps", "iterations"),
    ),
    Key(
        "target.epochs",
        "integer",
        "Done after this many passes over the data.",
        "target: {epochs: 90}",
        minimum=1,
        maximum=MAX_STEPS,
        words=("max_epochs", "num_epochs"),
    ),
    Key(
        "target.until",
        "choice",
        "`exit`: done when `run` ends with exit code 0.",
        "target: {until: exit}",
        allowed=("exit",),
    ),
    Key(
        "checkpoint",
        "section",
        "How the training state is carried from session to session.",
        "checkpoint: {every: 10m}",
        words=("checkpoints", "ckpt", "checkpointing", "save"),
    ),
    Key(
        "checkpoint.mode",
        "choice",
        "`api`: the script calls `gpuhop_worker`; `folder`: it saves and resumes by itself, in `folder`.",
        "checkpoint: {mode: folder, folder: out}",
        default="api",
        allowed=("api", "folder"),
    ),
    Key(
        "checkpoint.folder",
        "text",
        "Mode `folder` only: the folder that is carried, relative to the code folder.",
        "checkpoint: {mode: folder, folder: out}",
        words=("checkpoint_dir", "output_dir"),
    ),
    Key(
        "checkpoint.every",
        "every",
        "How often to save: `auto` (as often as pays, by the measured cost of a save, the link and how long sessions "
        "live), `90s`, `10m`, `1h30m`, `200 steps` or `{steps: 200}`.",
        "checkpoint: {every: 10m}",
        default="auto",
        words=("interval", "frequency", "save_every", "save_steps"),
    ),
    Key(
        "checkpoint.keep",
        "keep",
        "Which checkpoints stay in the store: the newest so many, or a mapping of the keys below; each adds some. "
        "Pinned ones stay too (`gpuhop checkpoints JOB --pin`).",
        "checkpoint: {keep: 3}",
        default="3",
        minimum=1,
        maximum=1000,
        words=("save_total_limit", "max_to_keep", "retention"),
    ),
    Key(
        "checkpoint.keep.last",
        "integer",
        "The newest so many.",
        "checkpoint: {keep: {last: 3}}",
        default="3",
        minimum=1,
        maximum=1000,
        words=("latest", "newest", "latest_n", "save_last"),
    ),
    Key(
        "checkpoint.keep.every_steps",
        "integer",
        "For each multiple of this many steps, the first checkpoint at or after it.",
        "checkpoint: {keep: {every_steps: 10000}}",
        minimum=1,
        maximum=MAX_STEPS,
        words=("every", "keep_period", "interval_steps", "every_n_steps", "every_n_train_steps"),
    ),
    Key(
        "checkpoint.keep.best",
        "section",
        "Mode `api` only: the best by a number that the script gives to `session.log`. A value belongs to the first "
        "checkpoint at or after its step.",
        "checkpoint: {keep: {best: {metric: val_loss}}}",
        words=("save_top_k", "best_n"),
    ),
    Key(
        "checkpoint.keep.best.metric",
        "text",
        "Name of the number, as in `session.log(val_loss=...)`.",
        "checkpoint: {keep: {best: {metric: val_loss}}}",
        words=("monitor", "metric_for_best_model", "name"),
    ),
    Key(
        "checkpoint.keep.best.mode",
        "choice",
        "`min`: the least is the best; `max`: the greatest.",
        "checkpoint: {keep: {best: {metric: accuracy, mode: max}}}",
        default="min",
        allowed=("min", "max"),
        words=("best_mode", "greater_is_better", "direction"),
    ),
    Key(
        "checkpoint.keep.best.count",
        "integer",
        "The best so many.",
        "checkpoint: {keep: {best: {metric: val_loss, count: 2}}}",
        default="1",
        minimum=1,
        maximum=1000,
        words=("n", "top_k", "k"),
    ),
    Key(
        "checkpoint.read_back",
        "choice",
        "`always`: fetch every pack again and compare it before its checkpoint counts, for stores that are not trusted "
        "(as many bytes come down as went up). `never`: the store's own checksum is enough.",
        "checkpoint: {read_back: always}",
        default="never",
        allowed=("never", "always"),
        words=("verify", "readback", "verify_after_upload"),
    ),
    Key(
        "resources",
        "section",
        "What a session must offer.",
        "resources: {gpu: yes}",
        words=("resource", "needs", "requirements"),
    ),
    Key(
        "resources.gpu",
        "gpu",
        "`yes`, `no`, or what the GPU must have: `{memory: 15GB, count: 2}`.",
        "resources: {gpu: {memory: 15GB, count: 2}}",
        default="no",
        allowed=("yes", "no", "true", "false"),
        words=("gpus", "accelerator", "accelerators", "device"),
    ),
    Key(
        "resources.gpu.memory",
        "size",
        "Least memory of each GPU (MB, GB, TB; MiB, GiB, TiB).",
        "resources: {gpu: {memory: 15GB}}",
        words=("gpu_memory", "vram"),
    ),
    Key(
        "resources.gpu.count",
        "integer",
        "GPUs in one session.",
        "resources: {gpu: {count: 2}}",
        default="1",
        minimum=1,
        maximum=64,
        words=("gpu_count", "num_gpus"),
    ),
    Key(
        "resources.disk",
        "size",
        "Least free disk of a session.",
        "resources: {disk: 20GB}",
        words=("disk_size", "storage"),
    ),
    Key(
        "platforms",
        "names",
        "Only these platforms may be used.",
        "platforms: [kaggle, colab]",
        default="every platform that is set up",
        words=("platform", "cloud", "clouds", "backends", "backend"),
    ),
    Key(
        "limits",
        "section",
        "What the job may cost.",
        "limits: {gpu_hours: 60}",
        words=("limit", "budget"),
    ),
    Key(
        "limits.gpu_hours",
        "number",
        "Stop after this many session hours x GPUs.",
        "limits: {gpu_hours: 60}",
        maximum=1_000_000,
        words=("max_hours", "hours", "timeout"),
    ),
    Key(
        "limits.deadline",
        "datetime",
        "Stop at this moment: ISO date and time with its offset to UTC.",
        "limits: {deadline: 2026-12-24T18:00:00+01:00}",
        words=("stop_at", "due"),
    ),
    Key(
        "priority",
        "integer",
        "Higher goes first.",
        "priority: 10",
        default="0",
        minimum=-100,
        maximum=100,
    ),
    Key(
        "env",
        "env",
        "Environment variables. Numbers and booleans reach the program as they are written here.",
        "env: {BATCH_SIZE: 32}",
        words=("envs", "environment", "variables"),
    ),
    Key(
        "secrets",
        "names",
        "Names of environment variables that the run needs and that stay secret. Names only, never values.",
        "secrets: [WANDB_API_KEY]",
        words=("secret", "credentials", "keys"),
    ),
    Key(
        "outputs",
        "globs",
        "Files fetched at the end, relative to the code folder.",
        "outputs: ['out/*.pt', 'metrics.json']",
        words=("output", "artifacts", "results"),
    ),
    Key(
        "progress",
        "regex",
        "Mode `folder` only: finds in the log, with one group, the number that `target` counts.",
        r"progress: 'step (\d+)'",
    ),
)

RULES: tuple[str, ...] = (
    "`target` has exactly one of `steps`, `epochs`, `until`.",
    "`checkpoint.mode: folder` needs `checkpoint.folder`; mode `api` refuses it.",
    "In mode `folder`, `target.steps`, `target.epochs`, `checkpoint.every` in steps and `checkpoint.keep.every_steps` "
    "need `progress`: without it nobody can tell how far the run is. In mode `api`, `progress` is refused.",
    "`checkpoint.keep.best` needs mode `api`: in mode `folder` nobody tells gpuhop a metric.",
    "No name stands both in `env` and in `secrets`, and none begins with `GPUHOP_`.",
    "Folders and patterns are relative, with `/`, without `..`.",
)

_BY_PATH = {key.path: key for key in KEYS}


def key(path: str) -> Key:
    """The row of a dotted path. KeyError when there is none."""
    return _BY_PATH[path]


def children(parent: str) -> tuple[Key, ...]:
    """The keys right below `parent` ("" for the top level), in the order of the table."""
    return tuple(row for row in KEYS if row.parent == parent)


def example_of(path: str) -> str | None:
    """The example for a dotted path; list indexes and names below a leaf fall back to the leaf's."""
    while path:
        bare = path.partition("[")[0]
        if bare in _BY_PATH:
            return _BY_PATH[bare].example
        path = bare.rpartition(".")[0]
    return None


def nearest_word(word: str, choices: tuple[str, ...]) -> str | None:
    """The choice that `word` most resembles, or None."""
    found = difflib.get_close_matches(word.lower()[:64], choices, n=1, cutoff=0.6)
    return found[0] if found else None


def nearest_key(name: str, parent: str) -> str | None:
    """The key meant by an unknown `name` below `parent`.

    A key of the same section is given by its name, one that belongs elsewhere by its dotted path.
    """
    word = name.lower().replace("-", "_")
    here = children(parent)
    for row in here:
        if word == row.name or word in row.words:
            return row.name
    for row in KEYS:
        if word == row.name or word in row.words:
            return row.path
    return nearest_word(word, tuple(row.name for row in here))
