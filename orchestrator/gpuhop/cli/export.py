"""gpuhop export JOB"""

from __future__ import annotations

from pathlib import Path

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@click.option("--format", "kind", type=click.Choice(["safetensors", "torch", "hf"]), default="safetensors")
@click.option("--part", help="The tracked module, when there are several.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="File, or folder for hf.")
def command(job: str, kind: str, part: str | None, target: Path | None) -> None:
    """Write the weights of JOB's newest checkpoint: a safetensors file, a torch state_dict, or a folder with
    model.safetensors as Hugging Face loads it (put its config.json beside it)."""
    from gpuhop.services import exporting
    from gpuhop.services.checkpoints import newest, tensors

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        saved = newest(app.store, row.id, rows)
        assert saved.manifest is not None
        named = exporting.weights(tensors(app.store, saved.manifest), part)
    step = saved.manifest.step
    path = target or Path(row.id if kind == "hf" else f"{row.id}-{step}.{'pt' if kind == 'torch' else 'safetensors'}")
    if kind == "hf":
        path.mkdir(parents=True, exist_ok=True)
        path = path / "model.safetensors"
    if kind == "torch":
        exporting.torch_file(path, named)
    else:
        exporting.safetensors(path, named, {"format": "pt", "gpuhop_job": row.id, "gpuhop_step": str(step)})
    output.say(f"{path}  {len(named)} tensors of step {step}, {output.size(path.stat().st_size)}")
