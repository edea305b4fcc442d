"""Compare text with a file of tests/golden, which FABENCH_UPDATE_GOLDEN=1 writes anew for a person to read."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """Fail, showing both, unless `text` is what tests/golden/`name` holds."""
    path = FOLDER / name
    if os.environ.get("FABENCH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"differs from tests/golden/{name}; FABENCH_UPDATE_GOLDEN=1 rewrites it"
