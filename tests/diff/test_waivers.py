"""Waivers: what they excuse, until when, and how a faulty file is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from diff_files import CASES, diff, failing, table, write
from fabench import diff as package
from fabench.diff.waivers import load
from fabench.errors import LocatedError

GOOD = """
[[waiver]]
row = "online N=4096 *"
bound = "8%"
expires = 2099-12-31
reason = "new tile scheduler"
"""
ROW = (CASES[4], "online")


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "o", table(1)), write(tmp_path / "n", table(2, factors={ROW: 1.05}))


def toml(tmp_path, text):
    path = tmp_path / "waivers.toml"
    path.write_text(text)
    return path


def test_without_a_waiver_the_row_fails(files):
    assert diff(*files).exit_code == 1


def test_a_waived_row_is_shown_and_does_not_fail(tmp_path, files):
    result = diff(*files, "--waivers", toml(tmp_path, GOOD))
    assert result.exit_code == 0
    assert "REGRESSED (waived)" in result.output
    assert "waived: new tile scheduler (until 2099-12-31)" in result.output
    assert "(excuses 1 row)" in result.output
    assert "1 REGRESSED" in result.output


def test_a_slowdown_past_the_bound_fails(tmp_path, files):
    result = diff(*files, "--waivers", toml(tmp_path, GOOD.replace("8%", "3%")))
    assert result.exit_code == 1
    assert "excuses no row" in result.output


def test_a_waiver_that_matches_no_row_is_not_taken_for_one_that_is_not_needed(tmp_path, files):
    output = diff(*files, "--waivers", toml(tmp_path, GOOD.replace("online", "onlien"))).output
    assert "(matches no row)" in output
    needless = toml(tmp_path, GOOD.replace("online N=4096", "online N=1024"))
    assert "(excuses no row)" in diff(*files, "--waivers", needless).output


def test_a_reason_of_several_lines_is_one_line_that_no_ci_server_obeys(tmp_path, files):
    text = GOOD.replace('"new tile scheduler"', '"""new\n::error::tile\n scheduler"""')
    output = diff(*files, "--waivers", toml(tmp_path, text), "--annotations").output
    assert "new ::error::tile scheduler" in output
    assert not any(line.startswith("::error::tile") for line in output.splitlines())


def test_an_expired_waiver_excuses_nothing_and_says_so(tmp_path, files):
    result = diff(*files, "--waivers", toml(tmp_path, GOOD.replace("2099", "2020")))
    assert result.exit_code == 1
    assert "EXPIRED, excuses nothing" in result.output


def test_a_waiver_holds_through_its_last_day():
    from fabench.diff.waivers import Waiver

    waiver = Waiver("*", None, ("regressed",), 0.1, date(2026, 5, 1), "r", "p")
    assert not waiver.expired(date(2026, 5, 1))
    assert waiver.expired(date(2026, 5, 2))


def test_expiry_is_judged_by_the_day_of_the_comparison(tmp_path, files):
    waivers = load(toml(tmp_path, GOOD.replace("2099-12-31", "2026-05-01")))
    sides = [package.load(path) for path in files]
    codes = []
    for day in (1, 2):
        now = datetime(2026, 5, day, tzinfo=UTC)
        codes.append(package.judge(*sides, package.Options(waivers=waivers, now=now)).gate.code)
    assert codes == [0, 1]


@pytest.mark.parametrize(
    "about",
    ['where = "backend=online,N=4096,causal=false"', 'row = "ROW_ID"', 'row = "online *"\nwhere = "N>2048"'],
)
def test_a_row_is_named_by_condition_id_or_both(tmp_path, files, about):
    from fabench.case import row_id

    text = GOOD.replace('row = "online N=4096 *"', about.replace("ROW_ID", row_id(*ROW)))
    assert diff(*files, "--waivers", toml(tmp_path, text)).exit_code == 0


def test_a_waiver_for_slowness_excuses_no_broken_row(tmp_path, files):
    rows = [r for r in table(2) if (r.key["Nq"], r.key["causal"], r.backend) != (4096, False, "online")]
    broken = write(tmp_path / "b", rows + failing(*ROW, "wrong_result"))
    assert diff(files[0], broken, "--waivers", toml(tmp_path, GOOD)).exit_code == 1
    allowed = GOOD + 'verdicts = ["regressed", "broken"]\n'
    assert diff(files[0], broken, "--waivers", toml(tmp_path, allowed)).exit_code == 0
    missing = write(tmp_path / "m", rows)
    assert diff(files[0], missing, "--waivers", toml(tmp_path, allowed)).exit_code == 1


def test_a_waiver_of_broken_rows_needs_no_bound(tmp_path, files):
    text = GOOD.replace('bound = "8%"', 'verdicts = ["broken"]')
    assert len(load(toml(tmp_path, text))) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[waiver]\n", "not TOML"),
        ('title = "x"\n', "must hold [[waiver]] tables and nothing else"),
        ("waiver = 3\n", "must hold [[waiver]] tables"),
        (GOOD.replace("row", "rwo"), "unknown key 'rwo'; did you mean 'row'?"),
        (GOOD.replace('row = "online N=4096 *"', ""), "must say what it is about"),
        (GOOD.replace('reason = "new tile scheduler"', ""), "'reason' is missing"),
        (GOOD.replace('"new tile scheduler"', '" "'), "'reason' must be a text"),
        (GOOD.replace("2099-12-31", '"2099-12-31"'), "'expires' must be a date"),
        (GOOD.replace("2099-12-31", "2099-12-31T00:00:00"), "'expires' must be a date"),
        (GOOD.replace("expires = 2099-12-31", ""), "'expires' must be a date"),
        (GOOD.replace('bound = "8%"', ""), "'bound' is missing"),
        (GOOD.replace('"8%"', '"much"'), "'bound' must be a share between 0 and 100 %"),
        (GOOD.replace('"8%"', "8"), "'bound' must be a share"),
        (GOOD + 'verdicts = ["slow"]\n', "'verdicts' must be a list of regressed, broken"),
        (GOOD + "verdicts = []\n", "'verdicts' must be a list"),
        (GOOD + 'where = "N>>4"\n', "'where': "),
        (GOOD + 'where = "M=4"\n', "unknown key 'M'"),
    ],
)
def test_a_faulty_file_is_refused_with_its_place(tmp_path, files, text, says):
    path = toml(tmp_path, text)
    with pytest.raises(LocatedError) as caught:
        load(path)
    assert says in str(caught.value)
    assert "waivers.toml" in str(caught.value)
    result = diff(*files, "--waivers", path)
    assert result.exit_code == 2


def test_a_file_that_is_not_there_is_refused(tmp_path, files):
    assert diff(*files, "--waivers", tmp_path / "none.toml").exit_code == 2


def test_every_waiver_is_listed_used_or_not(tmp_path, files):
    unused = GOOD.replace("online N=4096 *", "nothing like it").replace("scheduler", "other")
    output = diff(*files, "--waivers", toml(tmp_path, GOOD + unused)).output
    assert "(excuses 1 row)" in output
    assert "(matches no row)" in output
