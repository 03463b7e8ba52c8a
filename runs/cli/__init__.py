"""The command line. Exit codes: 0 done, 1 some cell failed, 2 the request was wrong, 130 interrupted.

Commands import heavy modules inside their functions, so that ``--help`` and commands that only read the ledger answer
at once.
"""

import os
import sys
import threading
from contextlib import suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from taskloom.core.work import CELL_THREAD, is_out_of_memory, lacks_room, reason_of
from taskloom.runs.driver.signals import INTERRUPTED

try:
    import click

    from taskloom.core.errors import EngineError, TaskloomError, unknown
    from taskloom.registry.results.errors import HeldUpError
    from taskloom.runs.cli.archive import archive, import_
    from taskloom.runs.cli.cells import cells
    from taskloom.runs.cli.check import data, plan, schema, validate
    from taskloom.runs.cli.common import as_started, how_to_continue, take_stdout
    from taskloom.runs.cli.errors import compare, errors
    from taskloom.runs.cli.explain import explain
    from taskloom.runs.cli.export import export
    from taskloom.runs.cli.findings import budget, claims, effects, seeds
    from taskloom.runs.cli.gc import gc
    from taskloom.runs.cli.grids import grids
    from taskloom.runs.cli.plugins import new_plugin, plugins
    from taskloom.runs.cli.predict import predict
    from taskloom.runs.cli.report import plot, report
    from taskloom.runs.cli.run import run
    from taskloom.runs.cli.selftest import selftest
    from taskloom.runs.cli.table import table
    from taskloom.runs.show.visible import visible
except KeyboardInterrupt:  # Ctrl-C while this is imported, before anything could handle it
    print("Interrupted.", file=sys.stderr)
    raise SystemExit(INTERRUPTED) from None
except MemoryError:  # no room for the modules themselves
    print("Error: memory ran out while the command was loaded", file=sys.stderr)
    raise SystemExit(1) from None


class Commands(click.Group):
    """A group that turns our errors into messages and suggests a command for a misspelt one.

    Its ``obj`` is called after a command's arguments were parsed, before the command begins.
    """

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        command = cmd.callback
        assert command is not None

        @wraps(command)
        def begin(*arguments: Any, **options: Any) -> Any:
            try:
                Path.cwd()
            except OSError as error:
                raise TaskloomError("the current folder was deleted; change to one that exists") from error
            if prepare := click.get_current_context().obj:
                prepare()
            return command(*arguments, **options)

        cmd.callback = begin

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (EngineError, HeldUpError) as error:  # not the request's fault: the same one may succeed later
            raise click.ClickException(visible(f"{error}\n{how_to_continue()}")) from error
        except TaskloomError as error:
            click.echo(f"Error: {visible(as_started(str(error)))}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except click.exceptions.Exit:  # a command's exit code
            raise
        except Exception as error:
            if not is_out_of_memory(error) and not lacks_room(error):
                raise
            lacking = "memory ran out" if is_out_of_memory(error) else "the disk is full"
            raise click.ClickException(visible(f"{lacking}: {reason_of(error)}")) from error
        except SystemExit as error:  # click has its own way out, so this is somebody else's
            click.echo(f"Error: a plugin called sys.exit({error.code!r}); it should raise an error", err=True)
            ctx.exit(2)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            raise click.UsageError(unknown("command", name, self.commands, where="commands"), ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of use


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="taskloom", prog_name="taskloom")
def cli() -> None:
    """Multi-task fine-tuning experiments that can be trusted: one JSON grid in, one comparison table out.

    \b
    Begin with:
      taskloom run quickstart      train a small grid on the CPU and print its table
      taskloom grids               what else can be run
      taskloom plugins             what a grid can be made of
    """


_RESULTS = (table, claims, effects, budget, seeds, compare, errors, report, plot, cells, explain)
_EXCHANGE = (predict, export, archive, import_)
for _command in (run, plan, data, *_RESULTS, *_EXCHANGE, gc, grids, plugins, validate, schema, new_plugin, selftest):
    cli.add_command(_command)


def main() -> None:
    """The entry point of the command ``taskloom``."""
    # A closed stream is None: what is written there is dropped, and no command should fail for it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without "±" gets "?", not a traceback
            stream.reconfigure(errors="replace", line_buffering=True)
    try:
        cli(prog_name="taskloom", obj=take_stdout)
    except SystemExit as end:
        for stream in (sys.stdout, sys.stderr):
            _drop_unread(stream)
        if not any(thread.name.startswith(CELL_THREAD) for thread in threading.enumerate()):
            raise
        # An inline cell that cannot be stopped is still in torch, which aborts when Python exits around it.
        os._exit(end.code if isinstance(end.code, int) else 1)


def _drop_unread(stream: TextIO) -> None:
    """Flush a stream, or drop its buffer if the pipe is closed: Python would exit with 120 for it."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
