"""A profile kept in a file: what was counted, on what, and the tilings that its model is made of. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fabench.case import Case
from fabench.errors import RecordError
from fabench.explain import Explanation, explain
from fabench.gpus import Gpu
from fabench.input_files import read_small
from fabench.output_files import write_text
from fabench.profiling.kernel import Profile
from fabench.records import Harness, Identity, Record, Software
from fabench.tiling import Tiling


class StoredProfile(Record):
    """Everything `fabench profile` prints of one case, so that it can be printed again elsewhere."""

    schema_: Literal["fabench-profile/1.0"] = Field(default="fabench-profile/1.0", alias="schema")
    started: str
    """ISO 8601, UTC."""
    argv: list[str]
    harness: Harness
    identity: Identity
    software: Software
    case: dict[str, Any]
    gpu: Gpu
    tilings: tuple[Tiling, ...]
    profiles: tuple[Profile, ...]

    @property
    def origin(self) -> str:
        """When it was made, and with what, in a line."""
        with_ = {"torch": self.software.torch, "driver": self.software.driver, "fabench": self.harness.version}
        return f"profiled {self.started[:10]}, {', '.join(f'{name} {v}' for name, v in with_.items() if v)}"

    @property
    def explanation(self) -> Explanation:
        """The model of the case on the card."""
        return explain(Case.from_key(self.case), self.gpu, self.tilings)


def write(path: Path, stored: StoredProfile) -> None:
    """Write it as one JSON object. Raises UsageError if it cannot be written."""
    write_text(path, stored.model_dump_json(by_alias=True, indent=1) + "\n")


def read(path: Path) -> StoredProfile:
    """What `write` wrote. Raises RecordError, one sentence, for anything else."""
    try:
        text = read_small(path)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", str(path)) from None
    try:
        stored = StoredProfile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at '{place}'" if place else ""
        raise RecordError(
            f"must be a file that 'fabench profile --out' wrote, got {first['msg']}{where}", str(path)
        ) from None
    Case.from_key(stored.case)  # raises CaseError, a usage error too
    return stored
