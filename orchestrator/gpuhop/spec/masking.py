"""Source lines that are safe to show: whatever stands under `secrets` and is not a plain name is starred out.

It works on text, not on nodes: a file that YAML cannot read must not leak a secret into a message either.
"""

from __future__ import annotations

import re

from gpuhop.spec.schema import children

# Broad on purpose: a misspelt key must not show its values in the message that says so.
_SECRETS_KEY = re.compile(r"""(?:^|[\s{,"'])(?:se?cr?e?t\w{0,3}|credentials?)["']?\s*(?:[:=]|$)""", re.IGNORECASE)
_NEXT_KEY = re.compile(rf"""["']?(?:{"|".join(row.name for row in children(""))})["']?\s*:""")
_WORD = re.compile(r"""[^\s,\[\]{}"']+""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Lower case counts: hf_... is a token, HF_... the name of one.
_KNOWN_VALUE = re.compile(
    r"(?:hf|gh[opsur]|github_pat|glpat|sk|pk|rk|xox[abprs]|pypi|npm|dckr_pat|ya29|whsec)[-_].{8,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza.{12,}|eyJ.{16,}|[0-9a-f]{32,}",
    re.DOTALL,
)


def looks_like_value(text: str) -> bool:
    """True when `text`, though spelled like a name, resembles a key or token that a service hands out."""
    if _KNOWN_VALUE.fullmatch(text):
        return True
    mixed = re.search(r"[a-z]", text) and re.search(r"[A-Z]", text) and re.search(r"[0-9]", text)
    return len(text) >= 20 and mixed is not None


def is_name(text: str) -> bool:
    """True for what an environment variable may be called."""
    return _NAME.fullmatch(text) is not None


def mask_secrets(lines: list[str]) -> list[str]:
    """The same lines, of the same lengths, with stars over what may be a secret's value."""
    masked: list[str] = []
    inside = False
    for line in lines:
        found = _SECRETS_KEY.search(line)
        if found is not None:
            inside = True
            masked.append(line[: found.end()] + _mask(line[found.end() :]))
            continue
        if _NEXT_KEY.match(line):
            inside = False
        masked.append(_mask(line) if inside else line)
    return masked


def _mask(text: str) -> str:
    """Keep names; star everything else that is not punctuation, and all that follows a `=` or `:`."""
    value = re.search(r"[=:]", text)
    head, tail = (text, "") if value is None else (text[: value.end()], text[value.end() :])
    return _WORD.sub(_mask_word, head) + re.sub(r"[^\s\]},]", "*", tail)


def _mask_word(match: re.Match[str]) -> str:
    word = match[0]
    bare = word.rstrip("=:")
    if set(word) <= {"-", "#", "&", "*", "|", ">", "=", ":"} or (is_name(bare) and not looks_like_value(bare)):
        return word
    return "*" * len(bare) + word[len(bare) :]
