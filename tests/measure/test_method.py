"""The method's record and id, the number of input sets, the flush, and the choice of regime."""

from __future__ import annotations

import pytest

from fabench.case import Case
from fabench.device import Device
from fabench.errors import DeviceError
from fabench.measure.method import method_for, method_id
from fabench.measure.regime import bound_seconds, choose
from fabench.measure.rotation import flush_bytes, rotation_count, sets
from fabench.names import Regime
from fake_engine import FakeEngine

H200 = Device("cuda", "NVIDIA H200", capability=(9, 0), sms=132, l2_bytes=50 << 20, max_sm_clock_hz=1.98e9)
CPU = Device("cpu", "some CPU")
MIB = 1 << 20


def case(N: int, **more: object) -> Case:
    return Case(**{"batch": 1, "heads": 16, "Nq": N, "Nk": N, "d": 128, **more})  # type: ignore[arg-type]


def test_the_id_follows_from_the_rules_alone() -> None:
    burst = method_for("burst", H200, "normal")

    assert method_id(burst) == method_id(method_for("burst", Device("cuda", "another"), "normal"))
    others = [method_for("sustained", H200, "normal"), method_for("graph", H200, "normal")]
    others += [method_for("burst", H200, "std3"), method_for("burst", CPU, "normal")]
    assert len({method_id(m) for m in [burst, *others]}) == 5


def test_a_cpu_is_warm_and_timed_by_perf_counter_whatever_was_asked_for() -> None:
    method = method_for("burst", CPU, "normal")

    assert (method.regime, method.cache, method.timer) == ("cpu", "warm", "perf_counter")


def test_the_regime_is_graph_below_60_us_of_roofline_and_else_what_was_asked_for() -> None:
    small, large = case(512), case(4096)

    assert bound_seconds(small, H200) == pytest.approx(4 * 16 * 512**2 * 128 / 989e12)
    assert choose(small, H200, "burst") == "graph"
    assert choose(small, H200, "sustained") == "graph"
    assert choose(large, H200, "burst") == "burst"
    assert choose(large, H200, "sustained") == "sustained"
    assert choose(large, H200, "graph") == "graph"


def test_a_memory_bound_case_is_judged_by_its_bytes() -> None:
    decode = case(32768, Nq=1, batch=64)

    assert bound_seconds(decode, H200) == pytest.approx(64 * 16 * (2 * 32768 + 2) * 128 * 2 / 4.8e12)
    assert choose(decode, H200, "burst") == "burst"


def test_an_unknown_card_runs_in_the_regime_asked_for() -> None:
    assert choose(case(512), Device("cuda", "NVIDIA Unheard-of"), "burst") == "burst"


@pytest.mark.parametrize("asked", ["burst", "sustained", "graph", "cpu"])
def test_a_cpu_has_one_regime(asked: Regime) -> None:
    assert choose(case(4096), CPU, asked) == "cpu"


def test_asking_for_the_cpu_regime_on_a_gpu_is_an_error() -> None:
    with pytest.raises(DeviceError, match="'regime' must be burst, sustained or graph on NVIDIA H200, got 'cpu'"):
        choose(case(4096), H200, "cpu")


@pytest.mark.parametrize(
    ("set_mib", "count"), [(1000, 2), (150, 2), (149, 3), (75, 3), (74, 4), (50, 4), (10, 16), (1, 151)]
)
def test_input_sets_exceed_three_l2_caches_even_without_the_one_in_use(set_mib: int, count: int) -> None:
    assert sets(50 * MIB, set_mib * MIB, set_mib * MIB, 100 << 30) == (count, False)
    assert (count - 1) * set_mib >= min(150, set_mib)


def test_memory_caps_the_sets_and_says_so() -> None:
    assert sets(50 * MIB, 10 * MIB, 10 * MIB, 200 * MIB) == (8, True)  # 40 % of 200 MiB
    assert sets(50 * MIB, 10 * MIB, 40 * MIB, 200 * MIB) == (2, True)
    assert sets(50 * MIB, 500 * MIB, 500 * MIB, 600 * MIB) == (1, True)


def test_tiny_inputs_do_not_ask_for_thousands_of_sets() -> None:
    assert sets(50 * MIB, 1024, 1024, 100 << 30) == (512, False)


def test_a_cache_of_unknown_size_gets_two_sets() -> None:
    assert sets(None, MIB, MIB, 1 << 30) == (2, False)


def test_a_backward_counts_what_its_forward_saved_towards_memory() -> None:
    engine = FakeEngine(memory=800 * MIB)
    forward = case(4096, heads=8)  # 24 MiB a set: 8 sets wanted, 13 fit

    assert rotation_count(forward, engine) == (8, False)
    assert rotation_count(case(4096, heads=8, direction="backward"), engine) == (6, False)  # 32 MiB a set
    assert rotation_count(case(4096, heads=8, direction="backward"), FakeEngine(memory=400 * MIB)) == (3, True)


def test_the_flush_is_twice_l2_within_its_limits() -> None:
    assert flush_bytes(50 * MIB, 100 << 30) == 100 * MIB
    assert flush_bytes(4 * MIB, 100 << 30) == 64 * MIB
    assert flush_bytes(None, 100 << 30) == 64 * MIB
    assert flush_bytes(50 * MIB, 500 * MIB) == 50 * MIB
