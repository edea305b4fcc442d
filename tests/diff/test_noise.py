"""Session-to-session noise: observed from result files, kept in a file, estimated, and used by the comparison."""

from __future__ import annotations

import errno
import json
import math
import random
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from diff_files import CASES, diff, table, write
from fabench.cli import calibrate_noise
from fabench.diff import load, noise
from fabench.diff.tau import between_cards, between_sessions, pooled
from fabench.errors import RecordError, UsageError

ROW = (CASES[7], "sdpa-flash")


def session(tmp_path, number, *, shift=0.01, model="NVIDIA H200", card="card0", boot=None, driver="580.95", hour=None):
    """A file of one A/A session in which every row has its own offset."""
    rng = random.Random(f"session {number} {shift}")
    factors = {(c, b): math.exp(rng.gauss(0.0, shift)) for c in CASES for b in ("sdpa-flash", "triton-flash", "online")}
    when = f"2026-01-{number + 1:02d}T{hour or 0:02d}:00:00+00:00"
    return write(
        tmp_path / f"s{number}-{card}.jsonl",
        table(f"noise{number}{card}", factors=factors, count=5, noise=0.002),
        session_id=f"s{number}{card}",
        model=model,
        header={"started": when},
        session={"host_hash": "h", "gpu_uuid_hash": card, "boot_id": boot or f"boot{number}"},
        software={"python": "3.12", "torch": "2.11.0", "driver": driver},
    )


@pytest.fixture
def calibration(tmp_path):
    """Seven sessions a day apart, offsets of 1 %."""
    path = tmp_path / "noise" / "calibration-noise.json"
    noise.append(path, [load(session(tmp_path, number)) for number in range(7)])
    return path


def two(tmp_path, factor=1.0, **fields):
    """Old and new, in two sessions."""
    card = {"host_hash": "h", "gpu_uuid_hash": "card0", "boot_id": "b"}
    old = write(tmp_path / "old", table(1), session_id="x", session=card)
    return old, write(tmp_path / "new", table(2, factors={ROW: factor}), session_id="y", session=card, **fields)


def test_the_variance_between_sessions_is_found(calibration):
    found = noise.load(calibration, 6, 3)
    assert found.sessions == 7
    kinds = {(kind, regime) for kind, regime, _ in found.classes}
    assert kinds == {("session", "burst")}
    pooled_tau = np.mean([tau.tau for tau in found.classes.values()])
    assert pooled_tau == pytest.approx(0.01, rel=0.35)


def test_what_rounds_explain_is_not_laid_at_sessions(tmp_path):
    path = tmp_path / "n.json"
    noise.append(path, [load(session(tmp_path, number, shift=0.0)) for number in range(8)])
    assert max(tau.tau for tau in noise.load(path, 6, 3).classes.values()) < 0.0015


def test_a_calibrated_comparison_uses_the_narrow_margin_and_tau(tmp_path, calibration):
    output = diff(*two(tmp_path), "--calibration", calibration, "--csv", tmp_path / "c").output
    assert "margin 1 %: measured in two sessions whose noise is calibrated (24 rows)" in output
    assert f"noise calibration {calibration}: 7 sessions on 1 card, newest 2026-01-07" in output
    assert "UNCALIBRATED" not in output


def test_tau_holds_back_what_the_margin_alone_would_call_a_regression(tmp_path, calibration):
    files = two(tmp_path, factor=1.02)
    assert diff(*files, "--margin", "1%").exit_code == 1
    assert diff(*files, "--calibration", calibration).exit_code in (0, 3)
    explained = diff(*files, "--calibration", calibration, "--explain", load(files[0]).rows[21].row_id).output
    assert "session noise: tau" in explained


def test_a_large_slowdown_is_found_through_tau(tmp_path, calibration):
    assert diff(*two(tmp_path, factor=1.2), "--calibration", calibration).exit_code == 1


