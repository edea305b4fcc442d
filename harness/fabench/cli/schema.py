"""`fabench schema`: JSON Schemas, for editors and other programs."""

from __future__ import annotations

import json
from typing import Any

import click

from fabench.cli.stdout import say


@click.command()
@click.argument("what", type=click.Choice(["suite", "record"]))
def command(what: str) -> None:
    """Print the JSON Schema of a suite file, or of one line of a result file."""
    say(json.dumps(_schema(what), indent=2, ensure_ascii=False))


def _schema(what: str) -> dict[str, Any]:
    if what == "suite":
        from fabench.suite_schema import json_schema

        return json_schema()
    from fabench.records import ADAPTER, SCHEMA

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA} record: one line of a result file",
        **ADAPTER.json_schema(by_alias=True),
    }
