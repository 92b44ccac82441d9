"""job.yaml -> JobSpec. Pure on text: the disk is not looked at, and every fault is reported at once."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from gpuhop.domain.job import Checkpoint, CheckpointMode, Every, JobSpec, Limits, Resources, Target
from gpuhop.errors import InvalidInput, NotFound
from gpuhop.spec import lists, values
from gpuhop.spec.errors import SpecErrors, quote
from gpuhop.spec.schema import children, key
from gpuhop.spec.source import MAX_BYTES, BadSource, compose, decode
from gpuhop.spec.walk import Report, Section, apply, describe, kind_of, scalar_text
from gpuhop_worker.retention import Best, Keep

if TYPE_CHECKING:
    import yaml

_MODES = cast(tuple[CheckpointMode, ...], key("checkpoint.mode").allowed)
_TARGETS: tuple[Literal["steps", "epochs", "until"], ...] = ("steps", "epochs", "until")


def parse_file(path: Path, *, known_platforms: Sequence[str]) -> JobSpec:
    """Read and parse a job.yaml. Raises SpecErrors, NotFound, InvalidInput (no file, no permission)."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", "write one: docs/job-yaml.md begins with an example") from None
    except OSError as wrong:
        raise InvalidInput(f"{path} cannot be read: {wrong.strerror}", "gpuhop submit job.yaml") from None
    return parse_bytes(data, str(path), known_platforms=known_platforms)


def parse_bytes(data: bytes, filename: str, *, known_platforms: Sequence[str]) -> JobSpec:
    """As `parse`, for bytes: a byte that is not UTF-8 is a fault at its place. Raises SpecErrors."""
    try:
        text = decode(data)
    except BadSource as bad:
        raise _no_tree(data[:MAX_BYTES].decode("utf-8-sig", errors="replace"), filename, bad) from None
    return parse(text, filename, known_platforms=known_platforms)


def parse(text: str, filename: str, *, known_platforms: Sequence[str]) -> JobSpec:
    """A valid spec; `code` is absolute, seen from the folder of `filename`. Raises SpecErrors with all."""
    import yaml

    text = text.removeprefix("\ufeff")
    try:
        root = compose(text)
    except BadSource as bad:
        raise _no_tree(text, filename, bad) from None
    report = Report(text)
    if not isinstance(root, yaml.MappingNode) or kind_of(root) != "map":
        report.node(root, "", f"expected a mapping with name, run and target, got {describe(root)}", example=_MINIMAL)
        raise SpecErrors(filename, report.errors)
    spec = _job(Section(report, root, ""), filename, tuple(known_platforms))
    if report.errors:
        raise SpecErrors(filename, report.errors)
    return spec


_MINIMAL = "name: mnist, run: python train.py, target: {steps: 20000} (each on a line of its own)"


def _no_tree(text: str, filename: str, bad: BadSource) -> SpecErrors:
    report = Report(text)
    report.at(bad.line, bad.col, "", bad.message, example=_MINIMAL if not text.strip() else None)
    return SpecErrors(filename, report.errors)


def _job(top: Section, filename: str, known: tuple[str, ...]) -> JobSpec:
    for row in children(""):
        if row.required and not top.has(row.name) and row.name not in top.meant:
            top.report.at(1, 1, row.path, f"the key {quote(row.name)} is missing", example=row.example)
    env, env_names = lists.env(top)
    secret_names = lists.secrets(top)
    lists.apart(top.report, env_names, secret_names)
    target, checkpoint = _target(top), _checkpoint(top)
    progress = top.text("progress", values.regex, "")
    if checkpoint is not None:
        _mode_rules(top, checkpoint)
    return JobSpec(
        name=top.text("name", values.job_name, ""),
        code=_code(top, filename),
        run=top.text("run", values.text, ""),
        target=target,
        setup=top.text("setup", values.text, "") or None,
        checkpoint=checkpoint or Checkpoint(),
        resources=_resources(top),
        platforms=lists.unique(top, "platforms", values.platform(known), "the name of a platform"),
        limits=_limits(top),
        priority=top.scalar("priority", values.integer(key("priority")), 0, "a whole number"),
        env=env,
        secrets=tuple(secret_names),
        outputs=lists.unique(top, "outputs", values.relative, "a pattern"),
        progress=progress or None,
    )


