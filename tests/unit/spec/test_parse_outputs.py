"""Whole messages, character by character: the five malformed specs of facts/peers.md section 5, and mixed ones."""

from __future__ import annotations

import pytest

from gpuhop.errors import Exit, InvalidInput
from gpuhop.spec.errors import SpecErrors
from gpuhop.spec.parse import parse, parse_bytes

KNOWN = ("colab", "kaggle", "ssh")


def fault(text: str | bytes) -> SpecErrors:
    with pytest.raises(SpecErrors) as caught:
        if isinstance(text, bytes):
            parse_bytes(text, "job.yaml", known_platforms=KNOWN)
        else:
            parse(text, "job.yaml", known_platforms=KNOWN)
    return caught.value


KEY_TYPO = (
    "name: mnist\nrunn: python train.py\ntarget:\n  step: 100\n",
    """\
job.yaml:2:1: unknown key "runn"
    2 | runn: python train.py
      | ^
  did you mean: run
  example: run: python train.py
job.yaml:4:3: unknown key "step" in target
    4 |   step: 100
      |   ^
  did you mean: steps
  example: target: {steps: 20000}
  next: correct the 2 errors, then: gpuhop submit job.yaml""",
)

WRONG_TYPE = (
    "name: 2024\nrun: python train.py\ntarget:\n  steps: many\nplatforms: kaggle\n",
    """\
job.yaml:1:7: name: expected text, got the number "2024": put it in quotes
    1 | name: 2024
      |       ^
  did you mean: name: "2024"
  example: name: gpt2-small
job.yaml:4:10: target.steps: expected a whole number, got "many"
    4 |   steps: many
      |          ^
  example: target: {steps: 20000}
job.yaml:5:12: platforms: expected a list, each item the name of a platform, got the text "kaggle"
    5 | platforms: kaggle
      |            ^
  example: platforms: [kaggle, colab]
  next: correct the 3 errors, then: gpuhop submit job.yaml""",
)

MISSING = (
    "# my first job\nname: mnist\n",
    """\
job.yaml:1:1: the key "run" is missing
    1 | # my first job
      | ^
  example: run: python train.py
job.yaml:1:1: the key "target" is missing
    1 | # my first job
      | ^
  example: target: {steps: 20000}
  next: correct the 2 errors, then: gpuhop submit job.yaml""",
)

BAD_DURATION = (
    "name: mnist\nrun: python train.py\ntarget: {steps: 100}\ncheckpoint:\n  every: 10 minutes\n",
    """\
job.yaml:5:10: checkpoint.every: expected a time with its unit (s, m, h, d) or a number of steps, got "10 minutes"
    5 |   every: 10 minutes
      |          ^
  did you mean: 10m
  example: checkpoint: {every: 10m}
  next: correct the 1 error, then: gpuhop submit job.yaml""",
)

SYNTAX = (
    'name: mnist\nrun: "python train.py\ntarget: {steps: 100}\n',
    """\
job.yaml:2:6: YAML: this is never closed (while scanning a quoted scalar)
    2 | run: "python train.py
      |      ^
  next: correct the 1 error, then: gpuhop submit job.yaml""",
)

SECRETS = (
    "name: mnist\nrun: a\ntarget: {steps: 1}\nenv: {HF_TOKEN: x}\n"
    "secrets:\n  - HF_TOKEN\n  - WANDB_API_KEY=abc123\n  - {OTHER: def456}\n",
    """\
job.yaml:6:5: secrets: "HF_TOKEN" stands in `env` too (line 4): which one should the run see?
    6 |   - HF_TOKEN
      |     ^
  example: secrets: [WANDB_API_KEY]
job.yaml:7:5: secrets: only names stand here, never values; a value in this file would reach disks, stores and logs
    7 |   - WANDB_API_KEY=******
      |     ^
  did you mean: WANDB_API_KEY
  example: secrets: [WANDB_API_KEY]
job.yaml:8:5: secrets: only names stand here, never values; a value in this file would reach disks, stores and logs
    8 |   - {OTHER: ******}
      |     ^
  example: secrets: [WANDB_API_KEY]
  next: correct the 3 errors, then: gpuhop submit job.yaml""",
)

