"""Seconds that a kernel may be examined for. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

CALL, FIRST_CALL, PREPARING = range(3)
"""What a kernel is at: a call, the first of its shape, which may compile, or what it does before it can be called."""


def phase_of(calls: int, stage: int) -> int:
    """What a parity worker writes on the board at each call: another number than before, which tells the stage."""
    return 3 * calls + stage


def is_compiling(phase: int) -> bool:
    """Whether what wrote this on the board may compile."""
    return phase % 3 != CALL


def is_preparing(phase: int) -> bool:
    """Whether it is not yet a call."""
    return phase % 3 == PREPARING


@dataclass
class Budget:
    """Seconds from now on. Starting workers is apart, and compiling too, up to as many seconds again.

    Where to draw the line between a call that compiles and one that is slow is not known of a shape's first call: it
    counts as compiling.
    """

    total_s: float
    clock: Callable[[], float] = time.monotonic
    _compiled_s: float = 0.0
    _compiling_s: float = 0.0
    """Seen to compile since the last result, which will say it more exactly."""
    _began: float = field(init=False)
    _looked: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._looked = self.clock()

    @property
    def left_s(self) -> float:
        """What is left, below 0 once it is overdrawn."""
        apart = min(self._compiled_s + self._compiling_s, self.total_s)
        return self.total_s + apart - (self.clock() - self._began)

    @property
    def spent(self) -> bool:
        """True if nothing is left."""
        return self.left_s <= 0

    @property
    def why(self) -> str:
        """Why something was not run."""
        return f"the budget of {self.total_s:g} s is used up"

    def look(self, compiling: bool) -> None:
        """Say, often, whether a call is at work that may compile."""
        now = self.clock()
        self._compiling_s += (now - self._looked) * compiling
        self._looked = now

    def result(self, compile_s: float) -> None:
        """Something has ended, and says how long it compiled."""
        self._compiled_s += compile_s
        self._compiling_s, self._looked = 0.0, self.clock()

    def started(self, seconds: float) -> None:
        """A worker was started, which took so long."""
        self._began += seconds
        self._looked = self.clock()