def _code(top: Section, filename: str) -> str:
    written = top.text("code", values.code_folder, ".")
    # Lexical, as a shell's `cd` is: parse() must not ask the disk what is a link.
    return os.path.normpath(Path(filename).absolute().parent / written)


def _target(top: Section) -> Target:
    section = top.section("target")
    if section is None:
        return Target()
    given = [name for name in section.names() if name in _TARGETS]
    if not given and not section.root.value:
        top.report.node(section.root, "target", "target: expected one of steps, epochs, until; it is empty")
    for name in given[1:]:
        first = section.key(given[0]).start_mark.line + 1
        said = f"target: exactly one of steps, epochs, until: {given[0]} is given in line {first} already"
        top.report.node(section.key(name), section.sub(name), said)
    steps = section.scalar("steps", values.integer(key("target.steps")), 0, "a whole number")
    epochs = section.scalar("epochs", values.integer(key("target.epochs")), 0, "a whole number")
    until = section.text("until", values.choice(key("target.until").allowed), "")
    return Target(steps=steps or None, epochs=epochs or None, until_exit=until == "exit")


def _checkpoint(top: Section) -> Checkpoint | None:
    """None, with a fault noted, when nobody can tell which mode is meant: no rule of a mode applies."""
    plain = Checkpoint()
    section = top.section("checkpoint")
    if section is None:
        return None if top.has("checkpoint") else plain
    mode = section.text("mode", values.choice(_MODES), None if section.has("mode") else plain.mode)
    folder = section.text("folder", values.relative_folder, "") or None
    if mode == "folder" and not section.has("folder"):
        node = section.value("mode") or section.root
        said = "checkpoint.mode: folder needs checkpoint.folder: which folder holds the training state?"
        top.report.node(node, "checkpoint.mode", said)
    if mode == "api" and section.has("folder"):
        said = "checkpoint.folder is read in mode folder only; the mode here is api"
        near = None if section.has("mode") else "mode: folder"
        top.report.node(section.key("folder"), "checkpoint.folder", said, nearest=near)
    every, keep = _every(section, plain.every), _keep(section)
    read_back = section.text("read_back", values.choice(key("checkpoint.read_back").allowed), "never") == "always"
    return None if mode is None else Checkpoint(mode, folder, every, keep, read_back)


def _keep(section: Section) -> Keep:
    import yaml

    plain, node = Keep(), section.value("keep")
    if not isinstance(node, yaml.MappingNode) or kind_of(node) != "map":
        wanted = "a whole number or a mapping of last, every_steps and best"
        return Keep(section.scalar("keep", values.integer(key("checkpoint.keep")), plain.last, wanted))
    inner = Section(section.report, node, "checkpoint.keep")
    if not node.value:
        section.report.node(node, "checkpoint.keep", "checkpoint.keep: the mapping is empty", nearest="keep: 3")
    last = inner.scalar("last", values.integer(key("checkpoint.keep.last")), plain.last, "a whole number")
    every = inner.scalar("every_steps", values.integer(key("checkpoint.keep.every_steps")), 0, "a whole number")
    return Keep(last, every or None, _best(inner))


def _best(keep: Section) -> Best | None:
    section = keep.section("best")
    if section is None:
        return None
    if not section.has("metric") and "metric" not in section.meant:
        said = "checkpoint.keep.best needs metric: the name of a number that the script gives to session.log"
        section.report.node(section.root, "checkpoint.keep.best", said)
    mode = section.text("mode", values.choice(key("checkpoint.keep.best.mode").allowed), "min")
    count = section.scalar("count", values.integer(key("checkpoint.keep.best.count")), 1, "a whole number")
    return Best(section.text("metric", values.text, ""), mode, count)


