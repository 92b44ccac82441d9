"""gpuhop submit job.yaml"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.app import App
    from gpuhop.domain.job import JobSpec
    from gpuhop.spec.freeze import FrozenCode


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="job.yaml")
@click.option("--dry-run", is_flag=True, help="Validate, freeze, show the plan; nothing is queued.")
@click.option("--show-launch", is_flag=True, help="With --dry-run: print exactly what the first launch would send.")
@click.option("--new", is_flag=True, help="Queue it even though this file has an unfinished job.")
@click.option("--follow", is_flag=True, help="Stay until the job ends; drive the loop here when no serve runs.")
@output.output_option
def command(file: Path, dry_run: bool, show_launch: bool, new: bool, follow: bool, form: str) -> None:
    """Validate FILE, freeze its code, plan, and queue it.

    The code is taken as it is now (git-tracked files, or all but those in .gpuhopignore) and pinned by hash for the
    job's whole life. Exit 2 when FILE has errors; all of them are shown at once.
    """
    _submit(file, dry_run, show_launch, new, follow, form == "json")


def _submit(file: Path, dry_run: bool, show_launch: bool, new: bool, follow: bool, as_json: bool) -> None:
    with output.opened_app() as app:
        spec = _parse(file, app, as_json)
        code = _freeze(spec, app)
        if dry_run:
            _show_plan(app, spec, code, show_launch)
            return
        job_id = _new_job(app, spec, code, file.absolute(), new)
        code.archive.unlink(missing_ok=True)
        if as_json:
            output.as_json({"id": job_id, "code": code.sha256, "files": len(code.files), "bytes": code.size_bytes})
        else:
            _tell_next(app, job_id, follow)
        if follow:
            from gpuhop.cli import following

            following.follow(app, job_id)


def _parse(file: Path, app: App, as_json: bool) -> JobSpec:
    from gpuhop.errors import InvalidInput
    from gpuhop.spec.errors import SpecErrors
    from gpuhop.spec.parse import parse_file

    try:
        spec = parse_file(file, known_platforms=sorted(app.profiles))
    except SpecErrors as errors:
        if not as_json:
            raise
        output.as_json(errors.to_json())
        raise click.exceptions.Exit(errors.exit_code) from errors
    deadline = spec.limits.deadline
    if deadline is not None and deadline <= app.clock.now():
        raise InvalidInput(f"limits.deadline {deadline.isoformat()} has passed already", f"edit {file}")
    return spec


def _freeze(spec: JobSpec, app: App) -> FrozenCode:
    from gpuhop.spec.freeze import freeze

    code = freeze(Path(spec.code), into=app.settings.home / "frozen")
    packed = f"{len(code.files)} files, {output.size(code.content_bytes)} ({output.size(code.size_bytes)} packed)"
    output.note(f"code  {packed}, sha256 {code.sha256[:12]}")
    for what, names in (
        ("not tracked by git, left out", code.untracked),
        ("look like credentials, left out", code.credentials),
        ("git submodules, left out", code.submodules),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            output.note(f"      {what}: {', '.join(names[:5])}{more}")
    return code


def _new_job(app: App, spec: JobSpec, code: FrozenCode, source: Path, new: bool) -> str:
    import secrets

    from gpuhop.errors import InvalidInput
    from gpuhop.services import submitting

    before = submitting.earlier(app.parts, source)
    if before and not new:
        text = f"{source.name} was submitted before and is not finished: {', '.join(job.id for job in before)}"
        if not output.on_terminal() or not click.confirm(f"{text}. Queue another one?"):
            raise InvalidInput(text, f"gpuhop status {before[0].id}   or: gpuhop submit --new {source.name}")
    job_id = submitting.new_id(spec.name, lambda: secrets.token_hex(2))
    return submitting.submit(app.parts, spec, code, source, job_id).id


def _tell_next(app: App, job_id: str, follow: bool) -> None:
    from gpuhop.engine import driver

    output.say(f"queued {click.style(job_id, bold=True)}")
    if follow:
        return
    if driver.current(app.settings.database) is None:
        output.say("  gpuhop serve                 start the scheduler (none runs now)")
    output.say(f"  gpuhop status {job_id} --watch")
    output.say(f"  gpuhop logs -f {job_id}")


def _show_plan(app: App, spec: JobSpec, code: FrozenCode, show_launch: bool) -> None:
    from dataclasses import replace

    from gpuhop.domain.plan import Launch, bars, plan
    from gpuhop.engine import launching, observe
    from gpuhop.services import submitting

    code.archive.unlink(missing_ok=True)
    job = submitting.as_view(spec, app.parts)
    with app.db.read() as c:
        world = observe.world(app.parts, c)
    world = replace(world, jobs=(*world.jobs, job))
    launches = [a for a in plan(world) if isinstance(a, Launch) and a.job == job.id]
    for action in launches:
        output.say(f"would start now on {action.platform}: trains {output.span(action.budget_s)}")
        if show_launch:
            rendered = launching.preview(app.parts, action, spec.secrets)
            output.say(f"  {rendered.title}\n  {rendered.body}")
            for name in spec.secrets:
                output.say(f"  secret {name}: taken from the environment where the session starts")
    if not launches:
        output.say("would wait now")
    for bar in bars(job, world):
        output.say(f"  {bar.platform}: {bar.text}")
    output.say("nothing was queued (--dry-run)")
