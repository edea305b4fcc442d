"""Functions as backends: a bare one, whose keywords say what it supports, and one decorated with `@fabench.backend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output


class FunctionBackend(Backend):
    """A backend made from a function with the contract's signature; it stays callable as that function."""

    def __init__(self, function: Callable[..., Any], facts: Facts) -> None:
        self.function, self.facts = function, facts
        self.__name__, self.__doc__ = getattr(function, "__name__", facts.name), function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self.function(*args, **kwargs)

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale as keywords, passing only those that differ from the defaults."""
        keywords: dict[str, Any] = {}
        if case.causal:
            keywords["causal"] = True
        if case.scale is not None:
            keywords["scale"] = case.scale
        if case.window is not None:
            keywords["window"] = case.window
        if case.softcap:
            keywords["softcap"] = case.softcap
        if case.alignment != "bottom_right":
            keywords["alignment"] = case.alignment
        if lse:
            keywords["return_lse"] = True
        function = self.function

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return function(q, k, v, **keywords)  # type: ignore[no-any-return]

        return Prepared(call)
