"""The `gpuhop` command. One command, one file; each is imported only when it is called (start-up time)."""

from __future__ import annotations

import importlib
import sys

import click

from gpuhop import __version__
from gpuhop.errors import Exit, GpuhopError

COMMANDS = {
    "submit": "validate job.yaml, freeze the code, plan, queue",
    "status": "jobs: where they are, step, speed, time left",
    "logs": "one stream over all hops of a job",
    "quota": "hours used, held and left per platform, next refill",
    "plan": "what the scheduler would do now",
    "explain": "why a job waits and where it goes next",
    "cancel": "stop a job for good",
    "pause": "stop a job at its next step; its checkpoints stay",
    "resume": "let a paused or failed job go on",
    "checkpoints": "what is saved of a job, where, why; --pin keeps one",
    "verify": "read and hash every byte of a job's checkpoint",
    "export": "a checkpoint's weights as safetensors or torch file",
    "prune": "remove old checkpoints and leftovers from the store",
    "drill": "kill your own job at random on this machine and prove equality",
    "fetch": "bring a finished job's outputs here",
    "serve": "run the scheduler loop until stopped",
    "demo": "the whole story in two minutes on this machine",
    "store": "the object store: check",
    "doctor": "what is wrong with this installation, and the fix",
    "db": "the ledger: where it lies, its state",
}


class LazyGroup(click.Group):
    """Knows its commands' names and help; loads the module when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpuhop.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuhop")
@click.option("--debug", is_flag=True, help="Show tracebacks and the engine's log on stderr.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Train for longer than any free GPU session lasts: one job.yaml hops over free sessions and ends equal, bit for
    bit, to the run that would have happened on one machine.

    Start with: gpuhop demo
    """
    ctx.obj = debug


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors become a fact, the next command and an exit code."""
    args = sys.argv[1:] if argv is None else argv
    debug = "--debug" in args
    try:
        # Outside standalone mode click returns the code of an Exit that a command raised.
        sys.exit(cli.main(args=args, prog_name="gpuhop", standalone_mode=False) or 0)
    except GpuhopError as error:
        _fail(str(error), error.exit_code, debug)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        _fail("interrupted", Exit.INTERRUPTED, False)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.INVALID)
    except KeyboardInterrupt:
        _fail("interrupted", Exit.INTERRUPTED, False)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing to tell anybody
        sys.exit(0)
    except Exception as error:
        _fail(_unexpected(error), Exit.FAILED, debug)


def _fail(text: str, code: int, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo(text if text.startswith(("gpuhop", "error")) else f"error: {text}", err=True)
    sys.exit(int(code))


def _unexpected(error: Exception) -> str:
    """No traceback for a user; a disk that is full is not a bug."""
    import errno

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on this machine; nothing was lost\n  next: df -h, free some space, and run it again"
    return f"gpuhop met something it does not know: {type(error).__name__}: {error}\n  next: run it again with --debug"
