"""`fabench merge`: shards and rounds of one suite in one file, and what cannot be joined."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import resultfiles as rf
from diff_files import CASES, diff, table, write
from fabench.cli import main
from fabench.resultfile import read


def merge(*arguments):
    return CliRunner().invoke(main, ["merge", *map(str, arguments)], catch_exceptions=False)


def shard(tmp_path, index, *, of=2, seed=1, **fields):
    head = {"filter": {"shard": [index, of]}, **fields.pop("header", {})}
    rows = table(seed, cases=CASES[index - 1 :: of], count=5)
    return write(tmp_path / f"shard{index}.jsonl", rows, session_id=f"s{index}", header=head, **fields)


def test_all_shards_make_the_whole_file(tmp_path):
    out = tmp_path / "out.jsonl"
    done = merge(shard(tmp_path, 1), shard(tmp_path, 2), "--out", out)
    assert done.exit_code == 0
    assert "120 rows of 2 files, 5 rounds" in done.output
    merged = read(out)
    assert merged.complete
    assert merged.header.filter == {}
    assert merged.header.planned_rows == 120
    assert merged.header.rounds == 5
    assert {env.session_id for env in merged.envs.values()} == {"s1", "s2"}
    assert len(merged.canaries) == 2
    whole = write(tmp_path / "whole.jsonl", table(1, count=5))
    assert diff(whole, out).exit_code == 0


def test_some_shards_stay_shards(tmp_path):
    out = tmp_path / "out.jsonl"
    assert merge(shard(tmp_path, 1, of=3), shard(tmp_path, 3, of=3), "--out", out).exit_code == 0
    assert read(out).header.filter == {"shard": [[1, 3], [3, 3]]}
    whole = tmp_path / "all.jsonl"
    assert merge(out, shard(tmp_path, 2, of=3), "--out", whole).exit_code == 0
    assert read(whole).header.filter == {}


def test_the_samples_survive(tmp_path):
    first = shard(tmp_path, 1)
    merge(first, shard(tmp_path, 2), "--out", tmp_path / "out.jsonl")
    before, after = read(first).rows[0], read(tmp_path / "out.jsonl").rows[0]
    assert before == after


def rounds_file(tmp_path, name, seed, session_id, **fields):
    return write(tmp_path / name, table(seed, count=3), session_id=session_id, **fields)


def test_rounds_of_two_sessions_are_refused_until_they_are_renumbered(tmp_path):
    files = [rounds_file(tmp_path, name, name, name) for name in ("a", "b", "c")]
    refused = merge(*files, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "round 0 attempt 0 must be in one file" in refused.output
    assert "--renumber" in refused.output
    assert not (tmp_path / "out").exists()
    done = merge(*files, "--out", tmp_path / "out", "--renumber")
    assert done.exit_code == 0
    merged = read(tmp_path / "out")
    assert sorted({row.round for row in merged.rows}) == list(range(9))
    assert merged.header.rounds == 9
    assert merged.header.planned_rows == 3 * 72


def test_what_cannot_be_one_file_is_not_sent_on_to_renumber(tmp_path):
    sides = [rounds_file(tmp_path, side, side, "s", header={"ab_side": side}) for side in "ab"]
    refused = merge(*sides, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "must have one side of an --ab run, got a and b" in refused.output
    divided = merge(shard(tmp_path, 1), shard(tmp_path, 2, of=3), "--out", tmp_path / "out")
    assert "must be shards of one division, got 1/2, 2/3" in divided.output


def test_a_truncated_file_is_refused_without_naming_an_option_that_merge_lacks(tmp_path):
    files = [shard(tmp_path, 1), shard(tmp_path, 2)]
    files[1].write_text("".join(files[1].read_text().splitlines(keepends=True)[:-1]))
    refused = merge(*files, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "complete it with 'fabench run --resume'" in refused.output
    assert "--allow-partial" not in refused.output


def test_one_file_given_twice_is_refused(tmp_path):
    file = shard(tmp_path, 1)
    assert merge(file, file, "--out", tmp_path / "out").exit_code == 2


def test_one_measurement_never_counts_as_two_rounds(tmp_path):
    """Renumbered copies would look like independent rounds and make any difference significant."""
    file, other = (rounds_file(tmp_path, name, name, name) for name in ("a", "b"))
    twice = merge(file, file, "--out", tmp_path / "out", "--renumber")
    assert twice.exit_code == 2
    assert "one measurement must not count as two rounds" in twice.output
    both = tmp_path / "both.jsonl"
    assert merge(file, other, "--out", both, "--renumber").exit_code == 0
    again = merge(both, other, "--out", tmp_path / "out", "--renumber")
    assert again.exit_code == 2
    assert f"has the same samples in '{both}' and '{other}'" in again.output
    assert not (tmp_path / "out").exists()


def test_files_of_two_cards_are_refused(tmp_path):
    files = [shard(tmp_path, 1), shard(tmp_path, 2, model="NVIDIA H100")]
    refused = merge(*files, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "must be of one kind of hardware to be one file, got model NVIDIA H200 -> NVIDIA H100" in refused.output
    assert not (tmp_path / "out").exists()


def test_a_pipe_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    refused = merge(shard(tmp_path, 1), tmp_path / "pipe", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "must be a regular file, because it is read twice" in refused.output


def test_files_of_two_suites_are_refused(tmp_path):
    other = shard(tmp_path, 2, header={"suite_hash": "ffff"})
    refused = merge(shard(tmp_path, 1), other, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "must have one suite, got example 0123456789ab and example ffff" in refused.output


def test_both_sides_of_an_ab_run_are_refused(tmp_path):
    files = [shard(tmp_path, 1, header={"ab_side": "a"}), shard(tmp_path, 2, header={"ab_side": "b"})]
    refused = merge(*files, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "one side of an --ab run" in refused.output


def test_two_versions_of_fabench_are_refused(tmp_path):
    files = [shard(tmp_path, 1), shard(tmp_path, 2, header={"harness": {"version": "0.2.0"}})]
    assert "must have one fabench version" in merge(*files, "--out", tmp_path / "out").output


def test_two_commits_are_joined_and_neither_is_claimed(tmp_path):
    files = [shard(tmp_path, i, header={"harness": {"version": "0.1.0", "git_sha": f"{i}"}}) for i in (1, 2)]
    assert merge(*files, "--out", tmp_path / "out").exit_code == 0
    assert read(tmp_path / "out").header.harness.git_sha is None


@pytest.mark.parametrize(
    "filters",
    [
        [{"where": "N>4"}, {}],
        [{"where": "N>4"}, {"where": "N>5"}],
        [{"shard": [1, 2]}, {}],
        [{"shard": [1, 2]}, {"shard": [1, 3]}],
    ],
)
def test_filters_that_cannot_be_joined_are_refused(tmp_path, filters):
    files = []
    for index, narrowed in enumerate(filters, 1):
        rows = table(1, cases=CASES[index - 1 :: 2], count=5)
        files.append(write(tmp_path / str(index), rows, session_id=f"s{index}", header={"filter": narrowed}))
    refused = merge(*files, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "'where'" in refused.output or "shards of one division" in refused.output


def test_backends_run_apart_are_joined(tmp_path):
    files = [
        write(
            tmp_path / name, table(1, backends=[name], count=5), session_id=name, header={"filter": {"backend": [name]}}
        )
        for name in ("online", "sdpa-flash")
    ]
    assert merge(*files, "--out", tmp_path / "out").exit_code == 0
    assert read(tmp_path / "out").header.filter == {"backend": ["online", "sdpa-flash"]}


def test_a_stopped_part_makes_the_whole_incomplete(tmp_path):
    first = shard(tmp_path, 1)
    rf.mutate(first, lambda lines: [*lines[:-1], {**lines[-1], "complete": False}])
    done = merge(first, shard(tmp_path, 2), "--out", tmp_path / "out")
    assert "not complete" in done.output
    assert not read(tmp_path / "out").complete


def test_attempts_are_kept_and_counted(tmp_path):
    first = shard(tmp_path, 1)

    def retry(lines):
        rows = [line for line in lines if line["rec"] == "row"]
        again = {**rows[0], "attempt": 1}
        lines[-1]["rows_written"] += 1
        return [*lines[:-1], again, lines[-1]]

    rf.mutate(first, retry)
    merge(first, shard(tmp_path, 2), "--out", tmp_path / "out")
    merged = read(tmp_path / "out")
    assert merged.rows_written == 121
    assert len(merged.rows) == 120
    assert merged.footer.status_counts == {"ok": 120}


def test_a_damaged_part_is_refused_and_nothing_is_written(tmp_path):
    first = shard(tmp_path, 1)
    first.write_bytes(first.read_bytes()[:-5])
    refused = merge(first, shard(tmp_path, 2), "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "shard1.jsonl" in refused.output
    assert not (tmp_path / "out").exists()


def test_a_newer_schema_is_refused_because_fields_would_be_lost(tmp_path):
    first = shard(tmp_path, 1)
    rf.mutate(first, lambda lines: [{**lines[0], "schema": "fabench/1.9"}, *lines[1:]])
    assert "fields would be lost" in merge(first, shard(tmp_path, 2), "--out", tmp_path / "out").output


def test_the_output_must_not_exist_and_one_file_is_not_merged(tmp_path):
    files = [shard(tmp_path, 1), shard(tmp_path, 2)]
    assert "must not exist yet" in merge(*files, "--out", files[0]).output
    assert "two files or more" in merge(files[0], "--out", tmp_path / "out").output
    (tmp_path / "no").write_text("a file where the folder should be")
    assert "cannot be written" in merge(*files, "--out", tmp_path / "no" / "out").output


def test_one_env_id_for_two_environments_is_refused(tmp_path):
    files = [shard(tmp_path, 1), shard(tmp_path, 2)]

    def clash(lines):
        for line in lines:
            if "env_id" in line:
                line["env_id"] = "env-s1"
        return lines

    rf.mutate(files[1], clash)
    assert "must name one env record" in merge(*files, "--out", tmp_path / "out").output
