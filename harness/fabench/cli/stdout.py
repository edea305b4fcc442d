"""Printing what a command found, where stdout may be a closed pipe or a full disk, or lack a letter."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import click

from fabench.errors import UsageError


def forgiving() -> None:
    """What the encoding of stdout or stderr lacks (`ᵀ` in Latin-1, half a letter in UTF-8) is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "") -> None:
    """Print `text`. A reader that has gone (`| head`) has seen enough: the command goes on to its exit code.

    Raises UsageError if stdout cannot be written.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        close()
    except OSError as error:
        close()
        raise UsageError(f"stdout cannot be written: {error.strerror}") from None


def close() -> None:
    """Send what is still to be printed nowhere: flushing it at exit would fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
