"""A launch that was made before goes to the compiled kernel directly, and gives it what Triton's front end would.

The kernels are compiled for Hopper and launched on a driver that only notes what it is given.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from fabench.attention_op import layout  # noqa: E402
from fabench_backends.triton_flash import configs, tuner  # noqa: E402
from fabench_backends.triton_flash.checks import Band  # noqa: E402
from fabench_backends.triton_flash.launch import ROLES, Plan  # noqa: E402


class Driver:
    """What triton.runtime asks of a driver."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.utils = self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 * 1024}

    def load_binary(self, name: str, *_: Any) -> tuple[Any, ...]:
        return object(), name, 255, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        kernel = (metadata.name, metadata.hash)

        def launch(x: int, y: int, z: int, stream: int, function: Any, packed: Any, *rest: Any) -> None:
            self.launched.append((kernel, (x, y, z), packed, *map(seen, rest[3:])))

        return launch


def seen(argument: Any) -> Any:
    """An argument as a launch sees it: of a tensor the address, of a descriptor also shape, strides and tile."""
    if isinstance(argument, TensorDescriptor):
        base = argument.base.data_ptr()
        return base, *argument.shape, *argument.strides, *argument.block_shape, argument.padding
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    before = triton.runtime.driver._active
    monkeypatch.setattr(tuner, "configs", lambda key: configs.candidates(key.kernel, 90, key.width, 2)[:1])
    forget()
    triton.runtime.driver.set_active(made)
    yield made
    triton.runtime.driver._active = before
    forget()


def forget() -> None:
    """What Triton loaded on one driver must not be launched on another."""
    for role in ROLES.values():
        role.function.device_caches.clear()


def tensors(offset: int = 0, transposed: bool = False) -> list[torch.Tensor]:
    """q, k, v and dO [2, 2, 70, 64], bf16, `offset` elements into their storage."""
    made = []
    for _ in range(4):
        storage = torch.zeros(2 * 2 * 70 * 64 + 64, dtype=torch.bfloat16)
        start = (-storage.data_ptr() // 2) % 8 + offset
        flat = storage[start : start + 2 * 2 * 70 * 64]
        made.append(flat.view(2, 70, 2, 64).transpose(1, 2) if transposed else flat.view(2, 2, 70, 64))
    return made


def attend(plan: Plan, made: list[torch.Tensor]) -> list[torch.Tensor]:
    q, k, v, dO = made
    O, LSE = plan.forward(q, k, v)
    return [O, LSE, *plan.backward(q, k, v, O, LSE, dO, None)]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_second_launch_is_given_what_the_front_end_gives(driver: Driver, transposed: bool) -> None:
    made = tensors(transposed=transposed)
    plan = Plan(*map(layout, made[:3]), Band(0, -1, 0), 0.125, 0.0)
    runs = []
    for each in (plan, plan, Plan(*map(layout, made[:3]), Band(0, -1, 0), 0.125, 0.0)):
        driver.launched = []
        attend(each, made)
        own = {t.data_ptr() for t in made}
        # Addresses of outputs differ from call to call.
        runs.append(
            [["new" if type(a) is int and a > 2**32 and a not in own else a for a in row] for row in driver.launched]
        )
    assert all(launch.compiled is not None for launch in plan.ready.values())
    assert [len(run) for run in runs] == [3, 3, 3]
    assert runs[0] == runs[1] == runs[2]
    assert all(len(row) > 40 for row in runs[1]), "constants are passed by position too"


def test_another_alignment_takes_another_kernel_whichever_tensor_has_it(driver: Driver) -> None:
    aligned, shifted = tensors(), tensors(offset=4)
    plan = Plan(*map(layout, aligned[:3]), Band(0, -1, -1), 0.125, 0.0)
    kernels = {}
    for which in (None, 0, 1, 2):
        q, k, v = (shifted[i] if i == which else aligned[i] for i in range(3))
        for _ in range(2):
            driver.launched = []
            plan.forward(q, k, v)
            (launch,) = driver.launched
            kernels.setdefault(which, set()).add(launch[0])
    assert all(len(found) == 1 for found in kernels.values())
    assert len(set().union(*kernels.values())) == 4


def test_nothing_is_kept_of_the_tensors(driver: Driver) -> None:
    made = tensors()
    plan = Plan(*map(layout, made[:3]), Band(0, -1, 0), 0.125, 0.0)
    attend(plan, made)
    attend(plan, made)
    watched = [weakref.ref(t) for t in made]
    driver.launched = []
    del made
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


def test_tuning_during_a_capture_is_not_remembered(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tensors()
    plan = Plan(*map(layout, made[:3]), Band(0, -1, 0), 0.125, 0.0)
    monkeypatch.setattr(tuner, "TUNED_WORK", 0)
    monkeypatch.setattr(tuner, "configs", lambda key: configs.candidates(key.kernel, 90, key.width, 2))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan.forward(*made[:3])
    assert plan.ready == {}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(tuner, "fastest", lambda declared, launch: min(declared, key=lambda c: -c.BLOCK_M))
    monkeypatch.setattr(tuner, "_chosen", {})
    plan.forward(*made[:3])
    (launch,) = plan.ready.values()
    assert launch.config == min(configs.candidates("forward", 90, 64, 2), key=lambda c: -c.BLOCK_M)


class Card:
    """Configurations that take a given time, on a card that gets slower with every launch it is timed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: dict[int, float], slower: float = 0.0) -> None:
        self.times, self.slower, self.spans, self.last = times, slower, 0, 0
        monkeypatch.setattr(tuner, "milliseconds", self.milliseconds)

    def launch(self, config: configs.Config) -> None:
        self.last = config.BLOCK_M
        if self.last not in self.times:
            raise tuner.triton.runtime.errors.OutOfResources(300, 227, "shared memory")

    def milliseconds(self, call: Callable[[], None]) -> float:
        call()
        self.spans += 1
        return self.times[self.last] * (1 + self.slower * self.spans)


@pytest.mark.parametrize(
    ("times", "slower", "chosen"),
    [
        ({64: 1.0, 128: 0.9}, 0.0, 128),
        ({64: 1.0, 128: 0.99}, 0.0, 64),  # within the margin the first stays
        ({64: 1.0, 128: 1.0}, 0.1, 64),
        ({64: 1.0, 128: 0.95}, 0.1, 128),  # timed one after the other, it would have lost
        ({128: 1.0}, 0.0, 128),  # the first cannot be launched
        ({}, 0.0, 64),
    ],
)
def test_the_tuner_takes_the_fastest_though_the_card_slows_down_while_it_looks(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float], slower: float, chosen: int
) -> None:
    declared = [configs.Config(64, 64, 4, 2), configs.Config(128, 64, 4, 2)]

    assert chosen == tuner.fastest(declared, Card(monkeypatch, times, slower).launch).BLOCK_M
