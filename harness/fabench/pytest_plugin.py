"""The pytest plugin: `--fabench-profile`, and `fabench_case` for tests marked `@pytest.mark.fabench(kernel=...)`.

Loaded in every pytest session of an environment that has fabench: it imports nothing before a test asks for it.
"""

from __future__ import annotations

import os

import pytest

REPRO = "FABENCH_REPRO"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("fabench", "parity of attention kernels")
    group.addoption(
        "--fabench-profile",
        default="quick",
        choices=["quick", "full", "stress"],
        help="Which cases `fabench_case` runs over. [quick]",
    )
    group.addoption("--fabench-device", default="auto", help="auto, cpu, cuda or cuda:<i>. [auto]")
    group.addoption("--fabench-repro", metavar="DIR", help="Where scripts of failures go. [fabench-repro]")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and hand the folder for scripts to `fabench.testing`."""
    config.addinivalue_line("markers", "fabench(kernel=...): run over the parity cases of this kernel (`fabench_case`)")
    folder = config.getoption("--fabench-repro")
    if folder:
        os.environ[REPRO] = str(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a case for those that ask for `fabench_case`."""
    if "fabench_case" not in metafunc.fixturenames:
        return
    from fabench.testing import cases

    mark = metafunc.definition.get_closest_marker("fabench")
    options = dict(mark.kwargs) if mark is not None else {}
    found = cases(
        options.pop("kernel", None),
        metafunc.config.getoption("--fabench-profile"),
        device=metafunc.config.getoption("--fabench-device"),
        **options,
    )
    metafunc.parametrize("fabench_case", found, ids=[trial.label() for trial in found])
