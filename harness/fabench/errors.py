"""Every error fabench raises on purpose.

FabenchError
 ├─ UsageError            the user can mend it; the command line exits with 2
 │   ├─ SuiteError        a suite file: `suite.yaml:12: axes.dtpye: unknown key; ...`
 │   ├─ WhereError        a --where, exclude or waiver condition
 │   ├─ CaseError         a problem that cannot exist (heads % kv_heads, a window below -1, ...)
 │   ├─ BackendError      an unknown backend, or a backend file that cannot be loaded
 │   ├─ RecordError       a result file that cannot be read, or does not validate
 │   └─ DeviceError       the device asked for is not here, or is in use
 └─ InternalError         a broken promise inside fabench: a bug report, not a usage error

A message is one sentence: the thing in quotes, what it must be, what it got, what to do.
"""

from __future__ import annotations


class FabenchError(Exception):
    """The root: catching it catches everything fabench raises on purpose."""

    exit_code = 1


class UsageError(FabenchError):
    """The user can mend it. Exit code 2."""

    exit_code = 2


class LocatedError(UsageError):
    """A usage error that knows its place in a file: printed `file:line: message`."""

    def __init__(self, message: str, file: str | None = None, line: int | None = None) -> None:
        self.message, self.file, self.line = message, file, line
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(place + message)


class SuiteError(LocatedError):
    """A suite that cannot be used, with the file and the line at fault."""


class WhereError(UsageError):
    """A condition of the --where grammar that does not parse or names an unknown key."""


class CaseError(UsageError):
    """A case that describes no attention problem."""


class BackendError(UsageError):
    """A backend that is unknown, or whose file cannot be loaded."""


class RecordError(LocatedError):
    """A result file that cannot be read, or a line in it that does not validate."""


class DeviceError(UsageError):
    """A device that is not here, or that another run holds."""


class InternalError(FabenchError):
    """A promise broken inside fabench itself."""
