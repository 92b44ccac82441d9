"""One fault each: where it is reported, under which path, and what it says."""

from __future__ import annotations

import pytest

from gpuhop.spec.errors import SpecError, SpecErrors
from gpuhop.spec.parse import parse, parse_bytes

KNOWN = ("colab", "kaggle", "ssh")
BASE = "name: mnist\nrun: python train.py\ntarget: {steps: 100}\n"
FOLDER = "checkpoint: {mode: folder, folder: out}\n"


def faults(text: str | bytes) -> tuple[SpecError, ...]:
    with pytest.raises(SpecErrors) as caught:
        if isinstance(text, bytes):
            parse_bytes(text, "job.yaml", known_platforms=KNOWN)
        else:
            parse(text, "job.yaml", known_platforms=KNOWN)
    return caught.value.errors


VALUES = [
    # what stands after the three required lines, col (all in line 4), path, part of the message, nearest
    ("nmae: x", 1, "nmae", 'unknown key "nmae"', "name"),
    ("steps: 5", 1, "steps", 'unknown key "steps"', "target.steps"),
    ("command: x", 1, "command", 'unknown key "command"', "run"),
    ("zzz: 1", 1, "zzz", "the keys here are: name, code, setup", None),
    ("name: again", 1, "name", "the key stands twice, first in line 1", None),
    ("setup:", 1, "setup", "no value: give one or remove the key", None),
    ("setup: '  '", 8, "setup", "is blank", None),
    ("setup: yes", 8, "setup", 'expected text, got the truth value "yes": put it in quotes', 'setup: "yes"'),
    ("setup: [a, b]", 8, "setup", "expected text, got a list", None),
    ('setup: "a\\0b"', 8, "setup", "holds a NUL character", None),
    ('setup: "a\\ud83d"', 8, "setup", "half of a surrogate pair", None),
    ("code: ~/src", 7, "code", "which only a shell expands", None),
    ("checkpoint: api", 13, "checkpoint", 'expected a mapping, got the text "api"', None),
    ("checkpoint: {mode: foldr}", 20, "checkpoint.mode", "expected one of api, folder", "folder"),
    ("checkpoint: {folder: out}", 14, "checkpoint.folder", "is read in mode folder only", "mode: folder"),
    ("checkpoint: {every: 200}", 21, "checkpoint.every", "expected a time with its unit", "200 steps, or 200s"),
    ("checkpoint: {every: 10:30}", 21, "checkpoint.every", "expected a time with its unit", None),
    ("checkpoint: {every: 0s}", 21, "checkpoint.every", "expected a time from 1s to 30d", None),
    ("checkpoint: {every: 0 steps}", 21, "checkpoint.every", "at least 1 step", None),
    ("checkpoint: {every: 1m 2m}", 21, "checkpoint.every", "expected a time with its unit", None),
    ("checkpoint: {every: {minutes: 3}}", 21, "checkpoint.every", "holds steps and nothing else", "{steps: 200}"),
    ("checkpoint: {every: {steps: x}}", 29, "checkpoint.every", 'expected a whole number, got "x"', None),
    ("checkpoint: {keep: 0}", 20, "checkpoint.keep", "from 1 to 1000, got 0", None),
    ("checkpoint: {keep: many}", 20, "checkpoint.keep", 'expected a whole number, got "many"', None),
    ("checkpoint: {keep: [3]}", 20, "checkpoint.keep", "expected a whole number or a mapping of last", None),
    ("checkpoint: {keep: {}}", 20, "checkpoint.keep", "the mapping is empty", "keep: 3"),
    ("checkpoint: {keep: {last: 0}}", 27, "checkpoint.keep.last", "from 1 to 1000, got 0", None),
    ("checkpoint: {keep: {keep_period: 5}}", 21, "checkpoint.keep.keep_period", "unknown key", "every_steps"),
    ("checkpoint: {keep: {every_steps: 1.5}}", 34, "checkpoint.keep.every_steps", "expected a whole number", None),
    ("checkpoint: {keep: {best: val_loss}}", 27, "checkpoint.keep.best", "expected a mapping", None),
    ("checkpoint: {keep: {best: {mode: min}}}", 27, "checkpoint.keep.best", "needs metric", None),
    ("checkpoint: {keep: {best: {monitor: a}}}", 28, "checkpoint.keep.best.monitor", "unknown key", "metric"),
    ("checkpoint: {keep: {best: {mode: least, metric: a}}}", 34, "checkpoint.keep.best.mode", "expected one of", None),
    ("checkpoint: {keep: {best: {metric: 5}}}", 36, "checkpoint.keep.best.metric", "put it in quotes", 'metric: "5"'),
    ("resources: {gpu: 2}", 18, "resources.gpu", "expected yes, no or a mapping", None),
    ("resources: {gpu: {}}", 18, "resources.gpu", "the mapping is empty", "gpu: yes"),
    ("resources: {gpu: {memory: 15}}", 27, "resources.gpu.memory", "expected a size with its unit", "15GB"),
    ("resources: {gpu: {count: 1.5}}", 26, "resources.gpu.count", 'expected a whole number, got "1.5"', None),
    ("resources: {gpu: {vram: 15GB}}", 19, "resources.gpu.vram", "unknown key", "memory"),
    ("resources: {disk: 0GB}", 19, "resources.disk", "above 0", None),
    ("resources: {disk: 9kb}", 19, "resources.disk", "expected a size with its unit", None),
    ("platforms: [kagle]", 13, "platforms[0]", 'unknown platform "kagle": colab, kaggle, ssh', "kaggle"),
    ("platforms: [Kaggle]", 13, "platforms[0]", "is no platform name", "kaggle"),
    ("platforms: [ssh, ssh]", 18, "platforms[1]", "stands twice", None),
    ("platforms: []", 12, "platforms", "the list is empty: leave the key out", None),
    ("platforms: [12]", 13, "platforms[0]", "put it in quotes", None),
    ("limits: {gpu_hours: 60h}", 21, "limits.gpu_hours", "without a unit", None),
    ("limits: {gpu_hours: 0}", 21, "limits.gpu_hours", "above 0", None),
    ("limits: {gpu_hours: .inf}", 21, "limits.gpu_hours", "expected a number above 0", None),
    ("limits: {deadline: 2026-13-01T00:00:00Z}", 20, "limits.deadline", "is no moment", None),
    ("limits: {deadline: tomorrow}", 20, "limits.deadline", "expected an ISO date", None),
    (
        "limits: {deadline: 2026-12-24}",
        20,
        "limits.deadline",
        "names no zone",
        "2026-12-24T00:00:00Z, or 2026-12-24T00:00:00 with an offset such as +01:00",
    ),
    ("limits: {deadline: 0001-01-01T00:00:00+05:00}", 20, "limits.deadline", "out of range", None),
    ("priority: 101", 11, "priority", "from -100 to 100, got 101", None),
    ("priority: 010", 11, "priority", "octal", None),
    ("priority: " + "9" * 5000, 11, "priority", "expected a whole number", None),
    ("env: [A=1]", 6, "env", "expected a mapping of names to values", None),
    ("env: {1A: x}", 7, "env", "cannot name an environment variable", None),
    ("env: {A: [1]}", 10, "env.A", "expected a text, a number or true/false, got a list", None),
    ("env: {A: }", 7, "env.A", 'write "" for an empty one', None),
    ("env: {A: 1, A: 2}", 13, "env.A", "the key stands twice", None),
    ("env: {GPUHOP_TOKEN: 1}", 7, "env.GPUHOP_TOKEN", "belong to gpuhop", None),
    ("secrets: [GPUHOP_KEY]", 11, "secrets[0]", "belong to gpuhop", None),
    ("secrets: {A: b}", 10, "secrets", "only names stand here", "secrets: [A]"),
    ("secrets: TOKEN", 10, "secrets", "expected a list of names", "secrets: [TOKEN]"),
    ("secrets: [A, A]", 14, "secrets[1]", "stands twice", None),
    ("secrets: [~]", 11, "secrets[0]", "an item is empty", None),
    ("outputs: [/abs]", 11, "outputs[0]", "is not relative", None),
    ("outputs: ['a/../../b']", 11, "outputs[0]", "leaves the code folder", None),
    ("outputs: ['C:/x']", 11, "outputs[0]", "is not relative", None),
    ("outputs: ['a\\b']", 11, "outputs[0]", "has a backslash", "a/b"),
    ("progress: '(a)'", 1, "progress", "is read in checkpoint mode folder only", None),
    ("? [a]\n: b", 3, "", "a key must be plain text, not a list", None),
    ("'': b", 1, "", "a key is empty", None),
    ("<<: {a: b}", 1, "<<", "merging with `<<` is not supported", None),
    ("setup: !!python/object:os.system x", 8, "setup", "the tag", None),
    ("limits: !!set {gpu_hours}", 9, "limits", "got a mapping with the tag", None),
]


