"""torch's functions without a public name, which another version of torch may not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def internal(path: str) -> Callable[..., Any]:
    """torch._C's function of that name, looked up when it is called: AttributeError then, if it is not there."""
    return partial(_call, torch._C, path.split("."))


def attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How an attribute is read and set."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


def pair(owner: Any, getter: str, setter: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How something is read and set by functions of `owner`, looked up when they are called."""
    return partial(_call, owner, [getter]), partial(_call, owner, [setter])


def _call(owner: Any, path: list[str], *arguments: Any) -> Any:
    for name in path:
        owner = getattr(owner, name)
    return owner(*arguments)
