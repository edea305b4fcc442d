"""Files of real tensors: what they may hold, and one sentence for anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fabench.errors import UsageError
from fabench.function_backend import bare
from fabench.parity.examiner import Examiner
from fabench.parity.real_inputs import examine, load
from fabench.parity.subject import Subject
from mutants.variants import VARIANTS
from proof import CPU

QKV = {name: torch.zeros(1, 1, 2, 4) for name in "qkv"}


def saved(data: object, folder: Path) -> str:
    path = folder / "real.pt"
    torch.save(data, path)
    return str(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"q": torch.zeros(1, 1, 2, 4)}, "with the tensors q, k and v, got the keys q"),
        ([1, 2], "with the tensors q, k and v, got a list"),
        ({n: torch.zeros(2, 4) for n in "qkv"}, "must hold q [batch, heads, Nq, d]"),
        ({**QKV, "causl": True}, "got 'causl'"),
        ({n: x.double() for n, x in QKV.items()}, "of one dtype of"),
    ],
)
def test_a_wrong_file_is_one_sentence(data: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(saved(data, tmp_path), torch.device("cpu"))
    assert sentence in str(caught.value)


def test_a_pipe_a_device_and_a_folder_are_refused_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=f"must be a file that torch.load can read with weights_only, got: {what}"):
            load(str(path), torch.device("cpu"))


def test_the_case_is_read_off_the_tensors(tmp_path: Path) -> None:
    data = {
        "q": torch.zeros(2, 4, 5, 8, dtype=torch.float16),
        "k": torch.zeros(2, 2, 7, 8, dtype=torch.float16),
        "v": torch.zeros(2, 2, 7, 6, dtype=torch.float16),
        "dO": torch.zeros(2, 4, 5, 6, dtype=torch.float16),
        "causal": True,
        "scale": 0.5,
        "window": [3, -1],
    }
    case, _ = load(saved(data, tmp_path), torch.device("cpu"))
    assert (case.batch, case.heads, case.kv_heads, case.Nq, case.Nk, case.d, case.dv) == (2, 4, 2, 5, 7, 8, 6)
    assert (case.dtype, case.causal, case.scale, case.window) == ("fp16", True, 0.5, (3, 0))
    assert case.direction == "backward"


def test_inputs_that_are_not_finite_are_survived_and_reported(tmp_path: Path) -> None:
    data = {name: torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(1)) for name in "qkv"}
    data["k"][0, 1, 3] = torch.inf
    examiner = Examiner(Subject(bare(VARIANTS["Right"], "right"), CPU))
    (result,) = examine(examiner, saved(data, tmp_path))
    assert result.ending == "passed"
    assert "O then has" in (result.note or "")
