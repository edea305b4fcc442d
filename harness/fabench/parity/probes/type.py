"""TYPE: the answer is a plain tensor of the right shape, dtype and device, in memory of its own.

The form is checked at every call of the kernel, whatever probe makes it; this one makes a call for nothing else.
"""

from __future__ import annotations

from fabench.parity.bench import Bench, Passed, Verdict


def run(bench: Bench) -> Verdict:
    """One call, forward and where there is one backward."""
    bench.call(bench.tensors, backward=bench.backward)
    return Passed()
