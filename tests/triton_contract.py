"""Run in a child under TRITON_INTERPRET=1: `attention` as a user calls it. Prints the names of the checks that passed.

A failed check raises, and the child's error output says which.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fabench.case import Case
from fabench.device import Device
from fabench_backends.triton_flash import triton as backend
from fabench_backends.triton_flash.api import attention, op

CPU = Device("cpu", "cpu")


def inputs(heads: int = 2, kv_heads: int = 1, Nq: int = 20, Nk: int = 30, d: int = 16) -> list[Any]:
    """q, k and v that require gradients, fp32."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((1, heads, Nq, d), (1, kv_heads, Nk, d), (1, kv_heads, Nk, d))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def plain(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """O and LSE of causal bottom-right attention, by the definition."""
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * q.shape[3] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    s = s.masked_fill(~seen, float("-inf"))
    return s.softmax(-1) @ v.repeat_interleave(group, 1), s.logsumexp(-1)


def the_operators_keep_torchs_rules() -> None:
    """Schema, fake tensors and autograd registration, as torch.library.opcheck sees them."""
    q, k, v = inputs()
    numbers = (10, -1, 0, 0.25, 0.0)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op.forward, (q, k, v, *numbers), test_utils=tests)
    o, lse = (t.detach() for t in op.forward(q, k, v, *numbers))
    detached = [t.detach() for t in (q, k, v)]
    torch.library.opcheck(op.backward, (torch.ones_like(o), None, *detached, o, lse, *numbers), test_utils=tests)


def gradients_flow_through_O_and_LSE() -> None:
    """A loss of both outputs, as merging two attentions needs."""
    mine, theirs = inputs(), inputs()
    for tensors, function in ((mine, lambda *t: attention(*t, causal=True, return_lse=True)), (theirs, plain)):
        o, lse = function(*tensors)
        ((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() + (lse * lse).sum()).backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def a_gradient_of_LSE_alone_is_right() -> None:
    """O unused."""
    mine, theirs = inputs(), inputs()
    attention(*mine, causal=True, return_lse=True)[1].sum().backward()
    plain(*theirs)[1].sum().backward()
    torch.testing.assert_close(mine[0].grad, theirs[0].grad, rtol=1e-4, atol=1e-5)
    assert not mine[2].grad.any(), "LSE does not depend on v"


def an_expanded_dO_is_right() -> None:
    """sum().backward() sends a gradient of stride 0 in every dimension."""
    mine, theirs = inputs(), inputs()
    attention(*mine, causal=True).sum().backward()
    plain(*theirs)[0].sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def torch_compile_takes_it_whole() -> None:
    """No graph break, forward and backward."""
    tensors = inputs()
    compiled = torch.compile(lambda *t: attention(*t, causal=True) * 2, fullgraph=True, backend="aot_eager")
    compiled(*tensors).sum().backward()
    again = inputs()
    (attention(*again, causal=True) * 2).sum().backward()
    for a, b in zip(tensors, again, strict=True):
        assert torch.equal(a.grad, b.grad)


def empty_sequences_come_out_as_the_contract_says() -> None:
    """Nk = 0: O = 0, LSE = -inf. Nq = 0: dK = dV = 0."""
    tensors = inputs(Nk=0)
    o, lse = attention(*tensors, return_lse=True)
    assert not o.any()
    assert lse.isneginf().all()
    o.sum().backward()
    assert not tensors[0].grad.any()
    tensors = inputs(Nq=0)
    o = attention(*tensors, causal=True)
    assert o.shape == (1, 2, 0, 16)
    o.sum().backward()
    assert not tensors[1].grad.any()


def the_backend_prepares_a_case() -> None:
    """Through the harness's contract, with LSE; it says which configurations ran."""
    case = Case(batch=1, heads=2, kv_heads=1, Nq=20, Nk=30, d=16, dtype="fp32", causal=True)
    assert backend.unavailable(CPU) is None
    assert backend.reasons(case, CPU) == []
    prepared = backend.prepare(case, CPU, lse=True)
    tensors = inputs()
    o, lse = prepared.call(*tensors)
    wanted = plain(*tensors)
    torch.testing.assert_close(o, wanted[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-5, atol=1e-6)
    assert prepared.tuned is not None
    assert "forward" in (prepared.tuned() or {})


def a_nan_reaches_exactly_the_rows_that_depend_on_it() -> None:
    """In q: its row. In k: the rows that see it."""
    q, k, v = (t.detach() for t in inputs())
    q[0, 1, 7, 3] = float("nan")
    assert attention(q, k, v, causal=True).isnan().any(-1).nonzero().tolist() == [[0, 1, 7]]
    q, k, v = (t.detach() for t in inputs())
    k[0, 0, 25, 3] = float("nan")
    rows = attention(q, k, v, causal=True).isnan().any(-1)
    assert rows[0, :, 15:].all()
    assert not rows[0, :, :15].any()


def very_negative_scores_stay_finite() -> None:
    """All logits near -120 and -1e4: tails must be masked by index, not by zeros that would win the maximum."""
    for logit in (-120.0, -1e4):
        for N in (1, 20, 64, 97):
            q, k, v = inputs(heads=1, Nq=N, Nk=N)
            with torch.no_grad():
                q.zero_()
                q[..., 0] = 1
                k[..., 0] = logit * 4
            o, lse = attention(q, k, v, return_lse=True)
            gradients = torch.autograd.grad(o.square().sum(), (q, k, v))
            assert lse.isfinite().all()
            assert all(t.isfinite().all() for t in (o, *gradients))
            assert float(lse.detach().max()) < logit + 20


def a_gradient_of_the_LSE_of_an_empty_row_is_as_good_as_none() -> None:
    """Its P is 0: an infinite or undefined gradient there must not reach dQ, dK or dV."""
    mine, zeroed = inputs(Nq=30, Nk=20), inputs(Nq=30, Nk=20)
    for tensors, there in ((mine, float("nan")), (zeroed, 0.0)):
        o, lse = attention(*tensors, causal=True, return_lse=True)
        gradient = torch.ones_like(lse)
        gradient[:, :, :10] = there
        assert lse[:, :, :10].isneginf().all()
        torch.autograd.backward((o, lse), (torch.ones_like(o), gradient))
    for a, b in zip(mine, zeroed, strict=True):
        assert torch.equal(a.grad, b.grad)


def a_saturated_softcap_still_has_its_tiny_slope() -> None:
    """1 - tanh(x)^2 in fp32 is zero from x = 9 on; the slope is 4 e / (1 + e)^2 with e = exp(-2 |x|)."""
    q, k, v = (t.detach().abs() * 2 + 1 for t in inputs(heads=1, Nq=5, Nk=5, d=32))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    dO = torch.linspace(-1, 1, 160).view(1, 1, 5, 32)
    scale, cap = 32**-0.5, 3.0
    (dQ, dK, _) = torch.autograd.grad(attention(*leaves, softcap=cap), leaves, dO)
    q, k, v = (t.detach().double() for t in leaves)
    x = q @ k.mT * scale / cap
    assert float(x.min()) > 9
    assert float(x.max()) < 40
    P, e = torch.softmax(cap * torch.tanh(x), -1), torch.exp(-2 * x)
    dP = dO.double() @ v.mT
    dS = P * (dP - (P * dP).sum(-1, keepdim=True)) * 4 * e / (1 + e).square()
    torch.testing.assert_close(dQ.double(), dS @ k * scale, rtol=2e-3, atol=0)
    torch.testing.assert_close(dK.double(), dS.mT @ q * scale, rtol=2e-3, atol=0)


CHECKS = [
    the_operators_keep_torchs_rules,
    gradients_flow_through_O_and_LSE,
    a_gradient_of_LSE_alone_is_right,
    an_expanded_dO_is_right,
    torch_compile_takes_it_whole,
    empty_sequences_come_out_as_the_contract_says,
    the_backend_prepares_a_case,
    a_nan_reaches_exactly_the_rows_that_depend_on_it,
    very_negative_scores_stay_finite,
    a_gradient_of_the_LSE_of_an_empty_row_is_as_good_as_none,
    a_saturated_softcap_still_has_its_tiny_slope,
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    for check in CHECKS:
        print(f"{check.__name__} ...", file=sys.stderr, flush=True)
        check()
        print(check.__name__)
