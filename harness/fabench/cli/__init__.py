"""The command line: one module a command, imported only when that command runs, so that --help is quick."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from fabench.cli.descriptors import fill
from fabench.cli.stdout import close, forgiving
from fabench.errors import FabenchError, UsageError
from fabench.interrupts import by

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""
COMMANDS: dict[str, str] = {
    "run": "Measure a suite: a verdict and numbers for every case and backend.",
    "show": "Tables of result files.",
    "parity": "Prove or break a kernel, name its bug, hand back the smallest failing case.",
    "calibrate": "Measure how exact the backends are, or how much equal runs differ, on this device.",
    "diff": "Compare two result files and decide: the exit code is for CI.",
    "merge": "Join shards and rounds of one suite into one file.",
    "report": "One HTML page about result files: verdicts, plots, tables, doubts.",
    "plot": "Plots of result files: TFLOP/s, roofline, memory, accuracy, speed-ups.",
    "explain": "What a case costs and what a card allows: FLOPs, HBM bytes, roofline, tiles.",
    "profile": "One call's kernels by ncu's counters, beside the model.",
    "kernels": "What the in-repo kernels compile to: registers, spills, shared memory.",
    "validate": "Is a result file whole, and does it hold together?",
    "schema": "JSON Schema of a suite, or of a result file's records.",
    "list": "Backends, suites and devices: what is here, and why not.",
    "doctor": "What is installed, what is missing, and what to install.",
}
"""Command -> its line in --help. The module of command `x` is `fabench.cli.x` (`x_` where x is a Python word)."""


class Failure(click.ClickException):
    """A FabenchError on its way out: printed as `Error: sentence`, exiting with its own code."""

    def __init__(self, error: FabenchError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]  # click declares it on the class


def missing(error: ImportError) -> str | None:
    """The library that is not there or broken: the one named, else the one that says so. None if it is fabench."""
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    name = error.name or ("" if raised is None else raised.tb_frame.f_globals.get("__name__", ""))
    return None if name.partition(".")[0] in ("fabench", "") else name


class LazyGroup(click.Group):
    """Commands are imported on first use; an error of fabench's own becomes one sentence and an exit code."""

    def main(self, *args: Any, **options: Any) -> Any:
        """As click's, on descriptors that are all there and streams that take every letter."""
        fill()
        forgiving()
        return super().main(*args, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object, from its module's `command`."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"fabench.cli.{cmd_name}{'_' if cmd_name == 'list' else ''}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add 'did you mean' to an unknown command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from fabench.text import did_you_mean

            ctx.fail(f"unknown command '{args[0]}'{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print each command's line without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a FabenchError ends it with its sentence and its exit code, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except FabenchError as error:
            raise Failure(error) from error
        except ImportError as error:
            if (library := missing(error)) is None:
                raise
            raise Failure(
                UsageError(
                    f"'{library}' must be importable, got {type(error).__name__}: {error}; "
                    "install fabench again, with what it needs"
                )
            ) from error
        except BrokenPipeError:
            raise  # click's to end
        except OSError as error:  # a full disk, a folder that may not be written: the user's to mend
            close()
            where = f"'{error.filename}'" if error.filename else "the output"
            raise Failure(UsageError(f"{where} cannot be used: {error.strerror or error}")) from error
        except KeyboardInterrupt as error:
            click.echo(f"Interrupted{by(error)}", err=True)
            sys.exit(INTERRUPTED)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fabench")
def main() -> None:
    """Is this attention kernel right, and how fast is it, against everything else, on this GPU?"""
