"""Which backends there are: the modules of fabench_backends, installed entry points, and the user's own files.

Adding a backend is adding one file to fabench_backends; no list is edited. Loading a user's file or an entry point runs
their code, so only workers and the probe's child call `shipped` and `from_file`; `select` is plain matching of names.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fabench.backend import Backend, Facts
from fabench.device import Device
from fabench.errors import BackendError, FabenchError
from fabench.function_backend import FunctionBackend, bare
from fabench.text import did_you_mean

ENTRY_POINTS = "fabench.backends"
"""The entry point group in which another package offers backends."""
DEFAULT_FUNCTION = "attention"
"""The function taken from a file that decorates none."""


CODE = (".py", ".cu", ".cuh")
"""Suffixes of what a kernel is made of."""


class BrokenBackend(Backend):
    """A backend whose package is installed but cannot be loaded: it stays in every table, with the reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.facts = Facts(name=name, summary="cannot be loaded")
        self.reason = reason

    def unavailable(self, device: Device) -> str | None:
        """What loading it said."""
        return self.reason


@dataclass(frozen=True)
class FileSpec:
    """`[NAME=]FILE.py[:function]` as typed after --backend-file."""

    path: Path
    function: str | None
    name: str | None = None
    """What the backend is called instead of its own name."""

    @classmethod
    def parse(cls, spec: str) -> FileSpec:
        """Split off the name and the function, if given. Raises BackendError if the file is not there."""
        name, renamed, rest = spec.partition("=")
        if renamed and re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            return replace(cls.parse(rest), name=name)
        path, colon, function = spec.rpartition(":")
        if not colon or not path.endswith(".py"):
            path, function = spec, ""
            if not path.endswith(".py"):
                raise BackendError(f"'{spec}' must be FILE.py or FILE.py:function, got no file name that ends in .py")
        elif not function.isidentifier():
            raise BackendError(f"'{spec}' must be FILE.py or FILE.py:function, got '{function}' as the function")
        if not Path(path).is_file():
            found = "a folder" if Path(path).is_dir() else "no such file"
            raise BackendError(f"'{path}' must be a Python file, got {found}; give its path from here")
        return cls(Path(path), function or None)

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes, so that a result names the code it measured."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def shipped() -> dict[str, Backend]:
    """Every backend of fabench_backends and of installed entry points, by name. Raises BackendError on a clash."""
    import fabench_backends

    found: dict[str, Backend] = {}
    for info in sorted(pkgutil.iter_modules(fabench_backends.__path__), key=lambda i: i.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"fabench_backends.{info.name}")
            add(found, backends_in(module), f"fabench_backends.{info.name}")
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        add(found, _from_entry_point(point), f"the entry point '{point.name}'")
    return found


def sources_sha256(backend: Backend) -> str | None:
    """Hash of the code of a backend in this repository, one file or a folder, so that a result names what it measured.

    None for any other, whose code may be anywhere.
    """
    import fabench_backends

    top, _, inner = type(backend).__module__.partition(".")
    if top != fabench_backends.__name__:
        return None
    place = Path(fabench_backends.__path__[0], inner.split(".")[0])
    files = sorted(f for f in place.rglob("*") if f.suffix in CODE) if place.is_dir() else [place.with_suffix(".py")]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(place.parent)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def add(found: dict[str, Backend], backends: Iterable[Backend], source: str) -> None:
    """Add backends by name; a name that is taken by another is a BackendError."""
    for backend in backends:
        if found.get(backend.name, backend) is not backend:
            raise BackendError(
                f"'{backend.name}' of {source} must have a name of its own, got one that another backend has; "
                "rename it, for instance with @fabench.backend(name=...)"
            )
        found[backend.name] = backend


def backends_in(module: ModuleType) -> list[Backend]:
    """The backends a module holds as globals, in the order they were written."""
    return [value for value in dict.fromkeys(_globals(module)) if isinstance(value, Backend)]


def _globals(module: ModuleType) -> Iterator[Any]:
    for value in vars(module).values():
        if isinstance(value, Backend):
            yield value


