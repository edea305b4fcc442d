"""The keys of a suite, their types and their defaults: pydantic models, from which the JSON Schema is made too.

Each default is written here and nowhere else. Types are strict: `true` is not 1, and 1024.0 is not a whole number.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fabench.names import Alignment, Direction, Inputs, Layout
from fabench.suite_yaml import shown

T = TypeVar("T")
ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""No line break, and no control character that a terminal would obey."""
MOST = 2**31 - 1
"""The largest extent a tensor's dimension may have."""


class _OneOrMany:
    """Marks a list that may be written as one value alone; its values must all differ."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        checked = core_schema.no_info_after_validator_function(_all_different, handler(source))
        return core_schema.no_info_before_validator_function(_as_list, checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        array = handler(schema)
        return {"anyOf": [array["items"], {**array, "uniqueItems": True}]}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _all_different(values: list[Any]) -> list[Any]:
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            raise PydanticCustomError("fabench", "{shown} is given twice", {"shown": shown(value), "index": index})
        seen.add(value)
    return values


Many = Annotated[list[T], _OneOrMany()]
Axis = Annotated[list[T], Field(min_length=1), _OneOrMany()]


def _window(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    sides = value if isinstance(value, list) and len(value) == 2 else [None]
    if not all(type(side) is int and -1 <= side <= MOST for side in sides):
        message = "must be null or [left, right], each a whole number of at least -1 (unlimited), got {shown}"
        raise PydanticCustomError("fabench", message, {"shown": shown(value)})
    return value[0], value[1]


def _window_axis(value: Any) -> list[tuple[int, int] | None]:
    """null, one [left, right], or a list of these: a list that holds a number is one window."""
    alone = not isinstance(value, list) or any(isinstance(item, int | float | str) for item in value)
    values = [_window(item) for item in ([value] if alone else value)]
    if not values:
        raise PydanticCustomError("too_short", "empty")
    return _all_different(values)


_SIDE = {"type": "integer", "minimum": -1, "maximum": MOST}
_ONE_WINDOW = {"anyOf": [{"type": "array", "items": _SIDE, "minItems": 2, "maxItems": 2}, {"type": "null"}]}
WindowAxis = Annotated[
    list[tuple[int, int] | None],
    PlainValidator(_window_axis),
    WithJsonSchema(
        {"anyOf": [_ONE_WINDOW, {"type": "array", "items": _ONE_WINDOW, "minItems": 1, "uniqueItems": True}]}
    ),
]
Length = Annotated[int, Field(ge=0, le=MOST)]
Extent = Annotated[int, Field(ge=1, le=MOST)]
Backend = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Axes(_Model):
    """The sweep: the product of these, outermost first as written. Each is one value or a list of them."""

    N: Axis[Length] = [1024]
    """Sequence length of queries and of keys; or give Nq and Nk."""
    Nq: Axis[Length] | None = None
    """Sequence length of the queries; needs Nk."""
    Nk: Axis[Length] | None = None
    """Sequence length of the keys and values; needs Nq."""
    d: Axis[Extent] = [64]
    """Head dim of q and k."""
    dv: Axis[Extent | None] = [None]
    """Head dim of v and O; null is d."""
    causal: Axis[bool] = [False]
    """Hide the keys right of the diagonal."""
    alignment: Axis[Alignment] = ["bottom_right"]
    """Which corner the diagonal runs into when Nq and Nk differ."""
    dtype: Axis[Literal["fp16", "bf16", "fp32"]] = ["bf16"]
    """Number format of all tensors (fp8_e4m3 is reserved)."""
    batch: Axis[Extent] = [1]
    """Batch size; or give tokens."""
    tokens: Axis[Extent] | None = None
    """Tokens in all: batch = tokens / N, which must divide."""
    heads: Axis[Extent] = [16]
    """Query heads; or give hidden."""
    hidden: Axis[Extent] | None = None
    """Hidden size: heads = hidden / d, which must divide."""
    kv_heads: Axis[Extent | None] = [None]
    """Key and value heads, a divisor of heads (1 is MQA); null is heads."""
    direction: Axis[Direction] = ["forward"]
    """What is computed and timed."""
    window: WindowAxis = [None]
    """Sliding window [left, right] around the diagonal, inclusive, -1 unlimited; null is none."""
    softcap: Axis[Annotated[float, Field(ge=0)]] = [0.0]
    """Scores become softcap·tanh(score/softcap) before the mask; 0 is off."""
    scale: Axis[float | None] = [None]
    """Softmax scale; null is 1/sqrt(d)."""
    layout: Axis[Layout] = ["bhsd"]
    """Order in memory."""
    inputs: Axis[Inputs] = ["normal"]
    """Distribution of the inputs."""
    seed: Axis[Annotated[int, Field(ge=0, le=MOST)]] = [0]
    """Seed of the inputs."""


class Measure(_Model):
    """How each row is timed."""

    regime: Literal["burst", "sustained", "graph"] = "burst"
    """At full clock in short windows, back to back at the power limit, or as CUDA-graph replays. A CPU has its own."""
    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Fresh worker processes; gating wants 10."""
    seconds: Annotated[float, Field(gt=0, le=600)] = 0.5
    """Timed work after which a row of a round stops at its next number of samples."""


class Parity(_Model):
    """How each row is judged."""

    reference: Literal["auto", "full", "sampled"] = "auto"
    """Compare all rows, sampled rows, or (auto) sampled where all would take longer than measuring (and than 2 s)."""


class SuiteModel(_Model):
    """A sweep over attention problems, and the backends that run it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """The suite's name, part of result file names."""
    description: Annotated[str, Field(pattern=ONE_LINE)] = ""
    """One line."""
    axes: Axes = Axes()
    """The sweep."""
    backends: Axis[Backend] = ["*"]
    """Names or globs of backends; 'all' is '*'."""
    baseline: Backend | None = None
    """The backend that speed-ups are against."""
    exclude: Many[str] = []
    """Conditions, such as 'backend=naive,N>=32768': what matches one is no row."""
    measure: Measure = Measure()
    """How each row is timed."""
    parity: Parity = Parity()
    """How each row is judged."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a suite, for editors and other tools."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SuiteModel.model_json_schema()}
    return schema | {"title": "fabench suite"}
