"""The one condition grammar, of `--where`, a suite's `exclude` and waivers: 'backend=naive,N>=32768'.

A condition is comparisons joined by commas, all of which must hold. A comparison is KEY OPERATOR VALUE:

- KEY is `backend` or a field of a case; `N` stands for Nq and Nk together: both must satisfy the comparison.
- OPERATOR is = or its opposite !=, and for numbers also < <= > >=.
- VALUE is a number, true or false (yes or no, as tables print them), a word or a glob ('sdpa-*'), null for a scale or
  window that is not set, or left:right for a window. Alternatives are separated by a bar: 'd=64|128'.

Values are those of the canonical case: under a causal mask a window's right side is 0.

A word that no case could ever have ('dtype=bf61') is an error, because it would silently select nothing.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fabench.case import Case, Window
from fabench.dtypes import DTYPES
from fabench.errors import WhereError
from fabench.names import ALIGNMENTS, DIRECTIONS, INPUTS, LAYOUTS
from fabench.text import did_you_mean

TRUTHS = {"true": True, "yes": True, "false": False, "no": False}

INTEGERS = ("batch", "heads", "kv_heads", "N", "Nq", "Nk", "d", "dv", "seed")
REALS = ("softcap", "scale")
WORDS: dict[str, tuple[str, ...]] = {
    "dtype": tuple(DTYPES),
    "alignment": ALIGNMENTS,
    "direction": DIRECTIONS,
    "layout": LAYOUTS,
    "inputs": INPUTS,
}
KEYS = ("backend", "N", *(field.name for field in dataclasses.fields(Case)))
"""Every key of the grammar."""

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")

Value = int | float | bool | str | Window | None


@dataclass(frozen=True)
class Comparison:
    """One comparison: `key` of a case (or the backend's name) against any of `values`."""

    key: str
    operator: str
    values: tuple[Value, ...]

    def holds(self, case: Case, backend: str) -> bool:
        """True if it holds for this case and backend."""
        if self.operator == "!=":
            return not self._equal(case, backend)
        if self.operator == "=":
            return self._equal(case, backend)
        compare, limit = _ORDER[self.operator], self.values[0]
        return all(compare(value, limit) for value in self._actual(case, backend, limit))

    def _equal(self, case: Case, backend: str) -> bool:
        return any(all(_same(value, wanted) for value in self._actual(case, backend, wanted)) for wanted in self.values)

    def _actual(self, case: Case, backend: str, wanted: Value) -> tuple[Value, ...]:
        """What stands on the left: a scale that is not set is compared with a number by the number it means."""
        if self.key == "backend":
            return (backend,)
        if self.key == "scale" and wanted is not None:
            return (case.softmax_scale,)
        return (case.Nq, case.Nk) if self.key == "N" else (getattr(case, self.key),)


@dataclass(frozen=True)
class Condition:
    """Comparisons that must all hold. Build it with `parse`."""

    text: str
    comparisons: tuple[Comparison, ...]

    @classmethod
    def parse(cls, text: str) -> Condition:
        """The condition that `text` spells. Raises WhereError, one sentence with the part at fault."""
        if not text.strip():
            raise WhereError("a condition must hold at least one comparison such as 'd=128', got nothing")
        return cls(text, tuple(_comparison(part) for part in text.split(",")))

    def matches(self, case: Case, backend: str) -> bool:
        """True if every comparison holds for this case and backend."""
        return all(comparison.holds(case, backend) for comparison in self.comparisons)

    def __str__(self) -> str:
        return self.text


def _comparison(part: str) -> Comparison:
    found = _COMPARISON.fullmatch(part)
    if found is None or not found[3]:
        raise WhereError(f"a comparison must be KEY=VALUE (or != < <= > >=), such as 'N>=4096', got '{part.strip()}'")
    key, symbol, text = found.groups()
    if key not in KEYS:
        raise WhereError(f"unknown key '{key}' in '{part.strip()}'{did_you_mean(key, KEYS) or f'; known: {_listed()}'}")
    ordered = symbol in _ORDER
    if ordered and key not in INTEGERS + REALS:
        raise WhereError(f"'{key}' has no order: use = or !=, got '{part.strip()}'")
    choices = [choice.strip() for choice in text.split("|")]
    if ordered and len(choices) > 1:
        raise WhereError(f"alternatives ('|') go with = and != only, got '{part.strip()}'")
    return Comparison(key, symbol, tuple(_value(key, choice, ordered) for choice in choices))


def _listed() -> str:
    return ", ".join(KEYS)


def _value(key: str, text: str, ordered: bool) -> Value:
    """The value `text` spells for `key`."""

    def wrong(expected: str) -> WhereError:
        return WhereError(f"'{key}' must be compared with {expected}, got '{text}'")

    if key in ("scale", "window") and text == "null" and not ordered:
        return None
    if key in INTEGERS:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise wrong("a whole number")
        return int(text)
    if key in REALS:
        return _real(text, wrong("a number"))
    if key == "causal":
        if text not in TRUTHS:
            raise wrong("true or false")
        return TRUTHS[text]
    if key == "window":
        if not (sides := re.fullmatch(r"(-1|[0-9]{1,18}):(-1|[0-9]{1,18})", text)):
            raise wrong("null or left:right, such as 1024:0")
        return int(sides[1]), int(sides[2])
    if key in WORDS and not any(fnmatchcase(word, text) for word in WORDS[key]):
        raise wrong(f"one of {', '.join(WORDS[key])}")
    if not text:
        raise wrong("a name or a glob")
    return text


def _real(text: str, wrong: WhereError) -> float:
    try:
        value = float(text)
    except ValueError:
        raise wrong from None
    if not math.isfinite(value):
        raise wrong
    return value


def _same(value: Value, wanted: Value) -> bool:
    if isinstance(wanted, str):
        return isinstance(value, str) and fnmatchcase(value, wanted)
    if isinstance(wanted, float) and isinstance(value, float):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return value == wanted