@pytest.mark.parametrize(("line", "col", "path", "said", "nearest"), VALUES, ids=[row[0][:40] for row in VALUES])
def test_a_value(line: str, col: int, path: str, said: str, nearest: str | None) -> None:
    (error,) = faults(BASE + line + "\n")
    assert (error.line, error.col, error.path, error.nearest) == (4, col, path, nearest)
    assert said in error.message
    assert error.excerpt.split("\n")[1] == " " * (min(col, 40) - 1) + "^"


TARGETS = [
    ("{}", 9, "target", "expected one of steps, epochs, until"),
    ("{steps: 1, epochs: 2}", 20, "target.epochs", "exactly one of steps, epochs, until: steps is given in line 3"),
    ("{steps: 0}", 17, "target.steps", "from 1 to 999999999999, got 0"),
    ("{steps: -5}", 17, "target.steps", "got -5"),
    ("{steps: 1e4}", 17, "target.steps", 'expected a whole number, got "1e4"'),
    ("{until: done}", 17, "target.until", 'expected exit, got "done"'),
    ("{until: }", 10, "target.until", "no value"),
    ("20000", 9, "target", 'expected a mapping, got the number "20000"'),
    ("[steps]", 9, "target", "expected a mapping, got a list"),
]


@pytest.mark.parametrize(("target", "col", "path", "said"), TARGETS, ids=[row[0] for row in TARGETS])
def test_a_target(target: str, col: int, path: str, said: str) -> None:
    (error,) = faults(f"name: a\nrun: b\ntarget: {target}\n")
    assert (error.line, error.col, error.path) == (3, col, path)
    assert said in error.message


