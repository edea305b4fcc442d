"""Parity in a test suite: `assert_parity(attention, case)` over `cases(attention)`, in this very process.

    import pytest
    from fabench.testing import assert_parity, cases

    @pytest.mark.parametrize("case", cases(attention), ids=str)
    def test_attention_is_right(case):
        assert_parity(attention, case)

With fabench's pytest plugin a test that asks for `fabench_case` and is marked `@pytest.mark.fabench(kernel=attention)`
gets the cases of `--fabench-profile`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fabench.backend import Backend, Facts
from fabench.case import Case
from fabench.device import Device
from fabench.function_backend import bare
from fabench.parity.battery import EVERYWHERE, Profile, Request, build
from fabench.parity.trial import ProbeName, Result, Trial
from fabench.where import Condition

Kernel = Backend | Callable[..., Any]
REPRO = "FABENCH_REPRO"
"""Environment variable with the folder for scripts; the plugin sets it from --fabench-repro."""
DEFAULT_REPRO = "fabench-repro"
SHRINK_S, SHRINK_TESTS = 5.0, 40
ANYTHING = Facts("any kernel", window=True, softcap=True, returns_lse=True)
"""What `cases()` without a kernel is made for; a case that a kernel refuses is skipped."""


def cases(
    kernel: Kernel | None = None,
    profile: Profile = "quick",
    *,
    dtypes: Sequence[str] = (),
    where: str | None = None,
    probes: Sequence[ProbeName] = (),
    forward_only: bool = False,
    device: str = "auto",
) -> list[Trial]:
    """The trials of a profile, for what `kernel` declares; each prints as its label, for `ids=str`."""
    facts = ANYTHING if kernel is None else backend_of(kernel).facts
    request = Request(
        profile=profile,
        device_type=resolve(device).type,
        dtypes=tuple(dtypes),
        probes=tuple(probes),
        where=None if where is None else Condition.parse(where),
        forward_only=forward_only,
    )
    return build(facts, request)


def assert_parity(
    kernel: Kernel,
    case: Trial | Case | None = None,
    *,
    probes: Sequence[ProbeName] | None = None,
    profile: Profile = "quick",
    device: str = "auto",
    repro: str | os.PathLike[str] | None = None,
) -> None:
    """Raise AssertionError, with the bug's name and a script that shows it, unless `kernel` is right.

    `case` is one of `cases()`, a `fabench.Case`, or None for a whole profile. `probes` narrows or replaces what is run.
    `repro` is the folder of the script (default: --fabench-repro, else ./fabench-repro). A kernel that refuses the case
    skips the test under pytest, and otherwise passes. Crashes are not caught: `fabench parity` runs kernels apart.
    """
    from fabench.parity.diagnose import diagnose
    from fabench.parity.examiner import Examiner
    from fabench.parity.subject import Subject

    backend = backend_of(kernel)
    where = resolve(device)
    examiner = Examiner(Subject(backend, where), diagnose)
    trials = _trials(backend, case, probes, profile, where)
    with _few_threads(where):
        results = [result for trial in trials for result in examiner.run(trial)]
        bad = [r for r in results if r.bad]
        if bad:
            folder = Path(repro if repro is not None else os.environ.get(REPRO, DEFAULT_REPRO))
            raise AssertionError(_message(examiner, backend, bad, folder))
    if results and all(r.ending in ("unsupported", "skipped") for r in results):
        _skip(next((r.message for r in results if r.ending == "unsupported"), results[0].message))


@contextlib.contextmanager
def _few_threads(device: Device) -> Iterator[None]:
    """One thread on a CPU: the cases are small, and more would only wait for one another."""
    import torch

    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def backend_of(kernel: Kernel) -> Backend:
    """A function as the backend it declares by its keywords; a Backend as it is."""
    return kernel if isinstance(kernel, Backend) else bare(kernel)


@cache
def resolve(device: str) -> Device:
    """The device of 'auto', 'cpu', 'cuda' or 'cuda:1'."""
    from fabench import environment

    return environment.resolve(device)


def _trials(
    backend: Backend, case: Trial | Case | None, probes: Sequence[ProbeName] | None, profile: Profile, device: Device
) -> list[Trial]:
    if case is None:
        return build(backend.facts_on(device), Request(profile, device.type, probes=tuple(probes or ())))
    trial = case if isinstance(case, Trial) else Trial(case, EVERYWHERE)
    return [trial if probes is None else dataclasses.replace(trial, probes=tuple(probes))]


def _message(examiner: Any, backend: Backend, bad: list[Result], folder: Path) -> str:
    """What is wrong, the smallest case, the script."""
    from fabench.parity.shrink import shrink
    from fabench.parity.verdict import findings

    finding = findings(bad)[0]
    example = finding.name.example or bad[0]

    def fails(trial: Trial) -> bool:
        examiner.diagnose = None
        return any(r.probe == example.probe and r.bad for r in examiner.run(trial))

    smallest = shrink(example.trial, example.probe, fails, most_tests=SHRINK_TESTS, seconds=SHRINK_S)
    lines = [
        f"{backend.name} is wrong: {finding.name.sentence}",
        f"  {example.probe} on {example.trial.label()}:",
        f"  {example.message}",
    ]
    if (example.diagnosis or {}).get("where"):
        lines.append(f"  {example.diagnosis['where']}")  # type: ignore[index]
    lines.append(f"  smallest failing case: {smallest.label()}")
    path = _script(examiner, backend, example, smallest, finding.name.sentence, folder)
    lines.append(f"  shown without fabench by: python {path}" if path else "  (no script: the function has no file)")
    return "\n".join(lines)


def _script(examiner: Any, backend: Backend, example: Result, smallest: Trial, named: str, folder: Path) -> Path | None:
    """Write the script, None where the kernel is no function of a file."""
    from fabench.parity.repro import script

    function = inspect.unwrap(getattr(backend, "function", None))  # type: ignore[arg-type]  # None unwraps to None
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not hasattr(inspect.getmodule(function), name):
        return None
    file = inspect.getsourcefile(function)
    target = {"file": file, "function": name, "ending": example.ending}
    text = script(examiner.subject, smallest, example.probe, target, named)
    if text is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"repro_{name}_{example.probe}.py"
    path.write_text(text)
    return path


def _skip(reason: str) -> None:
    """Skip the running test, if there is one."""
    if "pytest" in sys.modules and os.environ.get("PYTEST_CURRENT_TEST"):
        import pytest

        pytest.skip(f"the kernel refuses this case: {reason}")


__all__ = ["assert_parity", "cases"]
