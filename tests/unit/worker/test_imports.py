"""The worker needs the standard library and nothing else, on Python 3.9."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from tests.support.sessions import WORKERS

FILES = sorted(WORKERS.rglob("*.py"))
EXTRA = {
    "torch_state.py": {"torch"},
    "loading.py": {"torch"},
    "gradients.py": {"torch"},
    "plain_state.py": {"numpy"},
    "codecs.py": {"numpy", "zstandard"},
    "hashing.py": {"blake3"},
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"gpuhop_worker"} | EXTRA.get(path.name, set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in allowed, f"{path.name}:{node.lineno} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_the_syntax_is_that_of_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_pickle_and_no_eval(path: Path) -> None:
    banned = {"pickle", "marshal", "shelve", "eval", "exec", "__import__"}
    for node in ast.walk(ast.parse(path.read_text())):
        used = {alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)}
        if isinstance(node, ast.Name):
            used.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
        assert not used & (banned | {"torch.load", "torch.save"}), f"{path.name}:{getattr(node, 'lineno', 0)}: {used}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_functions_stay_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}:{node.lineno} {node.name}"