def test_too_few_sessions_leave_the_comparison_uncalibrated(tmp_path):
    path = tmp_path / "n.json"
    noise.append(path, [load(session(tmp_path, number)) for number in range(5)])
    output = diff(*two(tmp_path), "--calibration", path).output
    assert "UNCALIBRATED" in output
    assert "5 sessions on 1 card, newest 2026-01-05; too few to calibrate, which takes 6" in output


def test_sessions_are_counted_once_unless_a_boot_or_an_hour_lies_between(tmp_path):
    path = tmp_path / "n.json"
    sides = [load(session(tmp_path, 0, boot="same", hour=h, card=f"c{c}")) for c in range(2) for h in (1, 1, 3)]
    file = noise.append(path, sides)
    assert len(noise.distinct(file.sessions)) == 2  # one a card: the second of each replaced the first
    times = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:20:00+00:00", "2026-01-01T01:30:00+00:00"]
    same = [file.sessions[0].model_copy(update={"started": when, "session_id": when}) for when in times]
    assert [s.started for s in noise.distinct(same)] == [times[0], times[2]]
    booted = [s.model_copy(update={"boot_id": str(i)}) for i, s in enumerate(same)]
    assert len(noise.distinct(booted)) == 3


def test_another_card_of_the_model_needs_three_cards(tmp_path, calibration):
    other = {"session": {"host_hash": "h", "gpu_uuid_hash": "card9", "boot_id": "b"}}
    files = two(tmp_path)
    foreign = write(tmp_path / "foreign", table(2), session_id="z", **other)
    assert "UNCALIBRATED" in diff(files[0], foreign, "--calibration", calibration).output
    more = [load(session(tmp_path, n, card=card)) for card in ("card1", "card2") for n in range(7, 10)]
    noise.append(calibration, more)
    output = diff(files[0], foreign, "--calibration", calibration).output
    assert "margin 1 %: measured on two cards of one model whose noise is calibrated" in output


def test_age_and_driver_are_warned_of(calibration):
    found = noise.load(calibration, 6, 3)
    assert found.warnings(datetime(2026, 1, 20, tzinfo=UTC), "580.95", 30) == []
    old, other = found.warnings(datetime(2026, 3, 1, tzinfo=UTC), "590.1", 30)
    assert "is 53 days old (limit 30)" in old
    assert "driver 580.95, the new file has 590.1" in other


def test_the_cards_own_file_is_found_without_being_named(tmp_path, calibration, monkeypatch):
    folder = tmp_path / "here"
    place = folder / "results" / "nvidia-h200"
    place.mkdir(parents=True)
    (place / "calibration-noise.json").write_text(calibration.read_text())
    files = two(tmp_path)
    monkeypatch.chdir(folder)
    assert "noise calibration results/nvidia-h200/calibration-noise.json" in diff(*files).output


def test_a_file_of_another_card_is_refused_when_named(tmp_path, calibration):
    result = diff(*two(tmp_path, model="NVIDIA H100"), "--calibration", calibration)
    assert result.exit_code == 2
    assert "'--calibration' must be of NVIDIA H100" in result.output


def test_a_file_holds_one_model_of_card(tmp_path, calibration):
    with pytest.raises(UsageError, match="one model of card, NVIDIA H200, got NVIDIA A100"):
        noise.append(calibration, [load(session(tmp_path, 9, model="NVIDIA A100"))])


def test_a_session_measured_again_replaces_itself(tmp_path, calibration):
    before = len(noise.read(calibration).sessions)
    noise.append(calibration, [load(session(tmp_path, 3))])
    assert len(noise.read(calibration).sessions) == before