PROGRESS = [
    ("progress: '(a)(b)'", "exactly one group, which holds the number, got 2"),
    ("progress: 'step'", "exactly one group, which holds the number, got 0"),
    ("progress: 'step ('", "is no regular expression of Python"),
    ("progress: '[[a](b)'", "is no regular expression of Python"),
    ("progress: '" + "(" * 250 + ")" * 250 + "'", "got 250"),
    ("progress: '(a{99999999999})'", "is no regular expression of Python"),
    ("progress: '" + "a" * 501 + "'", "is longer than 500 characters"),
]


@pytest.mark.parametrize(("line", "said"), PROGRESS, ids=[row[0][:30] for row in PROGRESS])
def test_progress(line: str, said: str) -> None:
    (error,) = faults(BASE + FOLDER + line)
    assert (error.line, error.col, error.path) == (5, 11, "progress")
    assert said in error.message


FOLDERS = ["/abs", "a/../b", "..", ".", "~/x", "' out'", "'a\\b'"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_checkpoint_folders(folder: str) -> None:
    (error,) = faults(f"name: a\nrun: b\ntarget: {{until: exit}}\ncheckpoint: {{mode: folder, folder: {folder}}}\n")
    assert (error.line, error.col, error.path) == (4, 36, "checkpoint.folder")


def test_epochs_in_folder_mode_need_progress_and_exit_does_not() -> None:
    (error,) = faults(f"name: a\nrun: b\ntarget: {{epochs: 3}}\n{FOLDER}")
    assert error.path == "target.epochs"
    assert parse(f"name: a\nrun: b\ntarget: {{until: exit}}\n{FOLDER}", "j", known_platforms=()).target.until_exit


def test_an_unreadable_mode_brings_no_faults_of_other_modes() -> None:
    (error,) = faults(BASE + "checkpoint: {mode: x, folder: out}\nprogress: '(a)'\n")
    assert error.path == "checkpoint.mode"
    (error,) = faults(BASE + "checkpoint: folder\nprogress: '(a)'\n")
    assert error.path == "checkpoint"


FILES: list[tuple[str, str | bytes, int, int, str]] = [
    ("empty", "", 1, 1, "the file is empty"),
    ("comment only", "# x\n", 1, 1, "the file is empty"),
    ("a list", "\n- name: x\n", 2, 1, "expected a mapping with name, run and target, got a list"),
    ("a text", "hello\n", 1, 1, "expected a mapping"),
    ("null", "~\n", 1, 1, "expected a mapping with name, run and target, got nothing"),
    ("two documents", BASE + "---\n" + BASE, 4, 1, "a second document begins here"),
    ("tab", "name: a\n\trun: b\n", 2, 1, "a tab stands where YAML takes only spaces"),
    ("tab in a block", "target:\n\tsteps: 1\n", 2, 1, "a tab stands where YAML takes only spaces"),
    ("latin-1", b"name: caf\xe9\n", 1, 10, "byte 0xe9 is not UTF-8"),
    ("latin-1 after a BOM", b"\xef\xbb\xbfname: a\nrun: \xe9\n", 2, 6, "byte 0xe9 is not UTF-8"),
    ("utf-16", "name: a\n".encode("utf-16"), 1, 1, "byte 0xff is not UTF-8"),
    ("colon", "name: a: b\n", 1, 8, 'a ":" is not expected here'),
    ("no colon", "name: a\nrun\ntarget: {steps: 1}\n", 3, 1, 'this line has no ":" after its key'),
    ("open quote", "name: 'a\nrun: b\n", 1, 7, "this is never closed"),
    ("open list", "name: a\nplatforms: [a,\n", 2, 12, "this is never closed"),
    ("bell", "name: a\nrun: \x07\n", 2, 6, "character U+0007 cannot stand in YAML"),
    ("lone surrogate", "name: \ud800\n", 1, 7, "character U+D800 cannot stand in YAML"),
    ("escape out of range", 'name: "\\U99999999"\n', 1, 10, "YAML cannot read this escape"),
    ("huge YAML version", "%YAML " + "9" * 5000 + ".1\n---\na: b\n", 1, 7, "YAML cannot read this escape or number"),
    ("too large", "#" * (1024 * 1024 + 1), 1, 1, "larger than 1 MiB"),
    ("too large in bytes", ("é" * (600 * 1024)).encode(), 1, 1, "larger than 1 MiB"),
    ("too deep", "a: " + "[" * 30 + "]" * 30, 1, 23, "more than 20 levels of nesting"),
    ("far too deep", "[" * 100_000, 1, 21, "more than 20 levels of nesting"),
    ("deep in blocks", "- " * 5000 + "x", 1, 41, "more than 20 levels of nesting"),
    ("alias of itself", "name: &a [*a]\n", 1, 11, "part of"),
    ("alias of nothing", "name: *a\n", 1, 7, "refers to nothing above"),
    ("two anchors", "name: &a x\nrun: &a y\n", 2, 6, "this anchor stands twice"),
    ("unknown tag handle", "name: !a!b x\n", 1, 7, "this tag is unknown"),
]


@pytest.mark.parametrize(("text", "line", "col", "said"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_a_file(text: str | bytes, line: int, col: int, said: str) -> None:
    (error,) = faults(text)
    assert (error.line, error.col) == (line, col)
    assert said in error.message


def test_alias_bombs() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (error,) = faults("\n".join(rows))
    assert "aliases add more than 1000 values" in error.message
    chain = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 1000)]
    (error,) = faults("\n".join(chain))
    assert "more than 20 levels of nesting" in error.message
    wide = "a: &a [" + "x, " * 2000 + "]\nb: *a\n"
    (error,) = faults(wide)
    assert "aliases add more than 1000 values" in error.message


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        "nam: x\nrun: 5\ntarget: {steps: 1e4, epochs: 3}\ncheckpoint: {every: soon, kep: 3}\n"
        "resources: {gpu: {memory: 15, count: 0}}\nplatforms: [kagle]\nlimits: {gpu_hours: 60h}\n"
        "priority: 1000\nenv: {A B: 2}\nsecrets: ['x y']\noutputs: [../x]\n"
    )
    places = [(error.line, error.col) for error in faults(text)]
    assert places == sorted(places)
    assert [line for line, _ in places] == [1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11]


def test_what_folder_mode_cannot_keep_by() -> None:
    (best,) = faults(
        "name: a\nrun: b\ntarget: {until: exit}\ncheckpoint: {mode: folder, folder: o, keep: {best: {metric: l}}}\n"
    )
    assert (best.line, best.col, best.path) == (4, 52, "checkpoint.keep.best")
    assert "in mode folder nobody tells gpuhop a metric" in best.message
    (steps,) = faults(
        "name: a\nrun: b\ntarget: {until: exit}\ncheckpoint: {mode: folder, folder: o, keep: {every_steps: 9}}\n"
    )
    assert (steps.line, steps.col, steps.path) == (4, 59, "checkpoint.keep.every_steps")
    assert "needs progress" in steps.message