FOLDER_WITHOUT_PROGRESS = (
    "name: mnist\nrun: a\ntarget: {steps: 100}\ncheckpoint: {mode: folder, every: 20 steps}\n",
    """\
job.yaml:3:17: target.steps in checkpoint mode folder needs progress: without it nobody can tell whether the target \
was reached
    3 | target: {steps: 100}
      |                 ^
  example: progress: 'step (\\d+)'
job.yaml:4:20: checkpoint.mode: folder needs checkpoint.folder: which folder holds the training state?
    4 | checkpoint: {mode: folder, every: 20 steps}
      |                    ^
  example: checkpoint: {mode: folder, folder: out}
job.yaml:4:35: checkpoint.every in steps in mode folder needs progress: without it nobody can count the steps
    4 | checkpoint: {mode: folder, every: 20 steps}
      |                                   ^
  did you mean: 10m
  example: progress: 'step (\\d+)'
  next: correct the 3 errors, then: gpuhop submit job.yaml""",
)

NAIVE_DEADLINE = (
    "name: mnist\nrun: a\ntarget: {steps: 1}\nlimits:\n  deadline: 2026-12-24 18:00:00\n",
    """\
job.yaml:5:13: limits.deadline: "2026-12-24 18:00:00" names no zone, so each machine would read another moment: \
add its offset to UTC
    5 |   deadline: 2026-12-24 18:00:00
      |             ^
  did you mean: 2026-12-24T18:00:00Z, or 2026-12-24T18:00:00 with an offset such as +01:00
  example: limits: {deadline: 2026-12-24T18:00:00+01:00}
  next: correct the 1 error, then: gpuhop submit job.yaml""",
)

LONG_LINE = (
    "name: mnist\nrun: a\ntarget: {steps: 1}\nenv: {A: " + "x" * 100 + ", B C: 1}\n",
    """\
job.yaml:4:112: env: "B C" cannot name an environment variable: letters, digits and `_`, no digit first
    4 | ..."""
    + "x" * 87
    + """, B C: 1}
      | """
    + " " * 92
    + """^
  example: env: {BATCH_SIZE: 32}
  next: correct the 1 error, then: gpuhop submit job.yaml""",
)

ALL = {
    "key typo": KEY_TYPO,
    "wrong type": WRONG_TYPE,
    "missing": MISSING,
    "bad duration": BAD_DURATION,
    "syntax": SYNTAX,
    "secrets": SECRETS,
    "folder": FOLDER_WITHOUT_PROGRESS,
    "deadline": NAIVE_DEADLINE,
    "long line": LONG_LINE,
}


@pytest.mark.parametrize(("text", "output"), ALL.values(), ids=ALL)
def test_whole_output(text: str, output: str) -> None:
    assert str(fault(text)) == output


@pytest.mark.parametrize(("text", "output"), ALL.values(), ids=ALL)
def test_windows_line_ends_change_nothing(text: str, output: str) -> None:
    assert str(fault(text.replace("\n", "\r\n").encode())) == output


def test_it_is_invalid_input_with_exit_code_2() -> None:
    error = fault(KEY_TYPO[0])
    assert isinstance(error, InvalidInput)
    assert error.exit_code is Exit.INVALID
    assert int(error.exit_code) == 2


def test_json() -> None:
    assert fault(BAD_DURATION[0]).to_json() == {
        "file": "job.yaml",
        "errors": [
            {
                "line": 5,
                "col": 10,
                "path": "checkpoint.every",
                "message": "checkpoint.every: expected a time with its unit (s, m, h, d) or a number of steps, "
                'got "10 minutes"',
                "excerpt": "  every: 10 minutes\n         ^",
                "nearest": "10m",
                "example": "checkpoint: {every: 10m}",
            }
        ],
    }


def test_a_file_name_with_blanks_is_quoted_in_the_command() -> None:
    with pytest.raises(SpecErrors) as caught:
        parse("", "my job.yaml", known_platforms=())
    assert caught.value.hint == "correct the 1 error, then: gpuhop submit 'my job.yaml'"
