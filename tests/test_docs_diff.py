"""docs/diff.md and docs/ci.md show what is so: output, verdicts, thresholds, exit codes, waivers, workflows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from diff_files import CASES, diff, failing, rounds, table, without_paths, write
from fabench.cli import COMMANDS
from fabench.diff.noise import BUCKETS_NS
from fabench.diff.thresholds import GATEABLE, Thresholds
from fabench.diff.verdicts import MEANING, VERDICTS
from fabench.diff.waivers import load

FOLDER = Path(__file__).parents[1] / "docs"
TEXT = (FOLDER / "diff.md").read_text()
CI = (FOLDER / "ci.md").read_text()


def block(language: str, containing: str, text: str = TEXT) -> str:
    blocks = [body for body in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if containing in body]
    assert len(blocks) == 1, (language, containing, len(blocks))
    return blocks[0]


@pytest.fixture
def example(tmp_path):
    """The two files of the guide's first example."""
    cases, backends = CASES[4:], ["sdpa-flash", "triton-flash"]
    slow = {(CASES[5], "triton-flash"): 1.04, (CASES[6], "triton-flash"): 0.93}
    new = [r for r in table(2, cases=cases, backends=backends, factors=slow) if r.backend != "online"]
    old = table(1, cases=cases, backends=backends) + rounds(CASES[7], "online")
    new += failing(
        CASES[7],
        "online",
        "wrong_result",
        message="'O' max rho 37.5 > 4 at b 1, h 7, row 8191, col 0: got 0.0123, expected 0.0116",
    )
    software = {"python": "3.12.3", "torch": "2.12.0", "cuda": "13.0", "driver": "580.95"}
    return write(tmp_path / "base.jsonl", old), write(tmp_path / "change.jsonl", new, software=software)


def test_the_table_shown_is_what_the_command_prints(tmp_path, example):
    shown = block("console", "fabench diff base.jsonl change.jsonl\n")
    result = diff(*example)
    assert result.exit_code == 1
    printed = re.sub(r"(?m)^thresholds: .*\n", "", without_paths(result.output, tmp_path))
    assert shown == f"$ fabench diff base.jsonl change.jsonl\n{printed}"


def test_the_explanation_shown_is_what_the_command_prints(tmp_path, example):
    shown = block("console", "--explain")
    row_id = re.search(r"--explain (\w+)", shown)[1]
    printed = without_paths(diff(*example, "--explain", row_id).output, tmp_path)
    kept = shown.partition("\n")[2].split("  ...\n")
    assert all(part in printed for part in kept)
    assert printed.startswith(kept[0])
    assert printed.endswith(kept[-1])


def test_every_verdict_is_explained_in_its_order():
    listed = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", TEXT, re.MULTILINE)
    assert [name for name, _ in listed] == list(VERDICTS)
    assert dict(listed) == MEANING


def test_every_threshold_is_listed_with_its_value():
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| ([\d.]+) \|", TEXT, re.MULTILINE))
    assert {name: float(value) for name, value in listed.items()} == {
        k: float(v) for k, v in Thresholds().as_dict().items()
    }


def test_every_option_is_named():
    import click

    from fabench.cli.diff import command

    options = {name for p in command.params if isinstance(p, click.Option) for name in p.opts if name.startswith("--")}
    assert [name for name in sorted(options) if f"`{name}" not in TEXT] == []


def test_the_words_of_fail_on_and_the_time_classes_are_named():
    assert all(f"`{word}`" in TEXT for word in GATEABLE)
    assert all(f"`{name}`" in TEXT for name, _ in BUCKETS_NS)


def test_the_waiver_shown_is_one(tmp_path):
    path = tmp_path / "waivers.toml"
    path.write_text(block("toml", "[[waiver]]"))
    assert len(load(path)) == 2


def test_the_figures_command_is_there():
    assert "python tests/diff_figures.py" in TEXT
    assert (Path(__file__).parent / "diff_figures.py").is_file()


@pytest.mark.parametrize("name", ["A/B of a pull request", "Every card, then a comparison"])
def test_the_workflows_are_yaml_whose_commands_exist(name):
    text = block("yaml", f"name: {name}", CI)
    workflow = yaml.safe_load(text)
    assert workflow["name"] == name
    assert workflow["jobs"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    commands = re.findall(r"(?m)(?:^|/)\s*fabench (\w+)", "\n".join(step.get("run", "") for step in steps))
    assert {"run", "diff"} & set(commands)
    assert set(commands) <= set(COMMANDS)


@pytest.mark.parametrize("name", ["A/B of a pull request", "Every card, then a comparison"])
def test_the_scripts_of_the_workflows_are_shell(name):
    workflow = yaml.safe_load(block("yaml", f"name: {name}", CI))
    scripts = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(scripts) >= 3
    for script in scripts:
        plain = re.sub(r"\$\{\{.*?\}\}", "expression", script)
        checked = subprocess.run(["bash", "-n"], input=plain, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), script


def test_the_first_step_lets_only_the_undecided_through(tmp_path, example):
    """The line of the workflow, run: 1 and 2 stop the job, 0 and 3 go on to the step that decides."""
    steps = yaml.safe_load(block("yaml", "name: A/B of a pull request", CI))["jobs"]["ab"]["steps"]
    line = next(step["run"] for step in steps if "--rerun" in step.get("run", "")).replace("\\\n", " ")
    end = line[line.index("||") :]
    for code, passes in ((0, True), (1, False), (2, False), (3, True)):
        done = subprocess.run(["bash", "-ec", f"(exit {code}) {end}"], check=False)
        assert (done.returncode == 0) == passes, code


def test_the_options_in_the_workflows_are_options():
    import importlib

    import click

    text = CI.replace("\\\n", " ")
    for name, rest in re.findall(r"\bfabench (run|diff|merge|show) ([^\n`]*)", text):
        command = importlib.import_module(f"fabench.cli.{name}").command
        known = {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known, (name, rest)


def test_the_exit_codes_are_the_commands_own():
    from fabench.cli.diff import command

    for code, word in ((0, "passed"), (1, "failed"), (2, "usage"), (3, "undecided")):
        assert re.search(rf"^\| {code} \| {word}", TEXT, re.MULTILINE)
        assert f"{code}:" in " ".join(command.help.split())
