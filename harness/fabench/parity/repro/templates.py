"""The texts a failure's script is made of: inputs from a seed, attention by its definition, the check of each probe."""

from __future__ import annotations

DISTRIBUTIONS = {
    "std3": "q, k = 3 * q, 3 * k",
    "std6": "q, k = 6 * q, 6 * k",
    "outliers": (
        "q, k, v = (x + 10 * draw(*x.shape) * (torch.rand(x.shape, generator=generator) < 0.001) for x in (q, k, v))"
    ),
    "constant_v": "v[:] = v[:, :, :1].clone()",
    "repeated_k": "k[:] = k[:, :, torch.arange(Nk) % 4].clone()",
    "neglse": "q[..., 0], k[..., 0] = 1.0, -120.0 / scale  # every score near -120",
    "padded": (
        "q[..., 0], k[..., 0] = 1.0, 0.0\n"
        "k[:, :, : min(128, Nk // 2), 0] = -300.0 / scale  # the first keys are masked by value"
    ),
    "sink": "q[..., 0], k[..., 0] = 1.0, 0.0\nk[:, :, :1, 0] = 15.0 / scale  # key 0 leads by 15 nats",
}
"""How a distribution is made from normal q, k, v; those without an entry are written into the script."""

SCRIPT = '''\
"""{title}

Found by `fabench parity` (probe {probe}). Needs torch and the kernel, nothing else: `python {file}` shows the failure.
{case}
"""

import math

import torch

{load}

device, dtype = "{device}", torch.{dtype}
B, H, KV, Nq, Nk, d, dv = {batch}, {heads}, {kv_heads}, {Nq}, {Nk}, {d}, {dv}
scale = {scale}

# ---- inputs
{inputs}
{arrange}

# ---- what is right: attention by its definition, in fp64
def attention_fp64(q, k, v):
    k, v = (x.repeat_interleave(H // KV, 1) for x in (k, v))
    S = q @ k.transpose(-1, -2) * scale
{softcap}    i, j = torch.arange(Nq, device=q.device)[:, None] + {offset}, torch.arange(Nk, device=q.device)
    hidden = torch.zeros(Nq, Nk, dtype=torch.bool, device=q.device)
{hidden}    S = S.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(S, -1)
    P = torch.exp(S - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    return P @ v, lse


# ---- the kernel
{check}
'''

LOAD_FILE = """\
import importlib.util, pathlib, sys

FILE = pathlib.Path("{path}")  # the kernel's file
sys.path.insert(0, str(FILE.parent))
spec = importlib.util.spec_from_file_location("kernel_under_test", FILE)
module = importlib.util.module_from_spec(spec)
sys.modules["kernel_under_test"] = module
spec.loader.exec_module(module)
attention = module.{function}"""

LOAD_BACKEND = """\
from fabench import registry  # the kernel comes with fabench
from fabench.case import Case
from fabench.environment import resolve

BACKEND, CASE = registry.shipped()["{name}"], Case.from_key({key})


def attention(q, k, v, return_lse=False, **keywords):
    return BACKEND.prepare(CASE, resolve("{device}"), lse=return_lse).call(q, k, v)"""

LOAD_SDPA = """\
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention(q, k, v, causal=False, scale=None):
    with sdpa_kernel([SDPBackend.{backend}]):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )"""

VALUE = '''\
{call}
exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
O, LSE = attention_fp64(*exact)
{expected}
index = {index}
got, right = got[index].double(), expected[index].double()
error = float((got - right).norm())
print("{tensor} at b, h, row = {index}")
print("expected", right.flatten()[:8].tolist())
print("got     ", got.flatten()[:8].tolist())
print(f"error {{error:.6g}}, a correct kernel stays within {limit:.6g}")
assert error <= {limit!r}, "the kernel is wrong here"'''

