"""Memory limits and OOM kills are read from the control groups that this process is in, wherever they lie."""

from __future__ import annotations

from pathlib import Path

from fabench.cgroup import memory_limits, oom_kills

GIB = 1 << 30


def tree(root: Path, own: str, files: dict[str, str]) -> Path:
    """A root folder with /proc/self/cgroup and the files of control groups."""
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_group_above_the_own_one_limits_too(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/batch/job",
        {
            "batch/job/memory.max": f"{4 * GIB}\n",
            "batch/job/memory.current": f"{GIB}\n",
            "batch/memory.max": f"{8 * GIB}\n",
            "batch/memory.current": f"{7 * GIB}\n",
            "memory.max": "max\n",
        },
    )

    assert list(memory_limits(root)) == [(4 * GIB, GIB), (8 * GIB, 7 * GIB)]


def test_cached_files_are_not_memory_in_use(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/",
        {
            "memory.max": f"{4 * GIB}\n",
            "memory.current": f"{3 * GIB}\n",
            "memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
        },
    )

    assert list(memory_limits(root)) == [(4 * GIB, GIB)]


def test_version_1_keeps_memory_in_a_tree_of_its_own(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "5:cpu,cpuacct:/\n4:memory:/slurm/job\n0::/\n",
        {
            "memory/slurm/job/memory.limit_in_bytes": f"{2 * GIB}\n",
            "memory/slurm/job/memory.usage_in_bytes": "4096\n",
            "memory/slurm/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 9\n",
        },
    )

    assert list(memory_limits(root)) == [(2 * GIB, 4096)]
    assert oom_kills(root) == 3


def test_in_a_container_the_tree_begins_at_its_own_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/docker/0123",
        {"memory.max": f"{GIB}\n", "memory.current": "0\n", "memory.events": "low 0\noom 1\noom_kill 1\n"},
    )

    assert list(memory_limits(root)) == [(GIB, 0)]
    assert oom_kills(root) == 1


def test_where_there_are_no_groups_there_is_no_limit_and_no_kill(tmp_path: Path) -> None:
    assert list(memory_limits(tmp_path)) == []
    assert oom_kills(tmp_path) == 0
