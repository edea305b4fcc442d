"""One function for autograd, torch.compile and watchers of operators: the same comes out whichever way it is called."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from fabench.attention_op import AttentionOp, check_numbers, is_eager, layout, window_of

calls: list[str] = []


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Like a kernel, of tensors that have memory."""
    calls.append("forward")
    assert all(t.data_ptr() for t in (q, k, v))
    S = q @ k.mT * scale
    return S.softmax(-1) @ v, S.logsumexp(-1).float()


def backward(
    dO: torch.Tensor, dLSE: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, O: torch.Tensor,
    LSE: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    calls.append("backward")
    assert all(t.data_ptr() for t in (dO, q, k, v, O, LSE))
    P = torch.exp(q @ k.mT * scale - LSE[..., None])
    delta = (O * dO).sum(-1) - (0 if dLSE is None else dLSE)
    dS = P * (dO @ v.mT - delta[..., None]) * scale
    return dS @ k, dS.mT @ q, P.mT @ dO


op = AttentionOp("test_of_attention_op", forward, backward)


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    calls.clear()
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, n, 8, generator=generator).requires_grad_() for n in (5, 7, 7)]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE by operators that torch differentiates."""
    S = q @ k.mT * 0.3
    return S.softmax(-1) @ v, S.logsumexp(-1)


def right(qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    """O, LSE and the gradients of their sums, by autograd through plain operations."""
    O, LSE = plain(*qkv)
    return [O, LSE, *torch.autograd.grad(O.sum() + LSE.sum(), qkv)]


def test_eager_and_compiled_calls_and_the_operators_give_the_same(qkv: list[torch.Tensor]) -> None:
    want = right(qkv)
    compiled = torch.compile(lambda *t: op(*t, 0.3), fullgraph=True, backend="aot_eager")
    for call in (lambda *t: op(*t, 0.3), lambda *t: op.forward(*t, 0.3), compiled):
        O, LSE = call(*qkv)
        got = [O, LSE, *torch.autograd.grad(O.sum() + LSE.sum(), qkv)]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("used", [0, 1])
def test_one_output_alone_has_a_gradient(qkv: list[torch.Tensor], used: int) -> None:
    got = torch.autograd.grad(op(*qkv, 0.3)[used].sum(), qkv)
    want = torch.autograd.grad(plain(*qkv)[used].sum(), qkv, materialize_grads=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("scale", "softcap", "message"),
    [
        (float("nan"), 0.0, "scale must be a finite number in float32, at most 1.7e+38, got nan"),
        (-1e39, 0.0, "scale must be a finite number in float32, at most 1.7e+38, got -1e+39"),
        (1.0, -1.0, "softcap must be 0 (off) or a positive number in float32, 1.18e-38 to 1.7e+38, got -1.0"),
        (1.0, float("nan"), "softcap must be 0 (off) or a positive number in float32, 1.18e-38 to 1.7e+38, got nan"),
        (1.0, 1e-50, "softcap must be 0 (off) or a positive number in float32, 1.18e-38 to 1.7e+38, got 1e-50"),
        (1.0, 3e38, "softcap must be 0 (off) or a positive number in float32, 1.18e-38 to 1.7e+38, got 3e+38"),
        (100.0, 1e-37, "scale / softcap must be finite in float32, at most 1.7e+38, got 100.0 / 1e-37"),
    ],
)
def test_numbers_that_float32_does_not_hold_are_refused(scale: float, softcap: float, message: str) -> None:
    """They would be infinite in the kernel, or zero where it divides, and O all NaN."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_numbers(scale, softcap)
    for good in ((0.0, 0.0), (-1e-300, 0.0), (1e38, 0.0), (0.125, 1e-37), (0.125, 1e38)):
        check_numbers(*good)


def test_without_gradients_nothing_is_saved(qkv: list[torch.Tensor]) -> None:
    with torch.no_grad():
        assert op(*qkv, 0.3)[0].grad_fn is None
    assert op(*(t.detach() for t in qkv), 0.3)[0].grad_fn is None
    assert calls == ["forward", "forward"]


