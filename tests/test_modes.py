"""A mode, a hook or a profiler that one backend leaves open is closed before the next one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fabench.modes import MODES

PROFILERS = []
OPENED: dict[str, Callable[[], Any]] = {
    "a function mode": lambda: TorchFunctionMode().__enter__(),
    "a dispatch mode": lambda: TorchDispatchMode().__enter__(),
    "hooks on saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__(),
    "a profiler": lambda: PROFILERS.append(torch.autograd.profiler.profile().__enter__()),
}


@pytest.mark.parametrize("what", OPENED)
def test_what_is_left_open_around_every_call_of_torch_is_closed(what: str) -> None:
    from fabench.settings import Settings

    kept, before = Settings(), [read() for read, _ in MODES]

    OPENED[what]()
    opened = [read() for read, _ in MODES]
    kept.restore()

    assert opened != before
    assert [read() for read, _ in MODES] == before


def test_the_memory_of_a_call_can_be_profiled_after_another_left_its_profiler_on() -> None:
    from fabench.settings import Settings

    kept = Settings()
    PROFILERS.append(torch.autograd.profiler.profile().__enter__())
    kept.restore()

    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        torch.ones(64)

    assert profiler.kineto_results.events()
