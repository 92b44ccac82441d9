"""What may be a secret's value never reaches a message: neither as text nor as JSON."""

from __future__ import annotations

import json

import pytest

from gpuhop.spec.errors import SpecErrors
from gpuhop.spec.masking import is_name, looks_like_value, mask_secrets
from gpuhop.spec.parse import parse

BASE = "name: a\nrun: b\ntarget: {steps: 1}\n"
VALUE = "s3cr3t-v4lue"

LEAKS = [
    f"secrets: [HF_TOKEN={VALUE}]",
    f"secrets:\n- HF_TOKEN={VALUE}",
    f"secrets:\n  - 'HF_TOKEN: {VALUE}'",
    f"secrets:\n  HF_TOKEN: {VALUE}",
    f"secrets: {{HF_TOKEN: {VALUE}}}",
    f"secrets: {VALUE}",
    f"secrets: [{VALUE}]",
    f"secrets: [{VALUE}, ",
    f"secrets:\n  HF_TOKEN: '{VALUE}",
    f"secrets: [\nHF_TOKEN={VALUE}\n]",
    f"secrets:\n  - *{VALUE}",
    f"secrets:\n  - !{VALUE}",
    f"secrets:\n  - !{VALUE}!x",
    f"secrets:\n  - &a{VALUE} x\n  - &a{VALUE} x",
    f"secrets:\n  - {VALUE}\n  - {VALUE}",
    f"secrets: |\n  {VALUE}",
    f"secrets:\n  [{{A: {VALUE}}}]",
    f'"secrets": ["{VALUE}"]',
    f"'secrets': {{A: [{VALUE}]}}",
    f"secretz: {{A: {VALUE}}}",
    f"secret: {VALUE}",
    f"Secrets: {VALUE}",
    f"credentials: {VALUE}",
    f"secrets: [A]\nsecrets: [{VALUE}]",
    f"secrets:\t{VALUE}",
    f"secrets: [A, \x07{VALUE}]",
]


@pytest.mark.parametrize("lines", LEAKS)
def test_no_value_is_printed(lines: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        parse(BASE + lines + "\n", "job.yaml", known_platforms=())
    for told in (str(caught.value), json.dumps(caught.value.to_json())):
        assert VALUE not in told
        assert "v4lue" not in told


@pytest.mark.parametrize(
    "value",
    [
        "hf_abcdefghijklmnop",
        "ghp_0123456789abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "sk_live_abcdefgh",
        "0123456789abcdef0123456789abcdef",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY1",
    ],
)
def test_tokens_spelled_like_names_are_refused_and_masked(value: str) -> None:
    assert looks_like_value(value)
    with pytest.raises(SpecErrors) as caught:
        parse(f"{BASE}secrets: [{value}]\n", "job.yaml", known_platforms=())
    assert "only names stand here" in str(caught.value)
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HF_ACCESS_TOKEN", "AWS_SECRET_ACCESS_KEY", "http_proxy", "ASIA_REGION_NAME"]
)
def test_names_are_names(name: str) -> None:
    assert is_name(name)
    assert not looks_like_value(name)


def test_masking_keeps_lengths_and_other_lines() -> None:
    lines = ["run: a", "secrets:", "  - NAME", "  - A=b c # d", "", "outputs: [x-y]"]
    assert mask_secrets(lines) == ["run: a", "secrets:", "  - NAME", "  - A=* * * *", "", "outputs: [x-y]"]
