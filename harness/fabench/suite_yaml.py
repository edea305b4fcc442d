"""YAML text -> plain data, and the line that each value was written on. Strict: what would surprise is an error.

Only the plain part of YAML is taken: mappings with plain keys, lists, and scalars by the YAML 1.2 core rules (true and
false, null, decimal numbers), so that `no`, `1:30` and `010` are words and not false, 90 and 8. Tags, anchors, aliases
(and with them alias bombs), merge keys, second documents and repeated keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fabench.errors import SuiteError

Path = tuple[Hashable, ...]
LIMIT_BYTES = 128 << 10
"""A suite is a page of text; whatever is larger is not one, and would only keep the parser busy."""
LIMIT_DEPTH = 8
"""A suite nests no deeper than a window in the list of an axis."""

_PLAIN_KEY = re.compile(r"[\w*.<-]{1,60}")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")


@dataclass
class Document:
    """What a file says, and where: `lines` by path, for values and, under `key_lines`, for the keys of mappings."""

    file: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    key_lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of the value at `path`, or of the nearest thing around it that is written in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def error(self, path: Path, message: str, *, at_key: bool = False) -> SuiteError:
        """`file:line: axes.N: message`."""
        line = self.key_lines.get(path) if at_key else None
        place = dotted(path)
        return SuiteError(f"{place}: {message}" if place else message, self.file, line or self.line(path) or 1)


def dotted(path: Path) -> str:
    """'axes.N[1]' for ('axes', 'N', 1)."""
    text = ""
    for part in path:
        word = part if isinstance(part, int) or _PLAIN_KEY.fullmatch(str(part)) else shown(part)
        text += f"[{word}]" if isinstance(part, int) else f".{word}" if text else str(word)
    return text


def shown(value: Any, width: int = 60) -> str:
    """A value as an error message shows it: YAML's words, one line, cut to `width`."""
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def parse(raw: bytes, file: str) -> Document:
    """The document that `raw` holds. Raises SuiteError with file and line."""
    if len(raw) > LIMIT_BYTES:
        raise SuiteError(f"a suite must be at most {LIMIT_BYTES} bytes, got more", file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SuiteError(f"a suite must be UTF-8 text, got the byte 0x{raw[error.start]:02x}", file, line) from None
    document = Document(file)
    try:
        node = _compose(text, file)
        if node is not None:
            document.data = _plain(node, (), document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise SuiteError(f"not YAML: {problem}", file, mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SuiteError(
            f"a suite must be text, got the control character #x{error.character:04x}", file, line
        ) from None
    return document


def _compose(text: str, file: str) -> Node | None:
    """The single document's node tree, after a look at the events for what a suite may not hold."""
    documents = depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise SuiteError("anchors and aliases are not part of a suite; write the value out", file, line)
        if tag := getattr(event, "tag", None):
            raise SuiteError(f"the tag '{tag}' is not part of a suite; remove it", file, line)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > LIMIT_DEPTH:  # the parser's time grows with the square of the depth, so it must not get far
            raise SuiteError("nested too deeply to be a suite", file, line)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise SuiteError("a suite must be one YAML document, got a second '---'", file, line)
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _plain(node: Node, path: Path, document: Document) -> Any:
    document.lines[path] = node.start_mark.line + 1
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if isinstance(node, SequenceNode):
        return [_plain(item, (*path, index), document) for index, item in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise SuiteError("a key must be a word, got a list or a mapping", document.file, line)
        key = key_node.value
        at = (*path, key)
        if key in mapping:
            first = document.key_lines[at]
            raise SuiteError(f"{dotted(at)}: the key is given twice, first on line {first}", document.file, line)
        document.key_lines[at] = line
        mapping[key] = _plain(value_node, at, document)
    return mapping


def _scalar(node: ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted or a block: always text
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text