def _from_entry_point(point: importlib.metadata.EntryPoint) -> list[Backend]:
    try:
        value = point.load()
        if isinstance(value, ModuleType):
            return backends_in(value)
        return [_as_backend(value, point.name)]
    except Exception as error:  # someone else's package may raise anything
        return [BrokenBackend(point.name, f"cannot load {point.value}: {_one_line(error)}")]


def _as_backend(value: Any, name: str) -> Backend:
    if isinstance(value, Backend):
        return value
    if isinstance(value, type) and issubclass(value, Backend):
        return value()
    if not callable(value):
        raise BackendError(f"'{name}' must be a function or a fabench.Backend, got {type(value).__name__}")
    return bare(value, name)


def from_file(spec: str) -> list[Backend]:
    """The backends of a user's file: `FILE.py:function`, else all it decorates, else its function `attention`.

    `NAME=FILE.py...` renames the one backend there is. Runs the file. Raises BackendError, one sentence, for whatever
    the file does wrong.
    """
    parsed = FileSpec.parse(spec)
    backends = _from_file(parsed)
    if parsed.name is None:
        return backends
    if len(backends) != 1:
        names = ", ".join(backend.name for backend in backends)
        raise BackendError(f"'{spec}' must name one backend to rename, got {names}; write {parsed.path}:function")
    renamed = copy.copy(backends[0])
    renamed.facts = replace(renamed.facts, name=parsed.name)
    return [renamed]


def _from_file(parsed: FileSpec) -> list[Backend]:
    module = _execute(parsed.path)
    if parsed.function is not None:
        if not hasattr(module, parsed.function):
            raise BackendError(
                f"'{parsed.function}' must be defined in {parsed.path}, got no such name"
                f"{did_you_mean(parsed.function, _functions(module))}"
            )
        return [_as_backend(getattr(module, parsed.function), parsed.function)]
    imported = set(map(id, _backends_of_fabench()))
    if own := [backend for backend in backends_in(module) if id(backend) not in imported]:
        return own
    if callable(function := getattr(module, DEFAULT_FUNCTION, None)):
        return [_as_backend(function, DEFAULT_FUNCTION)]
    names = _functions(module)
    hint = f"; to use {names[0]}, write {parsed.path}:{names[0]}" if names else ""
    raise BackendError(
        f"'{parsed.path}' must define a function named {DEFAULT_FUNCTION} or decorate one with @fabench.backend, "
        f"got {'the functions ' + ', '.join(names) if names else 'no function'}{hint}"
    )


def _backends_of_fabench() -> Iterator[Backend]:
    """The shipped backends: a file that imports one of them does not thereby offer it."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("fabench_backends", "fabench"):
            yield from backends_in(module)


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
        and (isinstance(value, FunctionBackend) or not isinstance(value, type))
    ]


def _execute(path: Path) -> ModuleType:
    """Import a file under a name of its own, with the modules of its folder importable."""
    resolved = path.resolve()
    name = f"fabench_file_{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution: dataclasses and Triton look the module up by name
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))  # last: a neighbour named timeit.py must not stand in for Python's
    try:
        spec.loader.exec_module(module)
    except FabenchError as error:
        del sys.modules[name]
        raise BackendError(f"'{path}' cannot be loaded: {error}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BackendError(f"'{path}' cannot be loaded: {_one_line(error)}{_place(error, resolved)}") from error
    return module


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def _place(error: BaseException, path: Path) -> str:
    """` (line 12)`: the last line of the user's own file on the way to the error."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def select(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that match any pattern (shell globs), in the order of the patterns, each once.

    Raises BackendError for a name that is unknown, or a glob that matches nothing.
    """
    known = list(names)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        matched = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            kind = "match a backend" if any(c in pattern for c in "*?[") else "be a backend"
            raise BackendError(
                f"'{pattern}' must {kind}, got none of {', '.join(sorted(known)) or 'no backends'}"
                f"{did_you_mean(pattern, known)}"
            )
        chosen.update(dict.fromkeys(matched))
    return list(chosen)
