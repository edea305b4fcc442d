"""Bad input to an in-repo kernel is a ValueError that names both numbers, before any launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fabench.attention_op import layout
from fabench_backends.cuda_flash import v1_ops, v2_ops

pytest.importorskip("triton")

from fabench_backends.triton_flash import api as triton_api
from fabench_backends.triton_flash import launch as triton_launch

MODULES: dict[str, Any] = {"triton": triton_api, "cuda-v1": v1_ops, "cuda-v2": v2_ops}
HALF = torch.bfloat16


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Tensors without memory on a device with capability 9.0, or the one that is set."""
    found = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found[0])
    with FakeTensorMode():
        yield lambda major, minor: found.__setitem__(0, (major, minor))


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may get as far as a plan or a launch."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("reached a launch")

    for module in (v1_ops, v2_ops):
        monkeypatch.setattr(module, "loaded", refuse)
    monkeypatch.setattr(triton_launch.Plan, "run", refuse)


def make(*shape: int, dtype: torch.dtype = HALF, device: str = "cuda:0") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def good() -> dict[str, torch.Tensor]:
    return {"q": make(2, 4, 33, 64), "k": make(2, 2, 65, 64), "v": make(2, 2, 65, 64)}


BAD: dict[str, tuple[Callable[[], dict[str, torch.Tensor]], tuple[str, ...]]] = {
    "dtype": (lambda: {"q": make(2, 4, 33, 64, dtype=torch.float64)}, ("float64",)),
    "two dtypes": (lambda: {"v": make(2, 2, 65, 64, dtype=torch.float16)}, ("float16", "bfloat16")),
    "d that is no multiple of 8": (lambda: {"q": make(2, 4, 33, 60)}, ("multiple of 8", "60")),
    "d that is too small": (lambda: {"v": make(2, 2, 65, 4)}, ("8", "4")),
    "d that is too large": (lambda: {"k": make(2, 2, 65, 264)}, ("up to 256|to 256|to 128", "264")),
    "strides": (lambda: {"k": make(2, 2, 64, 65).mT}, ("stride 1", "65")),
    "device": (lambda: {t: x.cpu() for t, x in good().items()}, ("CUDA device", "cpu")),
    "two devices": (lambda: {"k": make(2, 2, 65, 64, device="cuda:1")}, ("cuda:0", "cuda:1")),
    "three dimensions": (lambda: {"q": make(4, 33, 64)}, ("4 dimensions", "3")),
    "two batch sizes": (lambda: {"q": make(3, 4, 33, 64)}, ("3", "2")),
    "k and v of different N": (lambda: {"v": make(2, 2, 66, 64)}, ("65", "66")),
    "k and v of different heads": (lambda: {"v": make(2, 4, 65, 64)}, ("2", "4")),
    "q and k of different d": (lambda: {"q": make(2, 4, 33, 128)}, ("128", "64")),
    "HQ % HKV": (lambda: {"q": make(2, 3, 33, 64)}, ("3 and 2",)),
    "no heads to attend to": (lambda: {"k": make(2, 0, 65, 64), "v": make(2, 0, 65, 64)}, ("4 and 0",)),
}


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", MODULES)
def test_tensors_that_the_kernels_cannot_take_are_refused(name: str, kind: str) -> None:
    changes, parts = BAD[kind]
    tensors = {**good(), **changes()}
    with pytest.raises(ValueError, match=parts[0]) as refusal:
        MODULES[name].attention(**tensors)
    for part in parts:
        assert re.search(part, str(refusal.value)), (part, str(refusal.value))
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("name", MODULES)
def test_good_tensors_pass_so_that_each_refusal_is_of_its_one_change(name: str) -> None:
    O = MODULES[name].attention(**good(), causal=True)
    assert O.shape == (2, 4, 33, 64)


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("other", [[[1.0]], None, 3.0], ids=["list", "None", "number"])
@pytest.mark.parametrize("place", ["q", "k", "v"])
@pytest.mark.parametrize("name", MODULES)
def test_what_is_no_tensor_is_refused_in_one_sentence(name: str, place: str, other: object) -> None:
    with pytest.raises(TypeError, match=f"must be torch tensors, got {type(other).__name__}$"):
        MODULES[name].attention(**{**good(), place: other})


@pytest.mark.parametrize("name", MODULES)
def test_a_device_that_is_too_old_is_refused(name: str, capability: Callable[[int, int], None]) -> None:
    capability(7, 5)
    with pytest.raises(ValueError, match=r"8\.0.* got 7\.5"):
        MODULES[name].attention(**good())


def test_head_dims_that_do_not_fit_a_small_card_are_refused(capability: Callable[[int, int], None]) -> None:
    capability(8, 9)
    wide = {"q": make(1, 2, 33, 192), "k": make(1, 2, 65, 192), "v": make(1, 2, 65, 64)}
    with pytest.raises(ValueError, match="the head dims must be at most 128 on sm_89, got 192"):
        v2_ops.attention(**wide)
    with pytest.raises(ValueError, match=r"fp32 on compute capability 8.9 must have d <= 128, got 192"):
        triton_api.attention(**{t: x.float() for t, x in wide.items()})
    assert v2_ops.attention(**good()).shape == (2, 4, 33, 64)  # type: ignore[union-attr]


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": float("nan")}, "scale.* finite.* got nan"),
        ({"scale": float("inf")}, "scale.* finite.* got inf"),
        ({"alignment": "middle"}, "alignment.* bottom_right or top_left, got 'middle'"),
        ({"window": (-2, 0)}, r"window.* -1 \(unlimited\) or more, got \(-2, 0\)"),
        ({"softcap": -1.0}, r"softcap.* 0 \(off\) or .*positive.* got -1.0"),
        ({"softcap": float("inf")}, r"softcap.* got inf"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MODULES)
def test_options_that_mean_nothing_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    if name == "cuda-v1" and {"window", "softcap"} & options.keys():
        pytest.skip("cuda-v1 has no such option")
    with pytest.raises(ValueError, match=message):
        MODULES[name].attention(**good(), **options)


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("name", MODULES)
def test_what_is_remembered_of_good_calls_does_not_let_bad_ones_pass(name: str) -> None:
    module = MODULES[name]
    more = () if name == "cuda-v1" else (None, 0.0)
    layouts = {t: layout(x) for t, x in good().items()}
    for _ in range(2):
        module.remembered(*layouts.values(), True, None, *more, "bottom_right")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"q'? must be .*int8"):
            module.remembered(
                layouts["q"]._replace(dtype=torch.int8), *list(layouts.values())[1:], True, None, *more, "bottom_right"
            )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_torch_compile_traces_the_checks_whole(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    resolve, more = MODULES[name].numbers, () if name == "cuda-v1" else (None, 0.0)

    def scaled(q: torch.Tensor) -> torch.Tensor:
        on_a_gpu = layout(q)._replace(device=torch.device("cuda:0"))
        return q * sum(resolve(on_a_gpu, on_a_gpu, on_a_gpu, True, None, *more, "bottom_right"))

    q = torch.ones(1, 2, 9, 16, dtype=HALF)
    compiled = torch.compile(scaled, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(q), scaled(q))
