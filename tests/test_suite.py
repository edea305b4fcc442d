"""A suite is read once and strictly; its sweep is the product of its axes."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabench import suite
from fabench.case import Case
from fabench.errors import SuiteError


def read(text: str | bytes) -> suite.Suite:
    raw = text if isinstance(text, bytes) else textwrap.dedent(text).lstrip("\n").encode()
    return suite.from_bytes(raw, "suite.yaml")


def error(text: str | bytes) -> str:
    with pytest.raises(SuiteError) as caught:
        read(text)
    return str(caught.value)


def is_suite_or_sentence(raw: bytes) -> bool:
    """True if `raw` is read, or refused in one line that names the file; any other exception passes through."""
    try:
        suite.from_bytes(raw, "suite.yaml")
    except SuiteError as caught:
        return str(caught).startswith("suite.yaml:") and "\n" not in str(caught)
    return True


FULL = """
    name: example
    description: one line
    axes:
      N: [1024, 4096]
      d: [64, 128]
      causal: [false, true]
      dtype: [bf16]
      batch: 2
      heads: 16
      direction: [forward]
    backends: [naive, "sdpa-*", flash-attn]
    baseline: sdpa-flash
    exclude: ['backend=naive,N>=32768']
    measure: {regime: burst, rounds: 1, seconds: 0.5}
    parity: {reference: auto}