def test_one_round_or_two_sessions_calibrate_nothing(tmp_path):
    one = write(tmp_path / "one", [row for row in table(1) if row.round == 0])
    with pytest.raises(UsageError, match="2 rounds or more"):
        noise.observe(load(one))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-30], "not JSON"),
        (lambda text: "[]", "is this a noise file"),
        (lambda text: text.replace('"rounds":5', '"rounds":NaN', 1).replace('"rounds": 5', '"rounds": NaN', 1), "NaN"),
        (lambda text: text.replace("2026-01-03T00", "yesterday"), "ISO 8601"),
        (lambda text: text.replace('"mean_ln_ns"', '"mean"', 1), "sessions.0.rows.0"),
        (lambda text: "[" * 100_000, "not JSON"),
        (lambda text: text.replace("fabench-noise/1.0", "fabench-noise/9.0"), "schema"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, calibration, damage, says):
    calibration.write_text(damage(calibration.read_text()))
    with pytest.raises(RecordError) as caught:
        noise.load(calibration, 6, 3)
    assert says in str(caught.value)
    assert diff(*two(tmp_path), "--calibration", calibration).exit_code == 2


def test_the_file_is_json_that_a_person_can_read(calibration):
    data = json.loads(calibration.read_text())
    assert data["schema"] == "fabench-noise/1.0"
    assert data["model"] == "NVIDIA H200"
    assert len(data["sessions"]) == 7


@pytest.mark.parametrize(("ns", "name"), [(1e4, "<100us"), (1e5, "100us-1ms"), (9e6, "1-10ms"), (1e9, ">10ms")])
def test_rows_are_classed_by_time(ns, name):
    assert noise.bucket(ns) == name


def observations(rng, rows, sessions, own, common, card="c"):
    shared = common * rng.standard_normal(sessions)
    return [
        (str(i), card, s, SimpleNamespace(mean_ln_ns=float(x), variance=1e-12, rounds=10))
        for i in range(rows)
        for s, x in enumerate(shared + own * rng.standard_normal(sessions))
    ]


def test_rows_that_move_apart_give_many_degrees_of_freedom_and_rows_that_move_as_one_give_few():
    rng = np.random.default_rng(0)
    apart = [between_sessions(observations(rng, 100, 8, 0.005, 0.0)) for _ in range(20)]
    as_one = [between_sessions(observations(rng, 100, 8, 0.0, 0.005)) for _ in range(20)]
    assert np.median([tau.nu for tau in apart]) > 400
    assert max(tau.nu for tau in as_one) < 7.5
    assert np.mean([tau.tau2 for tau in apart]) == pytest.approx(2.5e-5, rel=0.05)
    assert np.mean([tau.tau2 for tau in as_one]) == pytest.approx(2.5e-5, rel=0.5)
    assert (apart[0].groups, apart[0].rows) == (8, 100)


def test_two_sessions_cannot_show_that_rows_move_apart():
    tau = between_sessions(observations(np.random.default_rng(1), 50, 2, 0.005, 0.0))
    assert tau.nu == 1.0


def test_sessions_of_several_cards_are_centred_on_their_own_card():
    rng = np.random.default_rng(2)
    both = observations(rng, 50, 6, 0.004, 0.0, "a")
    for row, _, s, numbers in observations(rng, 50, 6, 0.004, 0.0, "b"):
        both.append((row, "b", s + 6, SimpleNamespace(**{**vars(numbers), "mean_ln_ns": numbers.mean_ln_ns + 0.3})))
    tau = between_sessions(both)
    assert tau.tau == pytest.approx(0.004, rel=0.1)
    assert tau.groups == 12


def test_cards_that_differ_widen_the_variance_between_cards():
    rng, all_cards = np.random.default_rng(3), []
    for number, card in enumerate("abcd"):
        for row, _, s, numbers in observations(rng, 40, 4, 0.002, 0.0, card):
            moved = numbers.mean_ln_ns + 0.01 * rng.standard_normal()
            all_cards.append((row, card, 10 * number + s, SimpleNamespace(mean_ln_ns=moved, variance=0, rounds=10)))
    within = between_sessions(all_cards)
    across = between_cards(all_cards, within)
    assert across.groups == 4
    assert across.tau2 > within.tau2