def test_functional_gradients_work(qkv: list[torch.Tensor]) -> None:
    q, k, v = (t.detach() for t in qkv)
    (want,) = torch.autograd.grad(plain(*qkv)[0].square().sum(), qkv[0])
    torch.testing.assert_close(torch.func.grad(lambda q: op(q, k, v, 0.3)[0].square().sum())(q), want)
    O, pull = torch.func.vjp(lambda q: op(q, k, v, 0.3)[0], q)
    torch.testing.assert_close(pull(2 * O)[0], want)


def test_a_second_derivative_is_refused_and_not_wrong(qkv: list[torch.Tensor]) -> None:
    """Also where dO is constant, and dQ depends on q all the same."""
    for loss in (lambda O: O.square().sum(), lambda O: O.sum()):
        (dQ,) = torch.autograd.grad(loss(op(*qkv, 0.3)[0]), qkv[0], create_graph=True)
        with pytest.raises(RuntimeError, match=r"test_of_attention_op_backward.* no autograd formula"):
            (dQ.sum() + qkv[0].sum()).backward()
    q, k, v = (t.detach() for t in qkv)
    inner = torch.func.grad(lambda q: op(q, k, v, 0.3)[0].square().sum())
    with pytest.raises(NotImplementedError, match="a second derivative of this attention is not computed"):
        torch.func.grad(lambda q: inner(q).sum())(q)


def test_what_is_not_computed_within_a_transform_is_refused_and_not_wrong(qkv: list[torch.Tensor]) -> None:
    q, k, v = (t.detach() for t in qkv)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda q: op(q, k, v, 0.3)[0], (q,), (q,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        op(forward_ad.make_dual(q, q), k, v, 0.3)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(lambda q: op(q, k, v, 0.3)[0])(torch.stack([q, q]))


@pytest.mark.parametrize(
    ("index", "bad", "message"),
    [
        (0, torch.zeros(1, 2, 4, 8), r"dO must have shape \(1, 2, 5, 8\).* got \(1, 2, 4, 8\), torch.float32 and cpu"),
        (1, torch.zeros(1, 2, 5, 8), r"dLSE must have shape \(1, 2, 5\).* got \(1, 2, 5, 8\)"),
        (5, torch.zeros(1, 2, 5, 8).half(), r"O must .* be torch.float32 .* got .* torch.float16"),
        (6, torch.zeros(1, 2, 3), r"LSE must have shape \(1, 2, 5\).* got \(1, 2, 3\)"),
    ],
)
def test_the_backward_operator_refuses_what_no_forward_returned(
    qkv: list[torch.Tensor], index: int, bad: torch.Tensor, message: str
) -> None:
    """Kernels would read and write outside."""
    q, k, v = (t.detach() for t in qkv)
    O, LSE = op.forward(q, k, v, 0.3)
    arguments = [torch.ones_like(O), torch.ones_like(LSE), q, k, v, O, LSE]
    op.backward(*arguments, 0.3)
    arguments[index] = bad
    with pytest.raises(ValueError, match=message):
        op.backward(*arguments, 0.3)


@pytest.mark.parametrize("window", [5, (1,), (1, 2, 3), (1.5, 2), (float("nan"), 0), (0, float("inf")), "12"])
def test_a_window_is_two_whole_numbers_or_refused(window: Any) -> None:
    with pytest.raises(ValueError, match=r"window must be \(left, right\), two whole numbers, got "):
        window_of(window)
    assert window_of(None) is None
    assert window_of([3, -1]) == window_of((3.0, -1)) == (3, -1)


class Watcher(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_who_watches_operators_sees_ours(qkv: list[torch.Tensor]) -> None:
    assert is_eager(*qkv)
    with Watcher() as watcher:
        assert not is_eager(*qkv)
        op(*qkv, 0.3)
    assert any("test_of_attention_op_forward" in name for name in watcher.seen)


def test_a_subclass_of_tensor_goes_by_the_operator(qkv: list[torch.Tensor]) -> None:
    assert not is_eager(qkv[0], torch.nn.Parameter(qkv[1].detach()))


def test_a_layout_is_all_but_address_and_values(qkv: list[torch.Tensor]) -> None:
    assert layout(qkv[1]) == layout(qkv[2])
    assert hash(layout(qkv[1])) == hash(layout(qkv[2]))
    assert layout(qkv[1]) != layout(qkv[1].transpose(1, 2).contiguous().transpose(1, 2))
    assert layout(qkv[1]) != layout(qkv[1].double())
