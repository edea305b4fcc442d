"""Code for the inputs of a failure's script: drawn from a seed where that fails too, else written out."""

from __future__ import annotations

import base64
import textwrap
import zlib

import torch

from fabench.case import Case
from fabench.inputs import Tensors
from fabench.parity.repro.templates import DISTRIBUTIONS
from fabench.parity.trial import Trial

MOST_EMBEDDED = 1 << 20
"""Bytes of inputs that are written into a script."""
PAD = "torch.nn.functional.pad"


def seeded(case: Case, seed: int) -> str | None:
    """Code that draws the case's inputs from a seed, None for distributions that have no short code."""
    if case.inputs != "normal" and case.inputs not in DISTRIBUTIONS:
        return None
    shapes = "q, k, v, dO = draw(B, H, Nq, d), draw(B, KV, Nk, d), draw(B, KV, Nk, dv), draw(B, H, Nq, dv)"
    lines = [
        f"generator = torch.Generator().manual_seed({seed})",
        "",
        "",
        "def draw(*shape):",
        "    return torch.randn(shape, generator=generator)",
        "",
        "",
        shapes,
    ]
    if case.inputs in DISTRIBUTIONS:
        lines += DISTRIBUTIONS[case.inputs].splitlines()
    return "\n".join([*lines, "q, k, v, dO = (x.to(device=device, dtype=dtype) for x in (q, k, v, dO))"])


def embedded(t: Tensors) -> str | None:
    """Code that holds the inputs themselves, compressed."""
    if sum(x.numel() * x.element_size() for _, x in t.items()) > MOST_EMBEDDED:
        return None
    lines = ["import base64, zlib", "", "", "def tensor(shape, text):"]
    lines += ["    raw = bytearray(zlib.decompress(base64.b85decode(text.replace('\\n', ''))))"]
    lines += ["    return torch.frombuffer(raw, dtype=dtype).view(shape).to(device)", "", ""]
    given = dict(t.items())
    for name in ("q", "k", "v", "dO"):
        if name not in given:
            lines.append(f"{name} = torch.zeros(B, H, Nq, dv, dtype=dtype, device=device)")
            continue
        x = given[name].detach().cpu().contiguous()
        raw = x.view(torch.uint8).numpy().tobytes() if x.numel() else b""
        text = "\n".join(textwrap.wrap(base64.b85encode(zlib.compress(raw, 9)).decode(), 110))
        lines.append(f'{name} = tensor({tuple(x.shape)}, r"""{text}""")')
    return "\n".join(lines)


def arrange(trial: Trial) -> str:
    """Code for the memory order, where it matters. Between the rows lies NaN, as where the failure was found."""
    lines = []
    if trial.case.layout == "bshd":
        lines.append("q, k, v, dO = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, dO))")
    elif trial.case.layout == "packed":
        lines.append("qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)  # [batch, N, 3, heads, d]")
        lines.append("q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))")
    if trial.order == "sliced":
        lines.append("after = (0, 0, 0, 128)  # rows")
        lines.append(f"q, k, v = ({PAD}(x, after, value=math.nan)[:, :, : x.shape[2]] for x in (q, k, v))")
    elif trial.order.startswith("offset"):
        offset = trial.order.removeprefix("offset")
        lines.append(f"at = {offset}  # elements from the start of the storage")
        lines.append("pad = torch.full((16,), math.nan, dtype=dtype, device=device)")
        lines.append("stored = (torch.cat([pad[:at], x.flatten(), pad[at:]])[at:] for x in (q, k, v))")
        lines.append("q, k, v = (s[: x.numel()].view(x.shape) for s, x in zip(stored, (q, k, v)))")
    elif trial.order == "expanded_kv":
        lines.append("k, v = (x[:, :1].expand_as(x) for x in (k, v))")
    elif trial.order == "odd_strides":
        lines.append("odd = [[12345 if n == 1 else s for n, s in zip(x.shape, x.stride())] for x in (q, k, v)]")
        lines.append("q, k, v = (x.as_strided(x.shape, strides) for x, strides in zip((q, k, v), odd))")
    elif trial.order == "mixed":
        lines.append(f"k = {PAD}(k, (0, 0, 0, 128), value=math.nan)[:, :, : k.shape[2]]")
        lines.append("v = v.transpose(1, 2).contiguous().transpose(1, 2)")
    if trial.gradient_order == "transposed":
        lines.append("dO = dO.transpose(1, 2).contiguous().transpose(1, 2)")
    elif trial.gradient_order == "expanded":
        lines.append("dO = dO[:, :1, :1, :1].expand_as(dO)")
    elif trial.gradient_order == "sliced":
        lines.append(f"dO = {PAD}(dO, (0, 0, 8, 0), value=math.nan)[:, :, 8:]")
    return "\n".join(lines)
