"""Writing result files: nothing is lost, and what cannot work is refused before any work is done."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import resultfiles as make
from fabench.errors import InternalError, RecordError
from fabench.resultfile import Writer, read

CASES = [make.case(N) for N in (1024, 2048, 4096)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path in folders that do not exist yet."""
    return tmp_path / "results" / "nvidia-h200" / "run.jsonl"


def start(path: Path, planned_rows: int = 3) -> Writer:
    writer = Writer.create(path, make.header(planned_rows=planned_rows))
    writer.write(make.env())
    return writer


def test_a_finished_file_reads_back_complete(path: Path) -> None:
    with start(path) as writer:
        writer.write(make.canary())
        for case in CASES:
            writer.write(make.row(case))
        writer.finish(complete=True)

    result = read(path)

    assert result.rows == [make.row(case) for case in CASES]
    assert result.complete
    assert result.footer is not None
    assert result.footer.status_counts == {"ok": 3}


def test_each_row_is_on_disk_when_write_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))

    with start(path) as writer:
        writer.write(make.row(CASES[0]))

        assert synced[-1] == path.stat().st_size
        assert make.row(CASES[0]) in read(path, allow_partial=True).rows


def test_an_exit_without_finish_leaves_a_stopped_run(path: Path) -> None:
    def interrupted() -> None:
        with start(path) as writer:
            writer.write(make.row(CASES[0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    result = read(path)

    assert len(result.rows) == 1
    assert not result.complete


def test_a_killed_writer_leaves_a_part_that_resume_completes(path: Path) -> None:
    writer = start(path)
    writer.write(make.row(CASES[0]))
    os.close(writer._fd)  # as a kill does: no footer
    with path.open("ab") as stream:
        stream.write(b'{"rec":"row","row_id":"torn')

    with Writer.resume(path) as writer:
        assert writer.resumed is not None
        assert [row.key["Nq"] for row in writer.resumed.rows] == [1024]
        writer.write(make.row(CASES[1]))
        writer.write(make.row(CASES[2]))
        writer.finish(complete=True)

    result = read(path)

    assert [row.key["Nq"] for row in result.rows] == [1024, 2048, 4096]
    assert result.complete


def test_a_retry_is_the_next_attempt_and_the_footer_counts_the_last(path: Path) -> None:
    with start(path) as writer:
        failed = make.row(CASES[0], status="timeout")
        writer.write(failed)
        writer.finish(complete=True)

    with Writer.resume(path) as writer:
        assert writer.next_attempt(failed.row_id, 0) == 1
        assert writer.next_attempt(failed.row_id, 1) == 0
        writer.write(make.row(CASES[0], attempt=1))
        footer = writer.finish(complete=True)

    assert footer.status_counts == {"ok": 1}
    assert footer.rows_written == 2
    assert [row.status for row in read(path).rows] == ["ok"]


def test_a_resumed_file_may_name_the_envs_it_already_has(path: Path) -> None:
    start(path).finish(complete=False)

    with Writer.resume(path) as writer:
        writer.write(make.row(CASES[0]))

    assert len(read(path).rows) == 1


def test_resume_ends_a_last_line_that_lacks_its_newline(path: Path) -> None:
    with start(path) as writer:
        writer.write(make.row(CASES[0]))
    path.write_bytes(path.read_bytes()[:-1])

    with Writer.resume(path) as writer:
        writer.write(make.row(CASES[1]))

    assert len(read(path).rows) == 2


def test_a_resume_that_is_refused_leaves_a_complete_file_complete(path: Path) -> None:
    with start(path, planned_rows=1) as writer:
        writer.write(make.row(CASES[0]))
        writer.finish(complete=True)
    before = path.read_bytes()

    with pytest.raises(RecordError), Writer.resume(path):
        raise RecordError("another suite")

    assert path.read_bytes() == before
    with Writer.resume(path):  # the lock is free again
        pass
    assert read(path).complete


def test_an_attempt_already_written_is_a_bug(path: Path) -> None:
    with start(path) as writer:
        writer.write(make.row(CASES[0]))

        with pytest.raises(InternalError, match="must have attempt 1 or more, got 0"):
            writer.write(make.row(CASES[0]))


def test_a_row_of_an_unknown_env_is_a_bug(path: Path) -> None:
    with start(path) as writer, pytest.raises(InternalError, match="'env9' must name an env record already written"):
        writer.write(make.row(CASES[0], env_id="env9"))


def test_nothing_is_written_after_the_footer(path: Path) -> None:
    writer = start(path)
    writer.finish(complete=True)

    with pytest.raises(InternalError, match="must not be written after its footer"):
        writer.write(make.env())


def test_a_path_that_is_taken_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("precious")

    with pytest.raises(RecordError, match=r"run\.jsonl' must not exist yet; continue it with --resume"):
        start(path)
    assert path.read_text() == "precious"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")

    with pytest.raises(RecordError, match=r"cannot be written: '.*results' must be a folder, and is a file"):
        start(tmp_path / "results" / "run.jsonl")
    with pytest.raises(RecordError, match=r"cannot be written: '.*results' must be a folder, and is a file"):
        start(tmp_path / "results" / "deeper" / "run.jsonl")


def test_a_folder_is_no_result_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="must be a file to write, and is a folder"):
        Writer.create(tmp_path, make.header())


def test_words_that_are_not_utf8_are_written_as_escapes(path: Path) -> None:
    Writer.create(path, make.header(argv=["fabench", "run", "caf\udce9.yaml"])).finish(complete=True)

    assert read(path).header.argv[2] == "caf\\udce9.yaml"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(RecordError, match="cannot be written: Permission denied; choose another --out"):
        start(tmp_path / "run.jsonl")


def test_proc_is_not_a_place_to_write() -> None:
    with pytest.raises(RecordError, match=r"'/proc/run\.jsonl' cannot be written: .*; choose another --out"):
        start(Path("/proc/run.jsonl"))


def test_a_full_disk_is_found_before_any_work_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(RecordError, match=r"run\.jsonl' cannot be written: No space left on device; make room"):
        start(path)
    assert not path.exists()


def test_room_for_the_planned_rows_is_asked_for_and_given_back(path: Path) -> None:
    """A real limit in a child process: 1,000 rows need more than the megabyte that a file may have there."""
    script = f"""
import resource
import resultfiles as make
from fabench.errors import RecordError
from fabench.resultfile import Writer
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    Writer.create({str(path)!r}, make.header(planned_rows=1000))
except RecordError as error:
    print(error)
with Writer.create({str(path)!r}, make.header(planned_rows=10)) as writer:
    writer.write(make.env())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)

    assert done.stdout == f"'{path}' cannot be written: File too large; make room, or choose another --out\n"
    assert path.stat().st_size < 4096


def test_a_disk_that_fills_up_later_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fd: int, data: bytes, offset: int) -> int:
        if data.startswith(b'{"rec":"row"'):
            return pwrite(fd, data[:50], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pwrite = os.pwrite
    writer = start(path)
    writer.write(make.row(CASES[0]))
    monkeypatch.setattr(os, "pwrite", half)

    with pytest.raises(RecordError, match="No space left on device"), writer:
        writer.write(make.row(CASES[1]))

    result = read(path, allow_partial=True)
    assert (len(result.rows), result.torn_bytes) == (1, 0)


def test_two_writers_of_one_file_are_refused(path: Path) -> None:
    with start(path), pytest.raises(RecordError, match=r"run\.jsonl' is being written by another run"):
        Writer.resume(path)


def test_resume_of_nothing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="must be a result file, and no such file exists"):
        Writer.resume(tmp_path / "run.jsonl")
    with pytest.raises(RecordError, match="must be a result file, and is a folder"):
        Writer.resume(tmp_path)


def test_resume_does_not_touch_a_file_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\n no newline at the end")

    with pytest.raises(RecordError, match="not UTF-8 text"):
        Writer.resume(path)
    assert path.read_bytes() == b"\xff\xd8\xff\n no newline at the end"


def test_a_newer_minor_schema_is_not_continued(path: Path) -> None:
    start(path).finish(complete=False)
    path.write_text(path.read_text().replace("fabench/1.0", "fabench/1.1", 1))

    with pytest.raises(RecordError, match=r"run\.jsonl:1: schema 'fabench/1\.1' must be fabench/1\.0 to be continued"):
        Writer.resume(path)


def test_a_file_that_is_renamed_meanwhile_is_followed(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "a.jsonl", make.header())
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")

    writer.finish(complete=True)

    assert writer.path == tmp_path / "b.jsonl"
    assert read(writer.path).complete


@pytest.mark.parametrize("taken", [False, True])
def test_a_file_that_is_removed_meanwhile_is_put_back_or_beside_what_took_its_name(tmp_path: Path, taken: bool) -> None:
    folder = tmp_path / "results"
    writer = Writer.create(folder / "a.jsonl", make.header())
    (folder / "a.jsonl").unlink()
    if taken:
        (folder / "a.jsonl").write_text("another's")
    else:
        folder.rmdir()

    writer.finish(complete=True)

    assert writer.path == folder / ("a-again.jsonl" if taken else "a.jsonl")
    assert read(writer.path).complete
    assert not taken or (folder / "a.jsonl").read_text() == "another's"


def test_a_file_that_another_program_truncates_is_an_error_at_once(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "a.jsonl", make.header())
    os.truncate(tmp_path / "a.jsonl", 0)

    with pytest.raises(RecordError, match="must be left alone while a run writes it, got 0 bytes"):
        writer.write(make.env())
