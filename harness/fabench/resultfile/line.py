"""One line of a result file: bytes to a record and back, with a sentence for everything that can be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from fabench.errors import RecordError
from fabench.records import ADAPTER, SCHEMA, Canary, Env, Footer, Header, Record, Row
from fabench.text import printable

Line = Header | Env | Row | Canary | Footer

MAJOR, MINOR = (int(part) for part in SCHEMA.removeprefix("fabench/").split("."))


def encode(record: Record) -> bytes:
    """The record's line. Fields that are null by default are left out: they read back as null."""
    try:
        text = record.model_dump_json(by_alias=True, exclude_none=True)
    except PydanticSerializationError:  # a file name, or a backend's words, that are not UTF-8
        text = json.dumps(_printable(record.model_dump(by_alias=True, exclude_none=True)))
    return text.encode() + b"\n"


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(part) for key, part in value.items()}
    return [_printable(part) for part in value] if isinstance(value, list | tuple) else value


def decode(line: bytes, *, newer: bool = False, unknown: set[str] | None = None) -> Line | None:
    """The record on `line`, or None for a kind of record that only a newer minor schema knows.

    With `newer`, unknown fields are dropped and their names added to `unknown`. Raises RecordError, without a place.
    """
    if b"NaN" in line or b"Infinity" in line:
        _refuse_tokens(line)
    try:
        return ADAPTER.validate_json(line, strict=True)  # as the schema has it: no "3" for 3, no true for 1
    except ValidationError as error:
        if newer:
            return _decode_newer(line, unknown if unknown is not None else set())
        raise RecordError(_sentence(error, line)) from None


def schema_version(schema: str) -> tuple[int, int]:
    """(major, minor) of a header's schema. Raises RecordError if it is not one of fabench's."""
    name, _, version = schema.partition("/")
    major, _, minor = version.partition(".")
    if name != "fabench" or not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise RecordError(f"'schema' must be {SCHEMA}, got '{schema}'")
    return int(major), int(minor)


def header_schema(line: bytes) -> tuple[int, int]:
    """The schema version of a file's first line, read before anything else is judged by it."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        decode(line)  # says what is wrong with the bytes
        raise RecordError("not a JSON object") from None
    if not isinstance(data, dict) or data.get("rec") != "header":
        raise RecordError("a result file must begin with a header record; is this a file that fabench wrote?")
    if not isinstance(schema := data.get("schema"), str):
        raise RecordError(f"'schema' must be {SCHEMA}, got {json.dumps(schema)}")
    version = schema_version(schema)
    if version[0] != MAJOR:
        raise RecordError(
            f"schema '{schema}' has major version {version[0]}, this fabench reads {MAJOR}; "
            f"read it with the fabench that wrote it"
        )
    return version


def _decode_newer(line: bytes, unknown: set[str]) -> Line | None:
    """Decode again and again, dropping the fields that this version does not know."""
    data = json.loads(line)
    if isinstance(data, dict) and data.get("rec") not in {"header", "env", "row", "canary", "footer"}:
        unknown.add(f"records of kind '{data.get('rec')}'")
        return None
    while True:
        try:
            return ADAPTER.validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            extra = [e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"]
            if not extra:
                raise RecordError(_sentence(error, line)) from None
            for place in extra:
                unknown.add(_path(place))
                _drop(data, place[1:])


def _drop(data: Any, place: Sequence[int | str]) -> None:
    for step in place[:-1]:
        data = data[step]
    del data[place[-1]]


def _refuse_tokens(line: bytes) -> None:
    """Refuse NaN and Infinity where they are JSON tokens; inside a string they are only words."""

    def refuse(token: str) -> NoReturn:
        raise RecordError(f"'{token}' is not JSON; a number that is not known must be null")

    try:
        json.loads(line, parse_constant=refuse)
    except ValueError:
        return  # not JSON at all: decode says so


def _path(place: Sequence[int | str]) -> str:
    """`row.parity.O.max_rho`, `row.samples_ns[3]`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _sentence(error: ValidationError, line: bytes) -> str:
    errors = error.errors(include_url=False)
    first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    kind, place = first["type"], _path(first["loc"])
    if kind == "json_invalid":
        return _json_sentence(line, str(first["ctx"]["error"]))
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return "'rec' must be one of header, env, row, canary, footer" + (
            f", got '{first['ctx']['tag']}'" if kind == "union_tag_invalid" else ", and is missing"
        )
    if kind == "missing":
        return f"'{place}' is missing{more}"
    if kind == "extra_forbidden":
        return f"'{place}' is not a field of schema {SCHEMA}{more}"
    if not place:
        return f"must be a JSON object, got {str(first['input'])[:40]!r}"
    got = json.dumps(first["input"], default=str)
    return f"'{place}': {_lower(first['msg'])}, got {got if len(got) <= 60 else got[:57] + '...'}{more}"


def _json_sentence(line: bytes, problem: str) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 text at byte {error.start} of the line; is this a file that fabench wrote?"
    if not line.strip():
        return "an empty line; each line must be one JSON record"
    return f"not JSON: {problem.replace(' at line 1 column', ' at column')}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
