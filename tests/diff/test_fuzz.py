"""Damage of any kind: exit 2 with the file and, where there is one, the line; never a traceback, never a pass."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import resultfiles as rf
from diff_files import CASES, diff, table, write

FUZZ = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SMALL = {"cases": CASES[:2], "backends": ["sdpa-flash"], "count": 5}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    return write(folder / "old.jsonl", table(1, **SMALL)), write(folder / "new.jsonl", table(2, **SMALL))


def run(files, data: bytes, name: str = "damaged.jsonl"):
    damaged = files[0].parent / name
    damaged.write_bytes(data)
    return [diff(files[0], damaged), diff(damaged, files[1])]


def assert_refused_or_equal(files, data: bytes, whole: bytes) -> None:
    """Either the damage is refused, or what was read still means the same or is told in the verdicts."""
    for result in run(files, data):
        assert result.exit_code in (0, 1, 2, 3)
        assert "Traceback" not in result.output
        if result.exit_code == 2:
            assert re.match(r"Error: .*(damaged\.jsonl|must have rows in common)", result.output), result.output


def test_the_whole_files_pass(files):
    assert diff(*files).exit_code == 0


@FUZZ
@given(cut=st.integers(0, 100_000))
def test_a_file_cut_anywhere_never_passes(files, cut):
    whole = files[1].read_bytes()
    cut %= len(whole) - 1
    for result in run(files, whole[:cut]):
        assert result.exit_code == 2, result.output
        assert "damaged.jsonl" in result.output


@FUZZ
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_byte_replaced_anywhere_gives_no_traceback(files, at, byte):
    whole = files[1].read_bytes()
    at %= len(whole)
    assert_refused_or_equal(files, whole[:at] + bytes([byte]) + whole[at + 1 :], whole)


@FUZZ
@given(at=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=30))
def test_bytes_put_in_anywhere_give_no_traceback(files, at, junk):
    whole = files[1].read_bytes()
    at %= len(whole)
    assert_refused_or_equal(files, whole[:at] + junk + whole[at:], whole)


@FUZZ
@given(junk=st.binary(max_size=400))
def test_a_file_of_anything_is_refused(files, junk):
    for result in run(files, junk):
        assert result.exit_code == 2
        assert "damaged.jsonl" in result.output


@FUZZ
@given(line=st.integers(0, 100), times=st.integers(2, 3))
def test_a_line_repeated_is_refused_with_its_number(files, line, times):
    lines = files[1].read_bytes().splitlines(keepends=True)
    line %= len(lines)
    repeated = [*lines[:line], *([lines[line]] * times), *lines[line + 1 :]]
    kind = json.loads(lines[line])["rec"]
    for result in run(files, b"".join(repeated)):
        if kind in ("env", "canary", "footer"):
            assert result.exit_code in (0, 2)  # the same env, another reading, the same footer again: nothing is lost
        else:
            assert result.exit_code == 2, result.output
            assert re.search(rf"damaged\.jsonl:{line + 2}:", result.output)


@FUZZ
@given(line=st.integers(0, 100))
def test_a_line_left_out_is_refused(files, line):
    lines = files[1].read_bytes().splitlines(keepends=True)
    line %= len(lines)
    kind = json.loads(lines[line])["rec"]
    for result in run(files, b"".join(lines[:line] + lines[line + 1 :])):
        if kind == "canary":
            assert result.exit_code == 0
            assert "no canary was recorded in both files" in result.output
        else:
            assert result.exit_code == 2, result.output


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**40), 10**40), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@FUZZ
@given(line=st.integers(0, 100), which=st.integers(0, 1000), value=values, data=st.data())
def test_any_field_set_to_anything_gives_no_traceback_and_no_pass_by_accident(files, line, which, value, data):
    """A field of another type is refused; a number that is still possible is compared, as any number is."""
    lines = [json.loads(text) for text in files[1].read_text().splitlines()]
    record = lines[line % len(lines)]
    place = record
    path = []
    while True:
        key = list(place)[which % len(place)] if isinstance(place, dict) else which % len(place)
        path.append(key)
        if not isinstance(place[key], dict | list) or not place[key]:
            break
        place = place[key]
    before, place[path[-1]] = place[path[-1]], value
    text = "".join(json.dumps(entry) + "\n" for entry in lines)
    for result in run(files, text.encode()):
        assert "Traceback" not in result.output
        assert result.exit_code in (0, 1, 2, 3)
        wrong_kind = isinstance(value, str | list | dict) and isinstance(before, int | float)
        if wrong_kind and "suite" not in path and "filter" not in path:
            assert result.exit_code == 2, (path, value, result.output)


def test_a_binary_file_is_refused(files):
    for result in run(files, bytes(range(256)) * 40):
        assert result.exit_code == 2


def test_a_deeply_nested_line_is_refused(files):
    for result in run(files, b"[" * 100_000 + b"\n"):
        assert result.exit_code == 2
        assert "damaged.jsonl" in result.output


def test_a_folder_is_refused(files):
    result = diff(files[0], files[0].parent)
    assert result.exit_code == 2
    assert "is a folder" in result.output


def zeros(path, size):
    """A file of as many bytes, which takes no room."""
    path.touch()
    os.truncate(path, size)
    return path


def test_a_line_without_an_end_is_refused_before_memory_is_full(files, tmp_path):
    long = zeros(tmp_path / "long", 2**29)
    result = diff(files[0], long)
    assert result.exit_code == 2
    assert result.output == (f"Error: {long}:1: a line of more than 64 MiB; is this a file that fabench wrote?\n")


@pytest.mark.parametrize("option", ["--waivers", "--calibration"])
def test_an_option_s_file_without_an_end_is_refused_before_memory_is_full(files, option, tmp_path):
    long = zeros(tmp_path / "long", 2**29)
    result = diff(*files, option, long)
    assert result.exit_code == 2
    assert f"'{long}' cannot be read: larger than 256 MiB" in result.output


def test_a_number_of_ten_thousand_digits_is_refused(files):
    lines = files[1].read_text().splitlines()
    lines[5] = lines[5].replace('"attempt":0', '"attempt":' + "9" * 10_000)
    for result in run(files, ("\n".join(lines) + "\n").encode()):
        assert result.exit_code == 2
        assert "damaged.jsonl:6" in result.output


def test_the_reader_sees_damage_in_the_samples_too(files):
    def damage(lines):
        lines[4]["samples_ns"][1] = "fast"
        return lines

    rf.write(files[0].parent / "copy.jsonl", files[1].read_text().splitlines())
    rf.mutate(files[0].parent / "copy.jsonl", damage)
    result = diff(files[0], files[0].parent / "copy.jsonl")
    assert result.exit_code == 2
    assert "copy.jsonl:5: 'row.samples_ns[1]'" in result.output
