"""docs/job-yaml.md is what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

from gpuhop.spec.docs import render
from gpuhop.spec.parse import parse
from gpuhop.spec.schema import KEYS

PAGE = Path(__file__).parents[3] / "docs" / "job-yaml.md"


def test_the_page_is_rendered() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m gpuhop.spec.docs > docs/job-yaml.md"


def test_every_key_is_on_the_page_and_every_example_parses() -> None:
    page = render()
    for row in KEYS:
        assert f"| `{row.name}` |" in page
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        parse(example, "job.yaml", known_platforms=("kaggle", "colab"))
