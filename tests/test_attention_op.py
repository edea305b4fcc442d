"""One function for autograd, torch.compile and watchers of operators: the same comes out whichever way it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fabench.attention_op import AttentionOp, is_eager, layout

calls: list[str] = []


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    calls.append("forward")
    S = q @ k.mT * scale
    return S.softmax(-1) @ v, S.logsumexp(-1).float()


def backward(
    dO: torch.Tensor, dLSE: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, O: torch.Tensor,
    LSE: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    calls.append("backward")
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


def right(qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    """O, LSE and the gradients of their sums, by autograd through plain operations."""
    O, LSE = forward(*qkv, 0.3)
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
    want = torch.autograd.grad(forward(*qkv, 0.3)[used].sum(), qkv, materialize_grads=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_without_gradients_nothing_is_saved(qkv: list[torch.Tensor]) -> None:
    with torch.no_grad():
        assert op(*qkv, 0.3)[0].grad_fn is None
    assert op(*(t.detach() for t in qkv), 0.3)[0].grad_fn is None
    assert calls == ["forward", "forward"]


def test_functional_gradients_work(qkv: list[torch.Tensor]) -> None:
    q, k, v = (t.detach() for t in qkv)
    got = torch.func.grad(lambda q: op(q, k, v, 0.3)[0].sum())(q)
    torch.testing.assert_close(got, torch.autograd.grad(forward(*qkv, 0.3)[0].sum(), qkv[0])[0])


def test_a_second_derivative_is_refused_and_not_wrong(qkv: list[torch.Tensor]) -> None:
    (dQ,) = torch.autograd.grad(op(*qkv, 0.3)[0].square().sum(), qkv[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dQ.sum().backward()


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
