"""One case spelt on the command line: 'N=8192,d=128,dtype=bf16,batch=1,heads=32,causal=false'."""

from __future__ import annotations

import re
from typing import Any

from fabench.case import Case
from fabench.errors import CaseError
from fabench.text import did_you_mean

INTEGERS = ("N", "Nq", "Nk", "batch", "heads", "kv_heads", "d", "dv", "seed")
REALS = ("softcap", "scale")
WORDS = ("dtype", "alignment", "direction", "layout", "inputs")
KEYS = (*INTEGERS, *REALS, *WORDS, "causal", "window")
_KNOWN = f"; known: {', '.join(KEYS)}"
DEFAULTS: dict[str, Any] = {"batch": 1, "heads": 16, "d": 128}
"""What a suite asks for and a case on the command line may leave out."""


def parse(text: str) -> Case:
    """The case that `text` spells: key=value, comma-separated; `N` is Nq and Nk, a window is left:right.

    Left out are batch 1, heads 16, d 128, and the defaults of `Case`. Raises CaseError, one sentence.
    """
    values = dict(DEFAULTS)
    given: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or not word:
            raise CaseError(f"a case must be KEY=VALUE parts such as 'N=8192,d=128', got '{part}'")
        if key not in KEYS:
            raise CaseError(f"unknown key '{key}' in '{part}'{did_you_mean(key, KEYS) or _KNOWN}")
        if key in given:
            raise CaseError(f"'{key}' must be given once, got it twice in '{text}'")
        given.add(key)
        values[key] = _value(key, word)
    if "N" in values:
        if given & {"Nq", "Nk"}:
            raise CaseError("'N' must stand alone: it is Nq and Nk, got one of them too")
        values["Nq"] = values["Nk"] = values.pop("N")
    if missing := [key for key in ("Nq", "Nk") if key not in values]:
        raise CaseError(f"a case must have N, or Nq and Nk, got no {' and no '.join(missing)} in '{text}'")
    return Case(**values)


def _value(key: str, word: str) -> Any:
    def wrong(expected: str) -> CaseError:
        return CaseError(f"'{key}' must be {expected}, got '{word}'")

    if key in INTEGERS:
        if not re.fullmatch(r"[0-9]{1,12}", word):
            raise wrong("a whole number of up to 12 digits")
        return int(word)
    if key in REALS:
        try:
            return float(word)
        except ValueError:
            raise wrong("a number") from None
    if key == "causal":
        if word not in ("true", "false"):
            raise wrong("true or false")
        return word == "true"
    if key == "window":
        if not (sides := re.fullmatch(r"(-1|[0-9]{1,12}):(-1|[0-9]{1,12})", word)):
            raise wrong("left:right, such as 1024:0")
        return int(sides[1]), int(sides[2])
    return word