"""


def test_the_sweep_is_the_product_in_the_order_written():
    example = read(FULL)

    assert [(c.Nq, c.Nk, c.d, c.causal) for c in example.cases] == [
        (N, N, d, causal) for N, d, causal in itertools.product((1024, 4096), (64, 128), (False, True))
    ]
    assert (example.name, example.description, example.baseline) == ("example", "one line", "sdpa-flash")
    assert example.backends == ("naive", "sdpa-*", "flash-attn")
    assert [str(condition) for condition in example.exclude] == ["backend=naive,N>=32768"]
    assert (example.measure.regime, example.measure.rounds, example.measure.seconds) == ("burst", 1, 0.5)
    assert (example.parity.reference, example.notes) == ("auto", ())


def test_the_first_axis_written_is_the_outermost():
    swapped = read("name: x\naxes: {causal: [true, false], d: [64, 128], N: 256}")
    assert [(c.causal, c.d) for c in swapped.cases] == [(True, 64), (True, 128), (False, 64), (False, 128)]


def test_only_a_name_is_required_and_every_default_is_in_the_resolved_suite():
    least = read("name: least")

    assert least.cases == (Case(batch=1, heads=16, Nq=1024, Nk=1024, d=64),)
    assert least.given == {"name"}
    assert least.resolved == {
        "name": "least",
        "description": "",
        "axes": {
            "N": [1024],
            "d": [64],
            "dv": [None],
            "causal": [False],
            "alignment": ["bottom_right"],
            "dtype": ["bf16"],
            "batch": [1],
            "heads": [16],
            "kv_heads": [None],
            "direction": ["forward"],
            "window": [None],
            "softcap": [0.0],
            "scale": [None],
            "layout": ["bhsd"],
            "inputs": ["normal"],
            "seed": [0],
        },
        "backends": ["*"],
        "baseline": None,
        "exclude": [],
        "measure": {"regime": "burst", "rounds": 1, "seconds": 0.5},
        "parity": {"reference": "auto"},
    }
    assert json.loads(json.dumps(least.resolved)) == least.resolved


def test_tokens_and_hidden_are_divided_by_n_and_d():
    cases = read("name: x\naxes: {tokens: 16384, hidden: 2048, N: [512, 16384], d: [64, 256]}").cases
    assert [(c.Nq, c.d, c.batch, c.heads) for c in cases] == [
        (512, 64, 32, 32),
        (512, 256, 32, 8),
        (16384, 64, 1, 32),
        (16384, 256, 1, 8),
    ]


def test_queries_and_keys_may_have_lengths_of_their_own():
    cases = read("name: x\naxes: {Nq: [1, 3], Nk: [5, 7], causal: true, alignment: [bottom_right, top_left]}").cases
    assert {(c.Nq, c.Nk, c.alignment) for c in cases} == set(
        itertools.product((1, 3), (5, 7), ("bottom_right", "top_left"))
    )


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("null", [None]),
        ("[64, 0]", [(64, 0)]),
        ("[[64, 0], [128, -1]]", [(64, 0), (128, -1)]),
        ("[null, [64, 0]]", [None, (64, 0)]),
        ("[-1, -1]", [None]),
    ],
)
def test_a_window_is_null_a_pair_or_a_list_of_these(text, windows):
    assert [case.window for case in read(f"name: x\naxes: {{window: {text}}}").cases] == windows


def test_every_axis_reaches_the_case():
    (case,) = read("""
        name: x
        axes: {Nq: 3, Nk: 5, d: 8, dv: 16, causal: true, alignment: top_left, dtype: fp32, batch: 3, heads: 4,
               kv_heads: 2, direction: backward, window: [2, 0], softcap: 30, scale: 0.5, layout: bshd, inputs: sink,
               seed: 7}
    """).cases
    assert case == Case(
        batch=3, heads=4, kv_heads=2, Nq=3, Nk=5, d=8, dv=16, causal=True, alignment="top_left", dtype="fp32",
        direction="backward", window=(2, 0), softcap=30.0, scale=0.5, layout="bshd", inputs="sink", seed=7,
    )  # fmt: skip


def test_axes_that_collapse_into_one_case_merge_with_a_note():
    merged = read("name: x\naxes: {N: 64, causal: [false, true], alignment: [bottom_right, top_left]}")
    assert len(merged.cases) == 2
    assert merged.notes == (
        (
            "2 of 4 combinations differ from another only in alignment, which changes nothing there, and are merged "
            "(the first: N=64 d=64 full bf16 batch=1 heads=16 forward)"
        ),
    )
    scales = read("name: x\naxes: {d: [64, 128], scale: [null, 0.125], dv: [null, 64]}")
    assert len(scales.cases) == 5
    assert [note.split(", which")[0] for note in scales.notes] == [
        "1 of 8 combinations differs from another only in dv",
        "1 of 8 combinations differs from another only in scale",
        "1 of 8 combinations differs from another only in scale and dv",
    ]


AXIS_VALUES = {
    "N": st.integers(0, 9),
    "d": st.sampled_from([8, 16, 64]),
    "dv": st.sampled_from([None, 8, 64]),
    "causal": st.booleans(),
    "alignment": st.sampled_from(["bottom_right", "top_left"]),
    "dtype": st.sampled_from(["fp16", "bf16", "fp32"]),
    "batch": st.integers(1, 3),
    "heads": st.sampled_from([4, 8]),
    "kv_heads": st.sampled_from([None, 1, 2, 4]),
    "direction": st.sampled_from(["forward", "backward", "forward_backward"]),
    "window": st.sampled_from([None, (-1, -1), (2, 0), (1, 1)]),
    "softcap": st.sampled_from([0.0, 30.0]),
    "scale": st.sampled_from([None, 0.125, 1.0]),
    "seed": st.integers(0, 3),
}


@st.composite
def sweeps(draw):
    names = draw(st.lists(st.sampled_from(sorted(AXIS_VALUES)), unique=True, max_size=6))
    return {name: draw(st.lists(AXIS_VALUES[name], min_size=1, max_size=3, unique=True)) for name in names}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(sweeps())
def test_expansion_is_the_product_canonicalised_in_order_each_case_once(axes):
    written = {name: [list(v) if isinstance(v, tuple) else v for v in values] for name, values in axes.items()}
    expanded = read(yaml.safe_dump({"name": "x", "axes": written}, sort_keys=False))

    product = []
    for values in itertools.product(*axes.values()):
        point = {"batch": 1, "heads": 16, "N": 1024, "d": 64, **dict(zip(axes, values, strict=True))}
        point["Nq"] = point["Nk"] = point.pop("N")
        product.append(Case(**point))
    assert list(expanded.cases) == list(dict.fromkeys(product))
    assert bool(expanded.notes) == (len(expanded.cases) < len(product))
    again = read(yaml.safe_dump(expanded.resolved, sort_keys=False))
    assert (again.cases, again.hash) == (expanded.cases, expanded.hash)


def test_the_hash_changes_with_what_is_run_and_not_with_how_it_is_described():
    base = read("name: x\naxes: {N: 64}")
    assert read("description: new\nname: x  # comment\naxes: {'N': [64]}\nmeasure: {rounds: 1}").hash == base.hash
    for other in ("name: y\naxes: {N: 64}", "name: x\naxes: {N: 65}", "name: x\naxes: {N: 64}\nmeasure: {rounds: 2}"):
        assert read(other).hash != base.hash


def test_the_command_line_may_change_the_measurement_only():
    base = read("name: x")
    changed = base.override(regime="graph", rounds=3, seconds=None)
    assert (changed.measure.regime, changed.measure.rounds, changed.measure.seconds) == ("graph", 3, 0.5)
    assert changed.resolved["measure"] == {"regime": "graph", "rounds": 3, "seconds": 0.5}
    assert changed.given == {"name", "measure.regime", "measure.rounds"}
    assert changed.hash != base.hash
    assert base.override(regime=None, rounds=None, seconds=None) == base


def faults() -> dict[str, tuple[str, str]]:
    """Title -> (suite, message), from the golden file."""
    blocks = (Path(__file__).parent / "golden" / "suite_faults.txt").read_text().split("\n=== ")[1:]
    found = {}
    for block in blocks:
        title, _, rest = block.partition("\n")
        text, _, message = rest.rpartition("\n-> ")
        found[title] = (text, message.strip())
    return found


@pytest.mark.parametrize(("text", "message"), [pytest.param(*fault, id=title) for title, fault in faults().items()])
def test_a_fault_is_one_sentence_with_file_line_and_key(text, message):
    assert error(text) == message
    assert "\n" not in message


def test_a_product_that_is_too_large_is_refused_before_it_is_expanded():
    values = list(range(400))
    assert error(f"name: x\naxes:\n  N: {values}\n  seed: {values}\n  d: 64") == (
        "suite.yaml:3: axes: the sweep must be at most 100000 cases, got 400 N x 400 seed = 160000"
    )


def test_a_number_of_thousands_of_digits_is_cut_in_the_message():
    message = error(f"name: x\naxes: {{N: {'9' * 5000}}}")
    assert message == f"suite.yaml:2: axes.N: must be a whole number, got '{'9' * 56}..."


def test_a_tab_is_not_indentation():
    assert error("name: x\naxes:\n\tN: 1").startswith("suite.yaml:3: not YAML: ")


def test_the_fault_on_the_earliest_line_is_told_first():
    assert error("name: x\nmeasure: {rounds: 0}\naxes: {N: -1}").startswith("suite.yaml:2: measure.rounds:")


BINARY = {
    "latin-1": (b"name: x\ndescription: caf\xe9", "suite.yaml:2: a suite must be UTF-8 text, got the byte 0xe9"),
    "gzip": (b"\x1f\x8b\x08\x00abc", "suite.yaml:1: a suite must be UTF-8 text, got the byte 0x8b"),
    "utf-16": ("name: x".encode("utf-16"), "suite.yaml:1: a suite must be UTF-8 text, got the byte 0xff"),
    "a NUL": (b"name: x\nd: \x00", "suite.yaml:2: a suite must be text, got the control character #x0000"),
    "too much": (b"#" * 200_000, "suite.yaml: a suite must be at most 131072 bytes, got more"),
}


@pytest.mark.parametrize("what", BINARY)
def test_binary_rubbish_is_a_sentence(what):
    raw, expected = BINARY[what]
    assert error(raw) == expected


def test_a_byte_order_mark_is_not_part_of_the_suite():
    assert read(b"\xef\xbb\xbfname: x").name == "x"


def test_an_alias_bomb_is_refused_before_it_grows():
    lines = ["name: x", "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghijkl")]
    assert error("\n".join(lines)).startswith("suite.yaml:2: anchors and aliases")


def test_deep_nesting_is_a_sentence():
    for opening, closing in (("[", "]"), ("{a: ", "}")):
        message = error("name: x\naxes: " + opening * 5000 + closing * 5000)
        assert message == "suite.yaml:2: nested too deeply to be a suite"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_a_suite_or_a_suite_error(raw):
    assert is_suite_or_sentence(raw)


PLAIN = st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5)
TREES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["name", "description", "axes", "backends", "baseline", "exclude", "measure", "parity"]),
        TREES | st.dictionaries(st.sampled_from([*suite.Axes.model_fields, "rounds", "regime"]), TREES),
    )
)
def test_any_tree_under_the_real_keys_is_a_suite_or_a_suite_error(tree):
    assert is_suite_or_sentence(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


def test_a_missing_file_a_folder_and_an_unknown_name_are_sentences(tmp_path):
    def message(source: str) -> str:
        with pytest.raises(SuiteError) as caught:
            suite.load(source)
        return str(caught.value)

    names = ", ".join(suite.shipped())
    assert message("no/such.yaml") == "'no/such.yaml' must be a suite file, but there is no such file"
    assert message(str(tmp_path)) == f"'{tmp_path}' must be a suite file, got a folder"
    assert message("smok") == "unknown suite 'smok'; did you mean 'smoke'?"
    assert message("zzz") == f"unknown suite 'zzz'; give a path, or one of {names}"
    assert message("a\0b") == f"unknown suite 'a\\x00b'; give a path, or one of {names}"
    os.mkfifo(tmp_path / "pipe")
    assert message(str(tmp_path / "pipe")) == f"'{tmp_path}/pipe' must be a suite file, got a pipe"


def test_an_unreadable_file_is_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("name: x")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root, as whom a container's tests run, may read any file
    with pytest.raises(SuiteError, match=r"cannot read the suite '.*x\.yaml': Permission denied"):
        suite.load(str(path))


def test_a_file_is_loaded_by_its_path_and_named_so_in_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: mine\naxes: {N: 64}")
    assert suite.load("mine.yaml").name == "mine"
    Path("bad.yaml").write_text("name: mine\naxes: {M: 64}")
    with pytest.raises(SuiteError, match=r"^bad\.yaml:2: axes\.M: unknown key"):
        suite.load("bad.yaml")


SHIPPED = (
    "decode_shaped", "fa2_paper", "fa3_paper", "gqa", "long_context", "odd_shapes", "smoke", "training",
)  # fmt: skip


def test_the_suites_that_are_promised_are_shipped():
    assert tuple(suite.shipped()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_suite_loads_under_its_name_and_says_what_it_is(name):
    loaded = suite.load(name)
    assert loaded.name == name
    assert 0 < len(loaded.description) <= 120
    assert loaded.measure.rounds == 1
    assert bool(loaded.notes) == ("# merged where" in suite.shipped()[name].read_text())


def test_the_wheel_and_the_checkout_both_find_their_suites(tmp_path, monkeypatch):
    package = tmp_path / "fabench"
    (package / "suites").mkdir(parents=True)
    (package / "suites" / "only.yaml").write_text("name: only")
    monkeypatch.setattr(suite, "__file__", str(package / "suite.py"))
    assert list(suite.shipped()) == ["only"]
    assert suite.load("only").name == "only"


def test_the_json_schema_says_what_the_reader_takes():
    schema = suite.json_schema()
    axes = schema["$defs"]["Axes"]
    assert (schema["required"], schema["additionalProperties"], axes["additionalProperties"]) == (
        ["name"],
        False,
        False,
    )
    assert set(axes["properties"]) == set(suite.Axes.model_fields)
    assert all(
        "description" in field or "$ref" in field
        for field in [*schema["properties"].values(), *axes["properties"].values()]
    )
    one, many = axes["properties"]["dtype"]["anyOf"]
    assert one == {"enum": ["fp16", "bf16", "fp32"], "type": "string"}
    assert many == {"items": one, "minItems": 1, "type": "array", "uniqueItems": True}


def test_reading_a_suite_imports_no_torch():
    code = "import sys; from fabench import suite; suite.load('smoke'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_most_cases_are_read_in_seconds():
    large = read("name: x\naxes:\n" + "".join(f"  {a}: {list(range(1, 28))}\n" for a in ("N", "d", "seed")))
    assert len(large.cases) == math.prod((27, 27, 27))
