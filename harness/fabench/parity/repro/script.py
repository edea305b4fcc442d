"""A failure as a script of its own: torch and the kernel's file, nothing of fabench. Running it shows the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.inputs import Tensors, rotate
from fabench.outcome import Failure
from fabench.parity.bench import Bench, Failed, witness_of
from fabench.parity.probes import probe as probe_of
from fabench.parity.probes.repeats import everything, same_bits
from fabench.parity.repro.inputs_code import arrange, embedded, seeded
from fabench.parity.repro.templates import CHECKS, LOAD_BACKEND, LOAD_FILE, LOAD_SDPA, SCRIPT, VALUE
from fabench.parity.rule import judge
from fabench.parity.subject import Subject
from fabench.parity.trial import ProbeName, Trial, Witness
from fabench.reference import compute

SEEDS = range(3)
SDPA = {
    "sdpa-math": "MATH",
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-efficient": "EFFICIENT_ATTENTION",
    "sdpa-cudnn": "CUDNN_ATTENTION",
}


def script(subject: Subject, trial: Trial, probe: ProbeName, target: dict[str, Any], named: str | None) -> str | None:
    """The text of a script that shows `probe` failing on `trial`, or None if it does not fail now.

    `target` says how to load the kernel: {'file': ..., 'function': ...} or {'backend': ...}; 'ending' is how it failed.
    """
    bench = Bench(subject, trial)
    lines: dict[str, Any] = {"gradients": "results = {'O': out}", "backward": bench.backward}
    if target.get("ending") in ("crashed", "timeout"):
        return _render(bench, probe, target, named, seeded(trial.case, 0), lines, CHECKS["call"])
    if probe == "mutate":
        changing = next((seed for seed in SEEDS if _changes_its_inputs(bench, seed)), None)
        inputs = None if changing is None else seeded(trial.case, changing)
        return _render(bench, probe, target, named, inputs, lines, CHECKS[probe])
    if probe in CHECKS:
        return _render(bench, probe, target, named, seeded(trial.case, 0), lines, CHECKS[probe])
    for seed in SEEDS:
        witness = _witness_of_seed(bench, trial.case, seed)
        if witness is not None:
            return _render(bench, probe, target, named, seeded(trial.case, seed), lines, VALUE, witness)
    failed = _failure(bench, probe)
    if failed is None or failed.witness is None:
        return None
    tensors = failed.tensors if failed.tensors is not None else bench.tensors
    code = embedded(tensors)
    return None if code is None else _render(bench, probe, target, named, code, lines, VALUE, failed.witness)


def _failure(bench: Bench, probe: ProbeName) -> Failed | None:
    try:
        probe_of(probe)(bench)
    except Failed as failed:
        return failed
    except (Failure, RuntimeError):
        return None
    return None


def _names(bench: Bench) -> dict[str, Any]:
    case = bench.case
    return {
        "torch": torch,
        "B": case.batch,
        "H": case.heads,
        "KV": case.kv_heads,
        "Nq": case.Nq,
        "Nk": case.Nk,
        "d": case.d,
        "dv": case.dv,
        "scale": case.softmax_scale or case.d**-0.5,
        "device": str(bench.device),
        "dtype": bench.dtype,
    }


def _witness_of_seed(bench: Bench, case: Case, seed: int) -> Witness | None:
    """The worst element of the kernel on the script's own inputs, None if it is right on them."""
    tensors = _drawn(bench, case, seed)
    if tensors is None:
        return None
    try:
        outputs = bench.call(tensors, backward=bench.backward)
        with_lse = bench.call(tensors, lse=True, backward=bench.backward) if bench.lse else {}
    except (Failure, RuntimeError):
        return None
    expected = compute(case, tensors, accuracy=(bench.accuracy, "B"))
    for asked, found in ((False, {**with_lse, **outputs}), (True, with_lse)):
        judgement = judge(case, expected, found, bench.accuracy)
        witness = None if judgement.passed else witness_of(case, judgement, expected, bench.accuracy)
        if witness is not None:
            witness.with_lse = asked
            return witness
    return None


def _drawn(bench: Bench, case: Case, seed: int) -> Tensors | None:
    """The script's own inputs, None if it has no code for them."""
    code = seeded(case, seed)
    if code is None or bench.trial.order in ("expanded_kv", "far_rows"):
        return None
    names = _names(bench)
    exec(code, names)
    return bench.laid_out(names["q"], names["k"], names["v"], names["dO"] if bench.backward else None)


