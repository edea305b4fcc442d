"""A result names the code that it measured: what the hash of a shipped backend's sources covers."""

from __future__ import annotations

from pathlib import Path

import pytest

import fabench_backends
from fabench import registry


def test_backends_of_one_folder_share_a_hash_and_others_differ() -> None:
    found = registry.shipped()
    hashes = {
        name: registry.sources_sha256(found[name]) for name in ("cuda-v1", "cuda-v2", "triton", "naive", "online")
    }

    assert hashes["cuda-v1"] == hashes["cuda-v2"]
    assert len(set(hashes.values())) == 4


@pytest.mark.parametrize(
    ("name", "changes"), [("kernel.cuh", True), ("host.py", True), ("README.md", False), ("inner/scores.cu", True)]
)
def test_the_hash_follows_code_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: bool
) -> None:
    backend = registry.shipped()["cuda-v2"]
    monkeypatch.setattr(fabench_backends, "__path__", [str(tmp_path)])
    for file in ("cuda_flash/a.cu", "cuda_flash/inner/b.py", f"cuda_flash/{name}"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x")
    before = registry.sources_sha256(backend)

    (tmp_path / "cuda_flash" / name).write_text("y")

    assert (registry.sources_sha256(backend) != before) == changes