def _every(section: Section, default: Every) -> Every:
    import yaml

    node = section.value("every")
    if not isinstance(node, yaml.MappingNode):
        return section.scalar("every", values.every, default, "a time or a number of steps")
    report, path = section.report, section.sub("every")
    if len(node.value) != 1 or getattr(node.value[0][0], "value", None) != "steps":
        report.node(node, path, f"{path}: a mapping here holds steps and nothing else", nearest="{steps: 200}")
        return default
    value = node.value[0][1]
    text = scalar_text(report, value, path, "a whole number")
    steps = 0 if text is None else apply(report, value, path, values.integer(key("target.steps")), text, 0)
    return Every(steps=steps) if steps else default


def _mode_rules(top: Section, checkpoint: Checkpoint) -> None:
    """In folder mode gpuhop sees the run only through its log; in api mode it needs no log."""
    report = top.report
    keep = _child(top.value("checkpoint"), "keep")
    best = _child(keep, "best")
    if best is not None and checkpoint.mode == "folder":
        said = "checkpoint.keep.best is read in mode api only: in mode folder nobody tells gpuhop a metric"
        report.node(best, "checkpoint.keep.best", said)
    if checkpoint.mode == "api":
        if top.has("progress"):
            said = "progress is read in checkpoint mode folder only: in mode api the script tells its step"
            report.node(top.key("progress"), "progress", said)
        return
    if top.has("progress"):
        return
    needing = [("target", "steps"), ("target", "epochs")]
    for parent, name in needing:
        node = _child(top.value(parent), name)
        if node is not None:
            said = (
                f"{parent}.{name} in checkpoint mode folder needs progress: "
                "without it nobody can tell whether the target was reached"
            )
            report.node(node, f"{parent}.{name}", said, example=key("progress").example)
    every = _child(top.value("checkpoint"), "every")
    if every is not None and checkpoint.every.steps is not None:
        said = "checkpoint.every in steps in mode folder needs progress: without it nobody can count the steps"
        report.node(every, "checkpoint.every", said, nearest="10m", example=key("progress").example)
    spaced = _child(keep, "every_steps")
    if spaced is not None:
        said = "checkpoint.keep.every_steps in mode folder needs progress: without it nobody can count the steps"
        report.node(spaced, "checkpoint.keep.every_steps", said, example=key("progress").example)


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    """The value below a key of a mapping node; None when there is no such mapping or key."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for part, value in node.value if part.value == name), None)


def _resources(top: Section) -> Resources:
    import yaml

    section = top.section("resources")
    if section is None:
        return Resources()
    disk = section.scalar("disk", values.size_gb, 0.0, "a size with its unit") or None
    node = section.value("gpu")
    if not isinstance(node, yaml.MappingNode) or kind_of(node) != "map":
        wanted = "yes, no or a mapping of memory and count"
        gpu = section.scalar("gpu", values.yes_no, False, wanted)
        return Resources(gpu=gpu, disk_gb=disk)
    inner = Section(section.report, node, "resources.gpu")
    if not node.value:
        section.report.node(node, "resources.gpu", "resources.gpu: the mapping is empty", nearest="gpu: yes")
    memory = inner.scalar("memory", values.size_gb, 0.0, "a size with its unit") or None
    count = inner.scalar("count", values.integer(key("resources.gpu.count")), 1, "a whole number")
    return Resources(gpu=True, gpu_count=count, gpu_memory_gb=memory, disk_gb=disk)


def _limits(top: Section) -> Limits:
    section = top.section("limits")
    if section is None:
        return Limits()
    hours = section.scalar("gpu_hours", values.number(key("limits.gpu_hours")), 0.0, "a number") or None
    wanted = "a date and time with its offset to UTC"
    deadline = section.scalar("deadline", values.deadline, None, wanted)
    return Limits(gpu_hours=hours, deadline=deadline)
