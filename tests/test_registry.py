"""Backends are found in fabench_backends, in entry points and in files; names are chosen by glob."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from fabench import registry
from fabench.errors import BackendError
from plain_attention import CPU

NAMES = ["naive", "online", "sdpa-flash", "sdpa-math"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    yield write
    for name in [name for name in sys.modules if name.startswith("fabench_file_")]:
        del sys.modules[name]


def test_every_shipped_backend_has_a_name_and_a_summary() -> None:
    found = registry.shipped()
    assert {"naive", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-auto"} <= set(found)
    assert all(name == backend.name for name, backend in found.items())
    assert all(backend.facts.summary for backend in found.values())


def test_patterns_choose_names_in_their_own_order_and_once() -> None:
    assert registry.select(["sdpa-*", "naive", "sdpa-math"], NAMES) == ["sdpa-flash", "sdpa-math", "naive"]
    assert registry.select([], NAMES) == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("navie", "'navie' must be a backend, got none of .*; did you mean 'naive'"),
        ("flex*", "'flex\\*' must match a backend, got none of naive, online, sdpa-flash, sdpa-math"),
    ],
)
def test_an_unknown_name_and_an_empty_glob_are_errors(pattern: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        registry.select([pattern], NAMES)


def test_a_named_function_of_a_file_is_a_bare_backend_named_after_it(write) -> None:
    [backend] = registry.from_file(write("def fast(q, k, v, causal=False): return q") + ":fast")
    assert backend.name == "fast"
    assert backend.facts.bare
    assert backend.facts.causal


def test_a_file_without_a_function_named_offers_what_it_decorates(write) -> None:
    path = write(
        "import fabench\n"
        "from fabench_backends.naive import NAIVE\n"
        "@fabench.backend(name='one')\ndef a(q, k, v): return q\n"
        "@fabench.backend(name='two', dtypes=('bf16',))\ndef b(q, k, v): return q\n"
        "def attention(q, k, v): return q\n"
    )
    assert [backend.name for backend in registry.from_file(path)] == ["one", "two"]


def test_else_it_offers_its_function_attention(write) -> None:
    [backend] = registry.from_file(write("def attention(q, k, v): return q\ndef other(q, k, v): return q"))
    assert backend.name == "attention"


def test_a_file_may_import_its_neighbours_and_hold_dataclasses(write) -> None:
    write("SCALE = 3", "neighbour_of_mine.py")
    [backend] = registry.from_file(
        write(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "from neighbour_of_mine import SCALE\n"
            "@dataclass\nclass Tile:\n    rows: int\n"
            "def attention(q, k, v): return q * SCALE\n"
        )
    )
    assert backend(1, 2, 3) == 3  # type: ignore[operator]


def test_a_neighbour_cannot_stand_in_for_a_module_of_python(write) -> None:
    write("raise RuntimeError('the wrong one')", "colorsys.py")
    sys.modules.pop("colorsys", None)
    assert registry.from_file(write("import colorsys\ndef attention(q, k, v): return colorsys.rgb_to_hsv(q, k, v)"))


def test_a_class_derived_from_backend_is_made_when_named(write) -> None:
    [backend] = registry.from_file(
        write("import fabench\nclass Mine(fabench.Backend):\n    facts = fabench.Facts(name='derived')\n") + ":Mine"
    )
    assert backend.name == "derived"


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (
            "def attention(q, k, v): return q",
            ":atention",
            "'atention' must be defined in .*mine.py, got no such name; did",
        ),
        ("attention = 3", ":attention", "'attention' must be a function or a fabench.Backend, got int"),
        ("def mine(q, k, v): return q", "", "got the functions mine; to use mine, write .*mine.py:mine"),
        ("x = 1", "", "must define a function named attention or decorate one with @fabench.backend, got no function"),
        ("def attention(q, k, v)\n  return q", "", "cannot be loaded: SyntaxError: .*"),
        ("\nimport not_a_module_at_all", "", "cannot be loaded: ModuleNotFoundError: No module .*line 2"),
        ("import sys\nsys.exit(3)", "", "cannot be loaded: SystemExit: 3 .line 2"),
        (
            "import fabench\n@fabench.backend(dtype='x')\ndef attention(q, k, v): ...",
            "",
            "cannot be loaded: 'dtype' must",
        ),
        ("def attention(q): ...", "", "must take q, k and v"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(write, text: str, function: str, message: str) -> None:
    with pytest.raises(BackendError, match=message) as caught:
        registry.from_file(write(text) + function)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py", "'nowhere.py' must be a Python file, got no such file"),
        ("nowhere.py:fn", "'nowhere.py' must be a Python file"),
        ("nowhere", "must be FILE.py or FILE.py:function, got no file name that ends in .py"),
        ("nowhere.py:1+1", "got '1\\+1' as the function"),
    ],
)
def test_a_spec_that_names_no_file_is_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        registry.from_file(spec)


def test_a_folder_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").mkdir()
    with pytest.raises(BackendError, match=r"kernels\.py' must be a Python file, got a folder"):
        registry.from_file(str(tmp_path / "kernels.py"))


def test_two_backends_of_one_name_are_an_error() -> None:
    found = registry.shipped()
    with pytest.raises(BackendError, match=r"'naive' of mine\.py must have a name of its own"):
        registry.add(found, [registry.BrokenBackend("naive", "")], "mine.py")
    registry.add(found, [found["naive"]], "again")


def test_entry_points_are_backends_and_a_broken_one_stays_in_the_table(monkeypatch: pytest.MonkeyPatch, write) -> None:
    write("def kernel(q, k, v, causal=False): return q", "entry_kernels.py")
    sys.path.insert(0, str(Path(write("", "empty.py")).parent))
    points = [
        importlib.metadata.EntryPoint("theirs", "entry_kernels:kernel", registry.ENTRY_POINTS),
        importlib.metadata.EntryPoint("broken", "entry_kernels_gone:kernel", registry.ENTRY_POINTS),
        importlib.metadata.EntryPoint("cuda-module", "fabench_backends.naive", registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else []
    )
    found = registry.shipped()
    assert found["theirs"].facts.causal
    assert found["theirs"].unavailable(CPU) is None
    reason = found["broken"].unavailable(CPU)
    assert reason is not None
    assert "cannot load entry_kernels_gone:kernel: ModuleNotFoundError" in reason


def test_every_shipped_suite_names_backends_that_are_there() -> None:
    from fabench import suite

    names = registry.shipped()

    for path in suite.shipped().values():
        loaded = suite.load(str(path))
        assert registry.select(loaded.backends, names), path.name
        assert loaded.baseline is None or loaded.baseline in names, path.name