def test_a_row_seen_once_says_nothing():
    assert between_sessions(observations(np.random.default_rng(4), 10, 1, 0.01, 0.0)) is None


def test_pooling_means_the_variances_of_units():
    block = np.array([[0.3, -0.3], [0.1, -0.1]])
    assert pooled([block])[0] == pytest.approx((2 * 0.09 + 2 * 0.01) / 2)


def test_the_command_adds_files_and_tells_what_is_known(tmp_path, capsys):
    from fabench.cli.calibrate_noise import calibrate_noise

    out = tmp_path / "n.json"
    files = [str(session(tmp_path, number)) for number in range(6)]
    calibrate_noise(files[:3], out=out)
    first = capsys.readouterr().out
    assert "3 sessions on 1 card" in first
    assert "UNCALIBRATED: needs 6 sessions that a boot or an hour lies between" in first
    calibrate_noise(files[3:], out=out)
    second = capsys.readouterr().out
    assert "between sessions, burst, 100us-1ms: tau" in second
    assert "from 6 sessions of" in second


def test_the_command_measures_a_session_where_no_file_is_named(tmp_path, monkeypatch, capsys):
    from fabench import request as asking
    from fabench import runner
    from fabench.cli.calibrate_noise import calibrate_noise

    asked = []

    def prepare(request):
        asked.append(request)
        return request

    def execute(ready, notify):
        return [SimpleNamespace(path=session(tmp_path, 1), interrupted=request.rounds == 3) for request in ready]

    monkeypatch.setattr(asking, "prepare", prepare)
    monkeypatch.setattr(runner, "execute", execute)
    monkeypatch.chdir(tmp_path)
    calibrate_noise(suite="training", rounds=7, where="N=4096")
    assert (asked[0].suite, asked[0].rounds, asked[0].where) == ("training", 7, "N=4096")
    assert "results/nvidia-h200/calibration-noise.json: NVIDIA H200, 1 session on" in capsys.readouterr().out
    with pytest.raises(UsageError, match="was interrupted"):
        calibrate_noise(rounds=3)


def test_calibrate_is_a_command(tmp_path):
    from click.testing import CliRunner

    from fabench.cli import main

    files = [str(session(tmp_path, number)) for number in range(2)]
    out = tmp_path / "n.json"
    done = CliRunner().invoke(main, ["calibrate", "--noise", *files, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 sessions on 1 card" in done.output
    refused = CliRunner().invoke(main, ["calibrate", *files])
    assert refused.exit_code == 2
    assert "which only --noise takes" in refused.output


def test_a_session_that_began_at_no_time_is_refused_and_spoils_no_file(tmp_path, calibration):
    before = calibration.read_bytes()
    odd = write(tmp_path / "odd", table(1), session_id="odd", header={"started": "yesterday"})
    with pytest.raises(UsageError, match="must have begun at an ISO 8601 time"):
        noise.append(calibration, [load(odd)])
    assert calibration.read_bytes() == before


def test_a_full_disk_leaves_the_noise_file_as_it_was(tmp_path, calibration, monkeypatch):
    def full(path, text, encoding):
        path.write_bytes(text.encode()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    before = calibration.read_bytes()
    side = load(write(tmp_path / "more", table(1), session_id="more"))
    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(UsageError, match="No space left on device"):
        noise.append(calibration, [side])
    assert calibration.read_bytes() == before
    assert not list(calibration.parent.glob("*.tmp"))


def test_classes_are_listed_by_time(tmp_path, calibration):
    text = calibrate_noise.describe(noise.load(calibration, 6, 3))
    assert [line.split(", ")[2].split(":")[0] for line in text.splitlines()[1:]] == [
        name for name, _ in noise.BUCKETS_NS if f" {name}:" in text
    ]
