"""The probe asks one child process; nothing a user's file does disturbs the answer or the parent."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fabench import environment, probe
from fabench.errors import BackendError, DeviceError
from plain_attention import SHAPE


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_the_answer_names_the_device_the_software_and_every_backends_reasons(write) -> None:
    path = write("def attention(q, k, v, causal=False): return q")
    causal, window = replace(SHAPE, causal=True), replace(SHAPE, window=(1, 1))
    answer = probe.ask("cpu", [path], [causal, window, causal], ["naive", "sdpa-e*"])
    assert answer.device.type == "cpu"
    assert answer.device.memory_bytes >= answer.device.free_bytes > 0
    assert answer.identity.threads is not None
    assert answer.software.torch
    assert answer.software.python == ".".join(map(str, sys.version_info[:3]))
    assert list(answer.backends) == ["naive", "sdpa-efficient", "attention"]
    assert answer.backends["naive"].unavailable is None
    assert answer.backends["sdpa-efficient"].unavailable == "device cpu, takes cuda"
    mine = answer.backends["attention"]
    assert mine.facts.bare
    assert mine.file == path
    digests = {report.sha256 for report in answer.backends.values()}
    assert len(digests) == 3
    assert all(digest is not None and len(digest) == 64 for digest in digests)
    assert answer.reasons == {
        (causal.id, "naive"): [],
        (window.id, "naive"): [],
        (causal.id, "sdpa-efficient"): ["device cpu, takes cuda"],
        (window.id, "sdpa-efficient"): ["device cpu, takes cuda"],
        (causal.id, "attention"): [],
        (window.id, "attention"): ["window (1, 1)"],
    }


def test_what_a_file_prints_and_leaves_running_does_not_disturb_the_answer(write) -> None:
    path = write(
        "import atexit, os, subprocess, sys, threading, time\n"
        "print('{\"error\": 1}'); print('x' * 200000, file=sys.stderr); os.write(1, b'noise\\n')\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "subprocess.Popen(['sleep', '2'])\n"
        "atexit.register(lambda: time.sleep(60))\n"
        "def attention(q, k, v): return q\n"
    )
    assert "attention" in probe.ask("cpu", [path], backends=["naive"], timeout_s=60).backends


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os; os.abort()", "'.*mine.py' must load without ending its process, got a crash by SIGABRT"),
        ("import os; print('bye', flush=True); os._exit(7)", "got exit code 7 without an answer after printing: bye"),
        ("import ctypes; ctypes.string_at(0)", "got a crash by SIGSEGV"),
        ("import os; os.fork() or __import__('time').sleep(600); os._exit(7)", "got exit code 7 without an answer"),
        (
            "import os\nfor fd in range(3, 32):\n  try: os.write(fd, b'noise\\n')\n  except OSError: pass",
            "must write to no file descriptor that it has not opened",
        ),
        ("import sys; sys.exit('no licence')", "'.*mine.py' cannot be loaded: SystemExit: no licence .line 1."),
        ("raise ValueError('two\\nlines')", "cannot be loaded: ValueError: two lines .line 1."),
    ],
)
def test_a_file_that_kills_the_child_is_one_sentence(write, text: str, message: str) -> None:
    with pytest.raises(BackendError, match=message) as caught:
        probe.ask("cpu", [write(text)], backends=["naive"])
    assert "\n" not in str(caught.value)


def test_a_file_that_hangs_is_given_up_and_its_child_ended(write) -> None:
    path = write("import os, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")
    with pytest.raises(BackendError, match="must load within 5 s, got no answer by then"):
        probe.ask("cpu", [path], backends=["naive"], timeout_s=5)
    assert not Path("/proc", Path(path + ".pid").read_text()).exists()


def test_a_backend_whose_own_code_raises_is_named(write) -> None:
    path = write(
        "import fabench\n"
        "class Mine(fabench.Backend):\n"
        "    facts = fabench.Facts(name='mine')\n"
        "    def more_reasons(self, case, device): return 1 / 0\n"
        "M = Mine()\n"
    )
    with pytest.raises(BackendError, match=r"'mine' must answer reasons\(\), got ZeroDivisionError: division by zero"):
        probe.ask("cpu", [path], [SHAPE], ["naive"])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "'device' must be auto, cpu, cuda or cuda:INDEX, got 'tpu'"),
        ("cpu:1", "must be auto, cpu, cuda or cuda:INDEX, got 'cpu:1'"),
        ("cuda:x", "must be auto, cpu, cuda or cuda:INDEX, got 'cuda:x'"),
        ("cuda:99", "'device' cuda:99 must be"),
    ],
)
def test_a_device_that_is_not_here_is_a_device_error(device: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        probe.ask(device, backends=["naive"])


def test_an_unknown_backend_is_an_error_of_the_parent() -> None:
    with pytest.raises(BackendError, match="did you mean 'naive'"):
        probe.ask("cpu", backends=["navie"])


def test_devices_start_with_the_cpu() -> None:
    assert probe.devices()[0].type == "cpu"


def test_the_parent_imports_no_torch() -> None:
    code = "import sys; from fabench import probe, registry; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_only_variables_that_change_kernels_are_recorded() -> None:
    kept = {
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_FREEZING": "1",
    }
    left_out = {
        "TRITON_CACHE_DIR": "/x",
        "HOME": "/y",
        "TORCHVISION": "1",
        "PATH": "/z",
        "PYTORCH_KERNEL_CACHE_PATH": "/",
    }
    assert environment.variables({**kept, **left_out}) == dict(sorted(kept.items()))


@pytest.mark.parametrize(("number", "text"), [(91900, "9.19.0"), (91002, "9.10.2"), (8902, "8.9.2")])
def test_cudnn_versions_are_read_by_cudnns_own_rule(number: int, text: str) -> None:
    assert environment.dotted(number) == text
