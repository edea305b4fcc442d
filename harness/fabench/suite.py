"""YAML -> Suite -> cases. The sweep is the product of a suite's axes, checked once and strictly.

`load` takes a path or the name of a shipped suite. Whatever is wrong is a SuiteError, `suite.yaml:12: axes.dtpye:
unknown key; did you mean 'dtype'?`. The keys, types and defaults are in `suite_schema.py`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabench.case import Case, digest
from fabench.errors import CaseError, SuiteError, UsageError, WhereError
from fabench.input_files import kind
from fabench.suite_check import check, sentence
from fabench.suite_schema import Axes, Measure, Parity, SuiteModel, json_schema
from fabench.suite_yaml import LIMIT_BYTES, Document, parse, shown
from fabench.suite_yaml import Path as Place
from fabench.text import did_you_mean
from fabench.where import Condition

MOST_CASES = 100_000
"""A larger product is a slip, and is refused before it is expanded."""
PAIRED = {"N": ("Nq", "Nk"), "batch": ("tokens",), "heads": ("hidden",)}
"""An axis, and the ones that may be written instead of it."""


@dataclass(frozen=True)
class Suite:
    """A suite, checked and expanded."""

    name: str
    description: str
    cases: tuple[Case, ...]
    """In the order of the product, each once."""
    backends: tuple[str, ...]
    """Names and globs, as the suite lists them."""
    baseline: str | None
    exclude: tuple[Condition, ...]
    measure: Measure
    parity: Parity
    axes: dict[str, list[Any]]
    """The axes the product runs over, outermost first, defaults last."""
    notes: tuple[str, ...]
    """What a reader should know: combinations that collapsed into one case."""
    resolved: dict[str, Any]
    """The suite with every default filled in, as plain JSON values."""
    given: frozenset[str]
    """Dotted names of the keys that the file sets; the others have their defaults."""
    document: Document = field(repr=False, compare=False)

    @property
    def combinations(self) -> int:
        """Size of the product, before combinations that ask for the same case are merged."""
        return math.prod(len(values) for values in self.axes.values())

    @property
    def hash(self) -> str:
        """Twelve hex digits over everything that decides what is run: all of `resolved` but the description."""
        return digest({key: value for key, value in self.resolved.items() if key != "description"})

    @property
    def seed(self) -> int:
        """Seed of the shuffled order of cases: from the hash, so that the same suite shuffles alike."""
        return int(self.hash[:8], 16)

    def error(self, place: Place, message: str) -> SuiteError:
        """An error about the value at `place`, such as ("backends", 2), with the file and line."""
        return self.document.error(place, message)

    def override(self, **measure: Any) -> Suite:
        """The same suite with other `regime`, `rounds` or `seconds`: what the command line may change. None keeps.

        Raises UsageError for a value that no suite may have.
        """
        changes = {key: value for key, value in measure.items() if value is not None}
        try:
            measured = Measure.model_validate(self.measure.model_dump() | changes)
        except ValidationError as error:
            first: dict[str, Any] = dict(error.errors(include_url=False)[0])
            raise UsageError(f"--{first['loc'][0]} {sentence(first)}") from None
        resolved = self.resolved | {"measure": measured.model_dump()}
        given = self.given | {f"measure.{key}" for key in changes}
        return replace(self, measure=measured, resolved=resolved, given=given)


def load(source: str) -> Suite:
    """The suite in the file `source`, or the shipped suite of that name. Raises SuiteError."""
    return from_bytes(*_read(source))


def from_bytes(raw: bytes, file: str) -> Suite:
    """The suite that `raw` holds; `file` is its name in messages. Raises SuiteError."""
    document = parse(raw, file)
    model = check(document)
    axes = _axes(model, document)
    cases, notes = _expand(axes, document)
    resolved = {"name": model.name, "description": model.description, "axes": _plain(axes)}
    resolved |= model.model_dump(mode="json", exclude=set(resolved))
    resolved["backends"] = ["*" if name == "all" else name for name in model.backends]
    return Suite(
        name=model.name,
        description=model.description,
        cases=cases,
        backends=tuple(resolved["backends"]),
        baseline=model.baseline,
        exclude=tuple(_condition(text, index, document) for index, text in enumerate(model.exclude)),
        measure=model.measure,
        parity=model.parity,
        axes=axes,
        notes=notes,
        resolved=resolved,
        given=_given(document),
        document=document,
    )


def shipped() -> dict[str, Path]:
    """The suites that come with fabench, by name: in the package when installed, in suites/ of a checkout."""
    package = Path(__file__).parent
    for folder in (package / "suites", package.parents[1] / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def _read(source: str) -> tuple[bytes, str]:
    path = Path(source)
    try:
        if not path.is_file():
            path = _shipped_path(source)
        with path.open("rb") as stream:
            return stream.read(LIMIT_BYTES + 1), str(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise SuiteError(f"cannot read the suite {shown(source, 300)}: {reason}") from None


def _shipped_path(source: str) -> Path:
    suites = shipped()
    if source in suites:
        return suites[source]
    if Path(source).exists():
        raise SuiteError(f"{shown(source, 300)} must be a suite file, got a {kind(source)}")
    if os.sep in source or Path(source).suffix in (".yaml", ".yml"):
        raise SuiteError(f"{shown(source, 300)} must be a suite file, but there is no such file")
    hint = did_you_mean(source, suites) or f"; give a path, or one of {', '.join(suites)}"
    raise SuiteError(f"unknown suite {shown(source, 300)}{hint}")


def _axes(model: SuiteModel, document: Document) -> dict[str, list[Any]]:
    """The axes of the product: those the file sets, in its order, then the defaults of the rest."""
    values = {name: value for name in Axes.model_fields if (value := getattr(model.axes, name)) is not None}
    written = [name for name in document.data.get("axes", {}) if name in values]
    for name, others in PAIRED.items():
        instead = [other for other in others if other in values]
        if instead and name in written:
            message = f"'{name}' and '{instead[0]}' say the same thing; give one of them"
            raise document.error(("axes", instead[0]), message, at_key=True)
        if instead:
            del values[name]
    for name, other in (("Nq", "Nk"), ("Nk", "Nq")):
        if name in values and other not in values:
            raise document.error(("axes", name), f"needs '{other}' beside it; or give 'N' for both", at_key=True)
    if "tokens" in values and "N" not in values:
        raise document.error(("axes", "tokens"), "needs 'N'; with 'Nq' and 'Nk' give 'batch'", at_key=True)
    return {name: values[name] for name in [*written, *(name for name in values if name not in written)]}


def _expand(axes: dict[str, list[Any]], document: Document) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """The product, each case once, and a note for each set of axes whose values collapse into the same case."""
    size = math.prod(len(values) for values in axes.values())
    if size > MOST_CASES:
        sizes = " x ".join(f"{len(values)} {name}" for name, values in axes.items() if len(values) > 1)
        raise document.error(("axes",), f"the sweep must be at most {MOST_CASES} cases, got {sizes} = {size}")
    first: dict[Case, dict[str, Any]] = {}
    merged: dict[tuple[str, ...], list[Case]] = {}
    for point in _points(axes):
        case = _case(point, document)
        original = first.setdefault(case, point)
        if original is not point:
            merged.setdefault(tuple(name for name in axes if original[name] != point[name]), []).append(case)
    notes = tuple(
        f"{len(cases)} of {size} combinations {'differs' if len(cases) == 1 else 'differ'} from another only in "
        f"{' and '.join(names)}, which changes nothing there, and {'is' if len(cases) == 1 else 'are'} merged "
        f"(the first: {cases[0].label()})"
        for names, cases in merged.items()
    )
    return tuple(first), notes


def _points(axes: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _case(point: dict[str, Any], document: Document) -> Case:
    values = dict(point)
    if "N" in values:
        values["Nq"] = values["Nk"] = values.pop("N")
    if "tokens" in values:
        values["batch"] = _divided(values.pop("tokens"), "tokens", values["Nq"], "N", document)
    if "hidden" in values:
        values["heads"] = _divided(values.pop("hidden"), "hidden", values["d"], "d", document)
    try:
        return Case(**values)
    except CaseError as error:
        written = document.data.get("axes", {})
        named = [name for name in re.findall(r"'(\w+)'", str(error)) if name in written]
        raise document.error(("axes", *named[:1]), f"no such case: {error}") from None


def _divided(total: int, name: str, by: int, what: str, document: Document) -> int:
    if by == 0 or total % by:
        raise document.error(("axes", name), f"must be a multiple of every {what}, got {total} and {what} = {by}")
    return total // by


def _condition(text: str, index: int, document: Document) -> Condition:
    try:
        return Condition.parse(text)
    except WhereError as error:
        place: Place = ("exclude", index)
        raise document.error(place if place in document.lines else ("exclude",), str(error)) from None


def _given(document: Document) -> frozenset[str]:
    names = set(document.data)
    for key in ("axes", "measure", "parity"):
        names |= {f"{key}.{name}" for name in document.data.get(key, {})}
    return frozenset(names)


def _plain(axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        name: [list(value) if isinstance(value, tuple) else value for value in values] for name, values in axes.items()
    }


__all__ = ["Axes", "Measure", "Parity", "Suite", "from_bytes", "json_schema", "load", "shipped"]
