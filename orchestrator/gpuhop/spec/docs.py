"""docs/job-yaml.md, written from the schema. `python -m gpuhop.spec.docs > docs/job-yaml.md` renews it."""

from __future__ import annotations

from gpuhop.errors import Exit
from gpuhop.spec.errors import SpecErrors
from gpuhop.spec.freeze import LIMIT_BYTES
from gpuhop.spec.ignore import ALWAYS, CREDENTIALS, IGNORE_FILE
from gpuhop.spec.parse import parse
from gpuhop.spec.schema import KEYS, RULES, TYPE_NAMES, Key, children
from gpuhop.spec.source import MAX_ALIASED, MAX_DEPTH

SMALLEST = """\
name: mnist
run: python train.py
target: {steps: 20000}
"""

FULL = """\
name: gpt2-small
code: ./src
setup: pip install -r requirements.txt
run: python train.py --config gpt2.json
target:
  steps: 20000
checkpoint:
  mode: folder
  folder: out
  every: 10m
  keep: 3
progress: 'step (\\d+)'
resources:
  gpu: {memory: 15GB, count: 1}
  disk: 20GB
platforms: [kaggle, colab]
limits:
  gpu_hours: 60
  deadline: 2026-12-24T18:00:00+01:00
priority: 10
env:
  BATCH_SIZE: 32
  AMP: true
secrets: [WANDB_API_KEY]
outputs: ['out/*.pt', metrics.json]
"""

_HEAD = f"""\
# job.yaml

One file says what to run and when it is done. The smallest:

```yaml
{SMALLEST}```

Every key at once:

```yaml
{FULL}```

This page is generated from `gpuhop/spec/schema.py`; `python -m gpuhop.spec.docs > docs/job-yaml.md` renews it.

## Keys
"""

_BROKEN = """\
name: mnist
run: python train.py
target: {step: 20000}
"""

_FILE = f"""\
## The file

UTF-8, one YAML document, at most 1 MiB, {MAX_DEPTH} levels deep; aliases may add at most {MAX_ALIASED} values. Numbers
and truth values of keys that hold text want quotes (`name: "2024"`), except in `env`, where they reach the program as
they are written: `010` stays `010`.

Every fault is reported at once, each with its place, and nothing is changed. The exit code is {Exit.INVALID.value}:
"""

_FROZEN = f"""\
Lines under `secrets` are shown with stars over whatever is not a plain name.

## What is frozen

At `submit` the code folder becomes one archive; later edits do not reach the job.

- In a git work tree: the tracked files, as they are on the disk now, staged new ones too. Untracked files and
  submodules are not taken, and named.
- Elsewhere: every file.
- In both cases `{IGNORE_FILE}` at the root of the code folder leaves files out, by the rules of gitignore.
- Never taken: {", ".join(f"`{name}`" for name in ALWAYS)}.
- Not taken unless `{IGNORE_FILE}` takes them back, as in `!cert.pem`:
  {", ".join(f"`{name}`" for name in CREDENTIALS)}.
- Links that point out of the folder are refused, as is a total above {LIMIT_BYTES // 1_000_000} MB.
"""


def render() -> str:
    """The whole page; the message in it is what `parse` says."""
    parts = [_HEAD, _table(children(""))]
    for section in KEYS:
        below = children(section.path)
        if below:
            parts.append(f"### `{section.path}`\n\n{section.help}\n\n{_table(below)}")
    rules = "\n".join(f"- {rule}" for rule in RULES)
    parts.append(f"## Rules between keys\n\n{rules}\n")
    parts.append(f"{_FILE}\n```\n{_message()}\n```\n")
    return "\n".join([*parts, _FROZEN])


def _message() -> str:
    try:
        parse(_BROKEN, "job.yaml", known_platforms=())
    except SpecErrors as errors:
        return str(errors)
    raise AssertionError("the broken example is valid")


def _table(rows: tuple[Key, ...]) -> str:
    lines = ["| key | holds | default | meaning | example |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (f"`{row.name}`", _holds(row), _default(row), row.help, f"`{row.example}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _holds(row: Key) -> str:
    words = TYPE_NAMES[row.kind]
    if row.kind == "choice":
        return " or ".join(f"`{value}`" for value in row.allowed)
    if row.kind == "keep":
        return f"whole number, {row.minimum} to {row.maximum}, or mapping"
    if row.kind == "integer":
        return f"{words}, {row.minimum} to {row.maximum}"
    if row.kind == "number":
        return f"{words} above 0, to {row.maximum}"
    return words


def _default(row: Key) -> str:
    if row.required:
        return "**required**"
    if row.default is None:
        return "none"
    return row.default if " " in row.default else f"`{row.default}`"


if __name__ == "__main__":
    print(render(), end="")