CHECKS: dict[str, str] = {
    "mutate": """\
before = [x.clone() for x in (q, k, v, dO)]


def compare():
    for name, x, old in zip(("q", "k", "v", "dO"), (q, k, v, dO), before):
        at = (x != old).nonzero()
        print(name, "is unchanged" if not len(at) else f"at {{at[0].tolist()}} expected {{old[x != old][0]}}, "
              f"got {{x[x != old][0]}}")
        assert not len(at), f"the call changed its input {{name}}"


{call}
compare()
if {backward}:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    {call}
    if out.requires_grad:
        torch.autograd.grad(out, (q, k, v), dO, allow_unused=True)
    compare()""",
    "stale": '''\
import time

{call}
answer, first = out, out.detach().clone()
time.sleep(0.05)
assert not (answer != first).any(), "the answer changes after the call"
new = torch.Generator().manual_seed(1)
with torch.no_grad():
    for x in (q, k, v):  # new values in the same memory
        x = x if x.stride(1) else x[:, :1]  # expanded heads are one
        x.copy_(torch.randn(x.shape, generator=new))
expected = attention_fp64(q.double(), k.double(), v.double())[0]
{call}
print("expected", expected.flatten()[:4].tolist())
print("got     ", out.flatten()[:4].tolist())
error = float((out.double() - expected).norm())
assert error <= 2e-2 * float(expected.norm()) + 1e-3, "the kernel remembers an earlier call"
print("expected", first.flatten()[:4].tolist(), "still in the first answer")
print("got     ", answer.flatten()[:4].tolist())
assert torch.equal(answer, first), "a later call overwrites an earlier answer"
inputs = q, k, v


def gradients(sign, around=None):
    """The gradients of one call, with another call between its forward and its backward pass."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (inputs[0], inputs[1], sign * inputs[2]))
    {call}
    if around:
        gradients(around)
    return torch.autograd.grad(out, (q, k, v), dO) if out.requires_grad else ()


for name, expected, got in zip(("dQ", "dK", "dV"), gradients(1), gradients(1, around=-1)):
    print(name, "expected", expected.flatten()[:4].tolist(), "got", got.flatten()[:4].tolist())
    close = torch.allclose(got.float(), expected.float(), rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    assert close, f"another call between forward and backward changes {{name}}"''',
    "repeat": '''\
exact = attention_fp64(*(x.detach().double() for x in (q, k, v)))[0]
for run in range(20):
    {call}
    error = float((out.double() - exact).norm() / exact.norm())
    print("run", run, "relative error", error)
    assert error < 0.02, "equal calls give different answers"''',
    "poison": '''\
from torch.utils._python_dispatch import TorchDispatchMode

EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Poisoned(TorchDispatchMode):
    """Fills uninitialised memory with NaN."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {{}}))
        if func.overloadpacket.__name__ in EMPTY and out.is_floating_point():
            out.fill_(math.nan)
        return out


with Poisoned():
    {call}
{gradients}
for name, x in results.items():
    print(name, "expected no NaN, got", int(x.isnan().sum()), "NaN elements")
for name, x in results.items():
    assert not x.isnan().any(), f"{{name}} shows memory that was never written"''',
    "guard": '''\
def in_margins(x):
    """The same values with NaN before and after them in memory."""
    storage = torch.full((x.numel() + 1024 * x.shape[-1],), math.nan, dtype=x.dtype, device=x.device)
    view = storage.as_strided(x.shape, x.contiguous().stride(), 512 * x.shape[-1])
    return view.copy_(x.detach())


q, k, v = (in_margins(x) for x in (q, k, v))
{call}
print("expected no NaN, got", int(out.isnan().sum()), "NaN elements")
assert not out.isnan().any(), "the kernel reads outside its inputs, and it shows"''',
    "nan": '''\
sees = torch.eye(Nk, dtype=torch.float64, device=device).expand(B, KV, Nk, Nk)
sees = attention_fp64(torch.zeros_like(q).double(), torch.zeros_like(k).double(), sees)[0][-1, -1] > 0  # [Nq, Nk]
i, j = sees.nonzero()[int(sees.sum()) // 2].tolist()
several = sees.sum(1) > 1  # a query with one key has O = V whatever q and K are
whole = torch.ones(dv, dtype=torch.bool, device=device)
cases = {{
    "q": ((-1, -1, i, 0), (torch.arange(Nq, device=device) == i) & several, whole),
    "k": ((-1, -1, j, d - 1), sees[:, j] & several, whole),
    "v": ((-1, -1, j, dv - 1), sees[:, j], torch.arange(dv, device=device) == dv - 1),
}}
clean = q, k, v
wrong = []
for n, (name, (at, rows, channels)) in enumerate(cases.items()):
    q, k, v = (x.detach().clone() for x in clean)
    (q, k, v)[n][at] = math.nan
    {call}
    nan = out.isnan()
    lost = int((rows[:, None] & channels & ~nan[-1, -1]).sum())
    heads = 1 if name == "q" else H // KV
    spread = int(nan.sum()) - int(nan[-1, -heads:].sum())  # other batch entries and heads
    if name == "q":
        spread += int(nan[-1, -1, torch.arange(Nq, device=device) != i].sum())  # other rows
    expected = int(rows.sum()) * int(channels.sum())
    print(f"a NaN in {{name}} at {{at}}: expected in {{expected}} elements of the last head, got {{expected - lost}}; "
          f"and {{spread}} that do not depend on it")
    wrong += [name] * bool(lost or spread)
assert not wrong, f"a NaN in {{', '.join(wrong)}} is lost or spreads"''',
    "refusal": """\
k3, v3 = (torch.ones(B, 3, Nk, n, dtype=dtype, device=device) for n in (d, dv))
q4 = torch.ones(B, 4, Nq, d, dtype=dtype, device=device)
try:
    answer = attention(q4, k3, v3)
except Exception as error:
    print("expected an exception, got", type(error).__name__)
else:
    print("expected an exception, got an answer of shape", list(answer.shape))
    raise AssertionError("4 heads with 3 kv_heads must be refused")""",
    "type": '''\
{call}
form = type(out), getattr(out, "shape", None), getattr(out, "dtype", None)
print("expected", torch.Tensor, (B, H, Nq, dv), dtype, "; got", *form)
assert type(out) is torch.Tensor and out.shape == (B, H, Nq, dv) and out.dtype == dtype, "the answer has the wrong form"
shared = [x.untyped_storage().data_ptr() for x in (q, k, v) if x.numel()]
assert out.untyped_storage().data_ptr() not in shared, "the output is a view of an input"
if {backward}:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    {call}
    if out.requires_grad:
        found = torch.autograd.grad(out, (q, k, v), dO, allow_unused=True)
        for name, x, gradient in zip("qkv", (q, k, v), found):
            print(f"d{{name}} expected", tuple(x.shape), "got", None if gradient is None else tuple(gradient.shape))
            assert gradient is not None, f"the output does not depend on {{name}}"''',
    "call": """\
{call}
print("the call returned", type(out))
raise AssertionError("fabench saw it crash, exit or hang here")""",
}