def _changes_its_inputs(bench: Bench, seed: int) -> bool:
    """Whether the kernel writes into the script's own inputs: what it writes may be what was there."""
    tensors = _drawn(bench, bench.case, seed)
    if tensors is None:
        return False
    before = rotate(tensors, 0)
    try:
        everything(bench, tensors)
    except (Failure, RuntimeError):
        return False
    return not all(same_bits(x, old) for (_, x), (_, old) in zip(tensors.items(), before.items(), strict=True))


def _render(
    bench: Bench,
    probe: ProbeName,
    target: dict[str, Any],
    named: str | None,
    inputs: str | None,
    lines: dict[str, Any],
    check: str,
    witness: Witness | None = None,
) -> str | None:
    case = bench.case
    if inputs is None:
        inputs = embedded(bench.tensors)
        if inputs is None:
            return None
    keywords = _keywords(case)
    lse = witness is not None and witness.tensor == "LSE"
    call = _call(keywords, lse, witness)
    fields = {"call": call.replace("\n", "\n    ") if check is CHECKS.get("poison") else call, **lines}
    if check is CHECKS.get("repeat"):
        fields["call"] = call
    if witness is not None:
        index = tuple(witness.index[: 3 if witness.row else None])
        fields |= {
            "tensor": witness.tensor,
            "index": index,
            "limit": witness.limit,
            "expected": _expected(witness.tensor),
        }
    right, left = case.mask.right, case.mask.left
    hidden = "" if right is None else f"    hidden |= j > i + {right}\n"
    hidden += "" if left is None else f"    hidden |= j < i - {left}\n"
    return SCRIPT.format(
        title=named or "A failure of the kernel",
        probe=probe,
        file=f"repro_{probe}.py",
        case=bench.trial.label(),
        load=_load(target, case),
        device="cuda" if bench.device.type == "cuda" else "cpu",
        dtype=DTYPES[case.dtype].torch_name,
        batch=case.batch,
        heads=case.heads,
        kv_heads=case.kv_heads,
        Nq=case.Nq,
        Nk=case.Nk,
        d=case.d,
        dv=case.dv,
        scale=repr(case.softmax_scale),
        inputs=inputs,
        arrange=arrange(bench.trial),
        softcap=f"    S = {case.softcap!r} * torch.tanh(S / {case.softcap!r})\n" if case.softcap else "",
        offset=case.mask.offset,
        hidden=hidden,
        check=check.format(**fields),
    )


def _keywords(case: Case) -> str:
    given = []
    if case.causal:
        given.append("causal=True")
    if case.scale is not None:
        given.append(f"scale={case.scale!r}")
    if case.window is not None:
        given.append(f"window={case.window!r}")
    if case.softcap:
        given.append(f"softcap={case.softcap!r}")
    if case.alignment != "bottom_right":
        given.append(f"alignment={case.alignment!r}")
    return "".join(f", {k}" for k in given)


def _call(keywords: str, lse: bool, witness: Witness | None) -> str:
    if lse:
        return f"out, got = attention(q, k, v{keywords}, return_lse=True)"
    if witness is not None and witness.tensor in ("dQ", "dK", "dV"):
        place = ("dQ", "dK", "dV").index(witness.tensor)
        asked = f"out, _ = attention(q, k, v{keywords}, return_lse=True)" if witness.with_lse else ""
        lines = [
            "q, k, v = (x.detach().requires_grad_() for x in (q, k, v))",
            asked or f"out = attention(q, k, v{keywords})",
        ]
        return "\n".join([*lines, f"got = torch.autograd.grad(out, (q, k, v), dO)[{place}]"])
    if witness is not None and witness.with_lse:
        return f"got, _ = attention(q, k, v{keywords}, return_lse=True)"
    return f"got = out = attention(q, k, v{keywords})"


def _expected(tensor: str) -> str:
    if tensor in ("O", "LSE"):
        return f"expected = {tensor}.detach()"
    place = ("dQ", "dK", "dV").index(tensor)
    return f"expected = torch.autograd.grad(O, exact, dO.double())[{place}]"


def _load(target: dict[str, Any], case: Case) -> str:
    if "file" in target:
        return LOAD_FILE.format(path=Path(target["file"]).resolve(), function=target["function"])
    plain = case.mask.is_full or (case.causal and case.window is None and case.Nq == case.Nk)
    if target["backend"] in SDPA and plain and not case.softcap:
        return LOAD_SDPA.format(backend=SDPA[target["backend"]])
    return LOAD_BACKEND.format(name=target["backend"], key=case.key, device=target.get("device", "cpu"))
