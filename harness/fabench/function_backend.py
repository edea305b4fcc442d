"""Functions as backends: a bare one, whose keywords say what it supports, and one decorated with `@fabench.backend`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.errors import BackendError
from fabench.outcome import first_line, message_of
from fabench.text import did_you_mean

if TYPE_CHECKING:
    import torch

    from fabench.backend import Call, Output

KEYWORDS = ("causal", "scale", "window", "softcap", "alignment", "return_lse")
"""The keywords of the contract. The ones a function has declare what it supports."""
OFF: dict[str, tuple[Any, ...]] = {"causal": (False,), "window": (None, (-1, -1)), "softcap": (None, 0.0)}
"""Values that switch a feature off: a function whose own default is one of them need not be told."""
DEVICE_ERRORS = ("OutOfMemoryError", "MemoryError", "AcceleratorError")
"""Exceptions that say nothing of what a function supports."""
_DECLARES = {
    "causal": "causal",
    "scale": "scale",
    "window": "window",
    "softcap": "softcap",
    "alignments": "alignment",
    "returns_lse": "return_lse",
}
"""Fact -> the keyword a function must have for the fact to be true."""


class FunctionBackend(Backend):
    """A backend made from a function with the contract's signature; it stays callable as that function."""

    def __init__(self, function: Callable[..., Any], facts: Facts) -> None:
        self.function, self.facts = function, facts
        self.__name__, self.__doc__ = getattr(function, "__name__", facts.name), function.__doc__
        self.__module__ = getattr(function, "__module__", __name__)
        self._parameters = parameters(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self.function(*args, **kwargs)

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale as keywords, passing only what differs from the function's own defaults."""
        keywords = self._keywords(case, lse)
        function = self.function

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return function(q, k, v, **keywords)  # type: ignore[no-any-return]

        if self.facts.bare and case.kv_heads != case.heads:
            return Prepared(_grouped_heads_are_tried(call, case))
        return Prepared(call)

    def _keywords(self, case: Case, lse: bool) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "causal": case.causal,
            "scale": case.scale,
            "window": case.window,
            "softcap": case.softcap,
            "alignment": case.alignment,
            "return_lse": lse,
        }
        keywords = {}
        for name, value in wanted.items():
            if name not in self._parameters:
                continue
            default = self._parameters[name].default
            off = OFF.get(name, ())
            if value == default or (value in off and default in off):
                continue
            if name == "scale" and value is None:  # its default is not the contract's, so it gets the number
                value = case.softmax_scale
            keywords[name] = value
        return keywords


def _grouped_heads_are_tried(call: Call, case: Case) -> Call:
    """A bare function cannot declare that it knows no grouped heads: whatever it raises on them is that refusal."""

    def tried(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
        try:
            return call(q, k, v)
        except Exception as error:
            if type(error).__name__ in DEVICE_ERRORS or "CUDA error" in message_of(error):
                raise
            raise NotImplementedError(
                f"kv_heads = {case.kv_heads} with heads = {case.heads}: {type(error).__name__}: {first_line(error)}"
            ) from error

    return tried


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The contract's keywords that `function` has. Raises BackendError if it cannot be called as f(q, k, v)."""
    name = name_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BackendError(f"'{name}' must have a signature that Python can read, got none: {error}") from None
    found: dict[str, inspect.Parameter] = {}
    positional = 0
    for parameter in signature.parameters.values():
        if parameter.name in KEYWORDS and parameter.kind is not parameter.VAR_KEYWORD:
            found[parameter.name] = parameter
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional = max(positional, 3)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional += 1
            if positional > 3 and parameter.default is parameter.empty:
                raise BackendError(
                    f"'{name}' must be callable as {name}(q, k, v, ...) with the keywords {', '.join(KEYWORDS)}, "
                    f"got the parameter '{parameter.name}' without a default; give it one"
                )
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise BackendError(
                f"'{name}' must be callable with the keywords {', '.join(KEYWORDS)}, "
                f"got the keyword '{parameter.name}' without a default; give it one"
            )
    if positional < 3:
        raise BackendError(f"'{name}' must take q, k and v as its first three parameters, got {name}{signature}")
    return found


def name_of(function: Callable[..., Any]) -> str:
    """The function's name; `attention` for a callable object that has none."""
    return str(getattr(function, "__name__", "attention"))


def declared(function: Callable[..., Any], name: str) -> Facts:
    """The facts that a function's keywords declare: what it has no keyword for, it does not support."""
    has = parameters(function)
    return Facts(
        name=name,
        summary=next(iter((inspect.getdoc(function) or "").splitlines()), ""),
        causal="causal" in has,
        scale="scale" in has,
        window="window" in has,
        softcap="softcap" in has,
        alignments=("bottom_right", "top_left") if "alignment" in has else (),
        returns_lse="return_lse" in has,
    )


def bare(function: Callable[..., Any], name: str | None = None) -> FunctionBackend:
    """An undeclared function as a backend, named after itself: tried on every dtype and judged as class A."""
    facts = declared(function, name or name_of(function))
    return FunctionBackend(function, replace(facts, bare=True))


def backend(name: str | None = None, **facts: Any) -> Callable[[Callable[..., Any]], FunctionBackend]:
    """Decorate an attention function so that fabench knows more of it than its keywords say.

    `name` is the backend's name (default: the function's); the rest are fields of `Facts`, such as dtypes, head_dims,
    accuracy or deterministic. What is not given follows from the keywords, as for a bare function. The decorated
    function stays callable. Raises BackendError on an unknown fact, or one the function has no keyword for.
    """
    if callable(name):  # used as @fabench.backend, without parentheses
        return backend()(name)
    known = {f.name for f in fields(Facts)} - {"name", "bare"}
    for fact in facts:
        if fact not in known:
            raise BackendError(
                f"'{fact}' must be a field of fabench.Facts, got an unknown one{did_you_mean(fact, known)}"
            )
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in facts.items()}
    for fact, value in values.items():
        if isinstance(getattr(Facts, fact, None), tuple) and isinstance(value, str):
            raise BackendError(f"'{fact}' must be a tuple, got the string '{value}'; write ('{value}',)")

    def decorate(function: Callable[..., Any]) -> FunctionBackend:
        has = parameters(function)
        label = name or name_of(function)
        for fact, keyword in _DECLARES.items():
            if values.get(fact) and keyword not in has:
                raise BackendError(
                    f"'{label}' declares {fact} but its function has no keyword '{keyword}'; add it or drop the fact"
                )
        return FunctionBackend(function, replace(declared(function, label), **values))

    return decorate
