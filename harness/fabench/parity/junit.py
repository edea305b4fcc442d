"""A battery as JUnit XML: one test case a probe and trial, so that CI shows what failed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from fabench.parity.verdict import Verdict

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """The text of --junit: one test suite a kernel."""
    root = ElementTree.Element("testsuites", name="fabench parity")
    for verdict in verdicts:
        skipped = sum(r.ending in ("unsupported", "skipped", "oom") for r in verdict.results)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_clean(verdict.target),
            tests=str(len(verdict.results)),
            failures=str(len(verdict.failed)),
            skipped=str(skipped),
            time=f"{verdict.seconds:.3f}",
        )
        for result in verdict.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=result.probe, name=result.trial.label(), time=f"{result.seconds:.3f}"
            )
            if result.bad:
                named = (result.diagnosis or {}).get("named")
                message = f"{named}: {result.message}" if named else result.message
                ElementTree.SubElement(case, "failure", type=result.ending, message=_clean(message))
            elif result.ending != "passed":
                ElementTree.SubElement(case, "skipped", message=_clean(result.message))
    ElementTree.indent(root)
    return DECLARATION + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 has no place for: control characters, surrogates, U+FFFE and U+FFFF."""
    return "".join(c for c in text if c in "\n\t" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c > "\uffff")
