"""A suite's data against its schema: the first thing wrong, by line, becomes one sentence with `file:line: key:`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from fabench.dtypes import DTYPES, RESERVED_DTYPES
from fabench.errors import SuiteError
from fabench.suite_schema import ONE_LINE, Axes, Measure, Parity, SuiteModel
from fabench.suite_yaml import Document, Path, shown
from fabench.text import did_you_mean

MODELS: dict[Path, type[BaseModel]] = {(): SuiteModel, ("axes",): Axes, ("measure",): Measure, ("parity",): Parity}
"""The model of each mapping of a suite."""


def check(document: Document) -> SuiteModel:
    """The suite that `document` holds. Raises SuiteError for the earliest line at fault."""
    if not isinstance(document.data, dict):
        what = "nothing" if document.data is None else "a list" if isinstance(document.data, list) else "one value"
        raise document.error((), f"a suite must be a mapping of keys such as 'name' and 'axes', got {what}")
    try:
        return SuiteModel.model_validate(document.data)
    except ValidationError as error:
        raise min((_error(document, dict(e)) for e in error.errors(include_url=False)), key=_line) from None


def _line(error: SuiteError) -> int:
    return error.line or 0


def _error(document: Document, error: dict[str, Any]) -> SuiteError:
    path: Path = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        known = MODELS[path[:-1]].model_fields
        hint = did_you_mean(str(path[-1]), known) or f"; known: {', '.join(known)}"
        return document.error(path, f"unknown key{hint}", at_key=True)
    if error["type"] == "missing":
        return document.error(path, "the key is required")
    path += (error["ctx"]["index"],) if "index" in error.get("ctx", {}) else ()
    while path and path not in document.lines:  # a value that stands alone has no index in the file
        path = path[:-1]
    return document.error(path, sentence(error))


def sentence(error: dict[str, Any]) -> str:
    """What is wrong with a value, in the words of a suite's author."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    got = f"got {shown(value)}"
    match kind:
        case "fabench":
            return str(error["msg"])
        case "too_short":
            return "must hold at least one value, got an empty list"
        case "literal_error":
            if value in RESERVED_DTYPES:
                return f"'{value}' is reserved and not yet measured; use one of {', '.join(DTYPES)}"
            choices = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"must be one of {', '.join(choices)}, {got}{did_you_mean(str(value), choices)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}, {got}"
        case "greater_than":
            return f"must be more than {context['gt']:g}, {got}"
        case "less_than_equal":
            return f"must be at most {context['le']:.10g}, {got}"
        case "string_pattern_mismatch":
            rule = "one line of text" if context["pattern"] == ONE_LINE else "1 to 64 letters, digits, '.', '_' or '-'"
            return f"must be {rule}, {got}"
    expected = {
        "int_type": "a whole number",
        "bool_type": "true or false",
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "a word",
        "string_unicode": "text, with no half of a letter in it",
        "string_too_short": "a word",
        "model_type": "a mapping",
    }.get(kind, str(error["msg"]))
    return f"must be {expected}, {got}"
