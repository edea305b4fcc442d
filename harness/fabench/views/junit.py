"""A comparison as JUnit XML: a suite a backend, a test case a row. What gates fails, what is undecided is skipped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from fabench.diff.compare import Comparison, RowDiff
from fabench.diff.gate import gates
from fabench.diff.report import Report, summary
from fabench.diff.verdicts import MEANING, Verdict

UNDECIDED: tuple[Verdict, ...] = ("NOT_COMPARABLE", "ENV_SHIFT", "INCONCLUSIVE", "SKIPPED", "STILL_FAILING")
"""Verdicts shown as skipped tests: no server then counts them as passed."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped; kernels print them."""


def as_junit(report: Report) -> str:
    """The document's text, with its declaration."""
    root = ET.Element("testsuites", name="fabench diff")
    suites: dict[str, list[RowDiff]] = {}
    for row in report.ordered():
        suites.setdefault(row.pair.backend, []).append(row)
    for backend, rows in sorted(suites.items()):
        suite = ET.SubElement(root, "testsuite", name=clean(backend))
        for row in rows:
            _case(report.found, suite, row)
        _count(suite, [suite])
    _count(root, list(root))
    properties = ET.Element("properties")
    ET.SubElement(properties, "property", name="summary", value=clean(summary(report)))
    for suite in root.findall("testsuite")[:1]:
        suite.insert(0, properties)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def clean(text: str) -> str:
    """The text without what XML cannot hold: each such character becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)


def _case(found: Comparison, suite: ET.Element, row: RowDiff) -> None:
    pair = row.pair
    ns = None if pair.new is None else found.new.median_of(pair.new)
    case = ET.SubElement(
        suite, "testcase", name=clean(pair.case.label()), classname=clean(pair.backend), time=f"{(ns or 0.0) / 1e9:.9f}"
    )
    message = clean(describe(found, row))
    if gates(found, row):
        failure = ET.SubElement(case, "failure", type=row.verdict, message=message)
        failure.text = clean(f"{message}\n{MEANING[row.verdict]}\nrow_id {pair.row_id}\n{rerun(found, row)}")
    elif row.waiver is not None:
        ET.SubElement(case, "skipped", message=clean(f"waived: {message}: {row.waiver.reason}"))
    elif row.verdict in UNDECIDED:
        ET.SubElement(case, "skipped", message=message)


def _count(element: ET.Element, suites: list[ET.Element]) -> None:
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    element.set("errors", "0")
    element.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def describe(found: Comparison, row: RowDiff) -> str:
    """The verdict with its numbers in one line: 'REGRESSED 1.058 (1.049 .. 1.067): reason'."""
    ratio = found.ratio(row)
    parts: list[str] = [row.verdict]
    if ratio is not None:
        parts.append(f"{ratio[0]:.3f}x of old time")
        if ratio[1] is not None and ratio[2] is not None:
            parts.append(f"(95 % interval {ratio[1]:.3f} .. {ratio[2]:.3f})")
    elif row.old_status != row.new_status:
        parts.append(f"{row.old_status or 'absent'} -> {row.new_status or 'absent'}")
    text = " ".join(parts)
    return f"{text}: {' '.join(row.reason.split())}" if row.reason else text


def rerun(found: Comparison, row: RowDiff) -> str:
    """The command that repeats the row alone."""
    pair = row.pair
    side, place = (found.new, pair.new) if pair.new is not None else (found.old, pair.old)
    return side.rows[place].rerun if place is not None else ""
