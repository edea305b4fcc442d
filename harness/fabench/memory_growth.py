"""Does a backend that claims O(N) memory keep to it? Compares its rows at N and 2N as they come in."""

from __future__ import annotations

from fabench.case import Case

QUADRATIC = 3.0
"""Growth above which doubling N looks like N²: O(N) gives 2, O(N²) gives 4."""
LEAST_BYTES = 8 << 20
"""Below this the allocator's granularity decides, not the algorithm."""


class MemoryGrowth:
    """The extra memory seen so far, by backend and by case with batch·heads held and N left out."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[int, int]] = {}

    def is_wrong(self, case: Case, backend: str, peak_bytes: int | None) -> bool:
        """True if this row and one at half or double its N show extra memory growing with N².

        `peak_bytes` is memory beyond the inputs. Only square cases are compared, and only sizes above 8 MiB.
        """
        if peak_bytes is None or case.Nq != case.Nk:
            return False
        key = case.key
        group = {k: v for k, v in key.items() if k not in ("Nq", "Nk", "batch", "heads", "kv_heads", "seed")}
        group |= {"q_heads": case.batch * case.heads, "all_kv_heads": case.batch * case.kv_heads}
        sizes = self._seen.setdefault((backend, repr(sorted(group.items()))), {})
        sizes[case.Nq] = peak_bytes
        for small, large in ((case.Nq // 2, case.Nq), (case.Nq, case.Nq * 2)):
            if small * 2 == large and small in sizes and large in sizes:
                grown = sizes[large] > QUADRATIC * max(1, sizes[small])
                if grown and sizes[large] >= LEAST_BYTES:
                    return True
        return False
