"""The two sides of `run --ab A B`: what each word means, and the order in which they take turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fabench.errors import UsageError
from fabench.interpreter import HERE, Interpreter

CANDIDATE = "candidate"
"""What a side's own kernel is called, so that both sides have the same rows."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
KERNEL = re.compile(r".+\.py(:[A-Za-z_][A-Za-z0-9_]*)?")


@dataclass(frozen=True)
class Side:
    """One side: an interpreter, and the kernel file that is the candidate there, if the side names one."""

    text: str
    interpreter: Interpreter = HERE
    kernel: str | None = None

    @classmethod
    def parse(cls, text: str) -> Side:
        """`NAME=VALUE ...`, a virtual environment's folder, or `FILE.py:function`; an empty word changes nothing.

        Raises UsageError for anything else.
        """
        words = text.split()
        if all(VARIABLE.fullmatch(word) for word in words):
            variables = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
            return cls(text, Interpreter(variables=variables))
        python = Path(text) / "bin" / "python"
        if python.exists():
            return cls(text, Interpreter(python=str(python.absolute())))
        if KERNEL.fullmatch(text):
            return cls(text, kernel=text)
        raise UsageError(
            f"a side of --ab must be NAME=VALUE ..., a virtual environment's folder or FILE.py:function, got '{text}'"
        )


def parse_pair(a: str, b: str) -> tuple[Side, Side]:
    """Both sides. Raises UsageError if one names a kernel and the other does not: they would share no row."""
    sides = Side.parse(a), Side.parse(b)
    if (sides[0].kernel is None) != (sides[1].kernel is None):
        with_kernel = next(side.text for side in sides if side.kernel)
        raise UsageError(f"both sides of --ab must name a kernel file or neither, got only '{with_kernel}'")
    return sides


def turns(rounds: int) -> Iterator[tuple[int, int]]:
    """(round, side) in ABBA order: what drifts slowly hits both sides alike."""
    for round_ in range(rounds):
        for side in (0, 1) if round_ % 2 == 0 else (1, 0):
            yield round_, side


def side_path(out: Path, side: int) -> Path:
    """OUT.jsonl -> OUT.a.jsonl or OUT.b.jsonl."""
    stem = out.with_suffix("") if out.suffix == ".jsonl" else out
    return stem.with_name(f"{stem.name}.{'ab'[side]}.jsonl")


def as_candidate(spec: str) -> str:
    """The backend file spec that loads a kernel under the name `candidate`."""
    return f"{CANDIDATE}={spec}"


__all__ = ["CANDIDATE", "Side", "as_candidate", "parse_pair", "side_path", "turns"]
